"""The table of families: how each says what it has in common with others, and which body it has."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bert.bodies.deberta import DebertaBody
from bert.bodies.deberta_family import Deberta
from bert.bodies.family import Family
from bert.bodies.modern import ModernBody
from bert.bodies.mpnet import MpnetBody
from bert.bodies.rotary_family import GTE, NEW, NOMIC
from bert.errors import UnsupportedModelError

_ROBERTA = Family(
    "roberta",
    classes="Roberta",
    prefix="roberta.",
    config_defaults={"vocab_size": 50265, "pad_token_id": 1, "max_position_embeddings": 512},
    first_id_keys=("bos_token_id",),
    last_id_keys=("eos_token_id",),
    head_names=(
        ("cls.predictions.transform.dense", "lm_head.dense"),
        ("cls.predictions.transform.LayerNorm", "lm_head.layer_norm"),
        ("cls.predictions.decoder", "lm_head.decoder"),
        ("cls.predictions.bias", "lm_head.bias"),
    ),
    class_names={
        "ForSequenceClassification": (
            ("bert.pooler.dense", "classifier.dense"),
            ("classifier", "classifier.out_proj"),
        )
    },
    starts_after_pad=True,
    mlm_act="gelu",
    has_pair_head=False,
    # 1e-5 to 3e-5 (Liu et al. 2019, arXiv 1907.11692, 5.1); for large mostly 1e-5 (README.glue.md of fairseq).
    learning_rates=((12, 768, 2e-5), (24, 1024, 1e-5)),
)
_DISTILBERT = Family(
    "distilbert",
    classes="DistilBert",
    prefix="distilbert.",
    config_keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
    },
    config_defaults={"num_hidden_layers": 6, "classifier_dropout": 0.2, "qa_dropout": 0.1},
    config_fixed={"layer_norm_eps": 1e-12},
    own_keys=("qa_dropout",),
    layer="transformer.layer.*",
    layer_names=(
        ("attention.self.query", "attention.q_lin"),
        ("attention.self.key", "attention.k_lin"),
        ("attention.self.value", "attention.v_lin"),
        ("attention.output.dense", "attention.out_lin"),
        ("attention.output.LayerNorm", "sa_layer_norm"),
        ("intermediate.dense", "ffn.lin1"),
        ("output.dense", "ffn.lin2"),
        ("output.LayerNorm", "output_layer_norm"),
    ),
    head_names=(
        ("bert.pooler.dense", "pre_classifier"),
        ("cls.predictions.transform.dense", "vocab_transform"),
        ("cls.predictions.transform.LayerNorm", "vocab_layer_norm"),
        ("cls.predictions.decoder.weight", "vocab_projector.weight"),
        ("cls.predictions.bias", "vocab_projector.bias"),
    ),
    pooler_act="relu",
    has_segment_table=False,
    has_pair_head=False,
    drops_attended=False,
    drops_tokens_for_classifier=False,
    # As BERT base, whose width and half of whose layers it has.
    learning_rates=((6, 768, 5e-5),),
)
_ELECTRA = Family(
    "electra",
    classes="Electra",
    prefix="electra.",
    config_defaults={
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    # The vector that a choice is scored by.
    config_required={"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
    own_keys=("embedding_size",),
    head_names=(
        ("cls.predictions.transform.dense", "generator_predictions.dense"),
        ("cls.predictions.transform.LayerNorm", "generator_predictions.LayerNorm"),
        ("cls.predictions.decoder.weight", "generator_lm_head.weight"),
        ("cls.predictions.bias", "generator_lm_head.bias"),
    ),
    class_names={
        "ForSequenceClassification": (
            ("bert.pooler.dense", "classifier.dense"),
            ("classifier", "classifier.out_proj"),
        ),
        "ForMultipleChoice": (("bert.pooler.dense", "sequence_summary.summary"),),
    },
    pooler_act="gelu",
    mlm_act="gelu",
    has_pair_head=False,
    discriminator="discriminator_predictions",
    # configure_finetuning.py of google-research/electra, with layer_decay 0.8 (small, base) and 0.9 (large).
    learning_rates=((12, 256, 1e-4), (12, 768, 1e-4), (24, 1024, 5e-5)),
)
_ALBERT = Family(
    "albert",
    classes="Albert",
    prefix="albert.",
    config_keys={"classifier_dropout": "classifier_dropout_prob"},
    config_defaults={
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": 0.1,
        "num_hidden_groups": 1,
    },
    own_keys=("embedding_size", "num_hidden_groups", "inner_group_num"),
    first_id_keys=("bos_token_id",),
    last_id_keys=("eos_token_id",),
    layer="encoder.albert_layer_groups.*.albert_layers.*",
    layer_names=(
        ("attention.output.dense", "attention.dense"),
        ("attention.output.LayerNorm", "attention.LayerNorm"),
        ("attention.self", "attention"),
        ("intermediate.dense", "ffn"),
        ("output.dense", "ffn_output"),
        ("output.LayerNorm", "full_layer_layer_norm"),
    ),
    body_names=(
        ("embeddings_project", "encoder.embedding_hidden_mapping_in"),
        ("pooler.dense", "pooler"),
    ),
    head_names=(
        ("cls.predictions.transform.dense", "predictions.dense"),
        ("cls.predictions.transform.LayerNorm", "predictions.LayerNorm"),
        ("cls.predictions.decoder", "predictions.decoder"),
        ("cls.predictions.bias", "predictions.bias"),
        ("cls.seq_relationship", "sop_classifier.classifier"),
    ),
    always_projects=True,
    # 1e-5 to 5e-5, most often 1e-5 or 2e-5 (run_glue.sh of google-research/albert); its paper has one list for all sizes.
    learning_rates=((12, 768, 2e-5), (12, 4096, 2e-5)),
)
_MPNET = replace(
    _ROBERTA,
    model_type="mpnet",
    body=MpnetBody,
    classes="MPNet",
    prefix="mpnet.",
    config_defaults={
        "vocab_size": 30527,
        "max_position_embeddings": 512,
    },
    config_fixed={"pad_token_id": 1},
    layer_names=(
        ("attention.self.query", "attention.attn.q"),
        ("attention.self.key", "attention.attn.k"),
        ("attention.self.value", "attention.attn.v"),
        ("attention.output.dense", "attention.attn.o"),
        ("attention.output.LayerNorm", "attention.LayerNorm"),
    ),
    has_segment_table=False,
    # 1e-5 to 2e-5, the higher one for small data (README.glue.md of microsoft/MPNet).
    learning_rates=((12, 768, 2e-5),),
)
_MODERN = Family(
    "modernbert",
    ModernBody,
    classes="ModernBert",
    prefix="model.",
    config_keys={
        "hidden_act": "hidden_activation",
        "layer_norm_eps": "norm_eps",
        "hidden_dropout_prob": "mlp_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "classifier_dropout",
    },
    config_defaults={
        "vocab_size": 50368,
        "num_hidden_layers": 22,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 50283,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": 0.0,
    },
    config_fixed={"position_embedding_type": "absolute"},
    reads_own_words_only=True,
    first_id_keys=("bos_token_id", "cls_token_id"),
    last_id_keys=("eos_token_id", "sep_token_id"),
    layer="layers.*",
    layer_names=(
        ("attention.LayerNorm", "attn_norm"),
        ("attention.self.query_key_value", "attn.Wqkv"),
        ("attention.output.dense", "attn.Wo"),
        ("intermediate.LayerNorm", "mlp_norm"),
        ("intermediate.dense", "mlp.Wi"),
        ("output.dense", "mlp.Wo"),
    ),
    body_names=(
        ("embeddings.word_embeddings", "embeddings.tok_embeddings"),
        ("embeddings.LayerNorm", "embeddings.norm"),
        ("encoder.LayerNorm", "final_norm"),
    ),
    head_names=(
        ("cls.predictions.decoder.weight", "decoder.weight"),
        ("cls.predictions.bias", "decoder.bias"),
    ),
    linear_layers=(
        "attention.self.query_key_value",
        "attention.output.dense",
        "intermediate.dense",
        "output.dense",
    ),
    has_segment_table=False,
    has_pair_head=False,
    drops_answers_for_classifier=True,
    ignored=".rotary_emb.",
    answer_head="classifier",
    vocabulary_head="head.dense",
    # Warner et al. 2024 (arXiv 2412.13663, appendix on fine-tuning): most GLUE tasks of base at 8e-5.
    learning_rates=((22, 768, 8e-5),),
)
_CONVOLUTION = ("conv_kernel_size", "conv_act", "conv_groups")
_DEBERTA_V2 = Deberta(
    "deberta-v2",
    DebertaBody,
    classes="DebertaV2",
    prefix="deberta.",
    config_keys={"classifier_dropout": "cls_dropout"},
    config_defaults={
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "pooler_hidden_act": "gelu",
    },
    own_keys=("embedding_size", "pooler_hidden_act", "pooler_dropout"),
    layer_names=(
        ("attention.self.query", "attention.self.query_proj"),
        ("attention.self.key", "attention.self.key_proj"),
        ("attention.self.value", "attention.self.value_proj"),
    ),
    # Files of either form of this head are read, and the first is written; without `legacy` the rest are written.
    head_names=(
        ("cls.predictions", "cls.predictions"),
        ("bert.pooler.dense", "pooler.dense"),
        ("cls.predictions.transform.dense", "lm_predictions.lm_head.dense"),
        ("cls.predictions.transform.LayerNorm", "lm_predictions.lm_head.LayerNorm"),
        ("cls.predictions.bias", "lm_predictions.lm_head.bias"),
    ),
    pooler_act="gelu",
    has_pair_head=False,
    drops_tokens_for_classifier=False,
    discriminator="mask_predictions",
    # mnli.sh of microsoft/DeBERTa for v3-small, v2-xlarge and v2-xxlarge; the model cards of v3-base and v3-large.
    learning_rates=((6, 768, 4.5e-5), (12, 768, 2e-5), (24, 1024, 6e-6), (24, 1536, 4e-6), (48, 1536, 3e-6)),
)
_DEBERTA = replace(
    _DEBERTA_V2,
    model_type="deberta",
    classes="Deberta",
    config_defaults={
        "vocab_size": 50265,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "pooler_hidden_act": "gelu",
    },
    unread=("position_buckets", "share_att_key", "norm_rel_ebd", *_CONVOLUTION),
    layer_names=(
        ("attention.self.pos_key_proj", "attention.self.pos_proj"),
        ("attention.self.pos_query_proj", "attention.self.pos_q_proj"),
    ),
    has_key_bias=False,
    discriminator="",
    joined={"in_proj": 3},
    unknown_classes=("ForMultipleChoice",),
    # mnli.sh of microsoft/DeBERTa.
    learning_rates=((12, 768, 3e-5), (24, 1024, 1e-5), (48, 1024, 5e-6)),
)
_SMALLER_VOCABULARY = {**_ROBERTA.config_defaults, "vocab_size": 30522}
FAMILIES = {
    family.model_type: family
    for family in (
        Family(),
        _DISTILBERT,
        # Written back with its task in the segments: without task ids.
        Family("ernie", classes="Ernie", prefix="ernie.", task_ids="use_task_id"),
        _ROBERTA,
        replace(
            _ROBERTA, model_type="xlm-roberta", classes="XLMRoberta", config_defaults=_SMALLER_VOCABULARY
        ),
        replace(_ROBERTA, model_type="camembert", classes="Camembert", config_defaults=_SMALLER_VOCABULARY),
        _ELECTRA,
        _ALBERT,
        _MPNET,
        _MODERN,
        _DEBERTA,
        _DEBERTA_V2,
        NOMIC,
        GTE,
        NEW,
    )
}
"""`model_type` → family. A new one with a body that is there is one row here."""


REFUSED = {
    "bart": "it has a decoder",
    "canine": "it reads characters, not pieces",
    "convbert": "its layers mix attention with convolution",
    "extractor": "it is a GLiNER2, which reads labels of several tasks as one schema",
    "eurobert": "its positions are rotations and its norms RMSNorm",
    "funnel": "it shortens the text from layer to layer",
    "jina_embeddings_v3": "it has an adapter for each task inside",
    "longformer": "its attention is local",
    "luke": "it reads entities beside words",
    "megatron-bert": "its norms come before each layer",
    "mobilebert": "its layers have bottlenecks and no LayerNorm",
    "mosaic_bert": "its positions are ALiBi slopes",
    "neobert": "its positions are rotations and its norms RMSNorm",
    "nystromformer": "its attention is an approximation",
    "big_bird": "its attention is sparse",
    "rembert": "its embeddings of words and of the output differ",
    "roberta-prelayernorm": "its norms come before each layer",
    "roformer": "its positions are rotations",
    "squeezebert": "its layers are grouped convolutions",
    "t5": "it has a decoder, and positions of its own",
    "umt5": "it has a decoder, and positions of its own",
    "xlm": "it has embeddings of languages, and heads of its own",
    "xlm-roberta-xl": "its norms come before each layer",
    "xlnet": "its attention carries a memory from text to text",
}
"""`model_type` → the reason why another body cannot be read as BERT's."""


def family_of(values: Mapping[str, Any]) -> Family:
    """Return the family of a `config.json`; without a `model_type` it is BERT's. Raises UnsupportedModelError."""
    model_type = str(values.get("model_type", "bert"))
    if model_type not in FAMILIES:
        reason = f": {REFUSED[model_type]}" if model_type in REFUSED else ""
        raise UnsupportedModelError(
            f"model_type is {model_type!r}, which is not read{reason}; known are {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type].variant(values)
