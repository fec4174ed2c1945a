"""Encoders of published shapes with random weights, as `transformers` writes them.

Speed does not depend on what the weights are. All have one small WordPiece tokenizer, because it does not depend on that
either.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from benchmarks.common import BERT_SHAPES
from benchmarks.serve.load.texts import COMMON

_BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_ROBERTA = {"max_position_embeddings": 514, "layer_norm_eps": 1e-5, "pad_token_id": 1}
_DEBERTA = {
    **BERT_SHAPES["base"],
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": "p2c|c2p",
}
_DEBERTA_V3 = {
    **_DEBERTA,
    "model_type": "deberta-v2",
    "vocab_size": 128100,
    "position_buckets": 256,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
SHAPES: dict[str, dict[str, Any]] = {
    "minilm-l6": {"model_type": "bert", **BERT_SHAPES["minilm"]},
    "bert-base": {"model_type": "bert"},
    "bert-large": {"model_type": "bert", **BERT_SHAPES["large"]},
    "distilbert-base": {"model_type": "distilbert"},
    "ernie-3.0-medium": {
        "model_type": "ernie",
        "num_hidden_layers": 6,
        "vocab_size": 40000,
        "max_position_embeddings": 2048,
        "type_vocab_size": 4,
        "use_task_id": True,
        "task_type_vocab_size": 16,
        "layer_norm_eps": 1e-5,
    },
    "electra-small": {"model_type": "electra"},
    "electra-base": {"model_type": "electra", "embedding_size": 768, **_BASE},
    "roberta-base": {"model_type": "roberta", "vocab_size": 50265, "type_vocab_size": 1, **_ROBERTA},
    "xlm-roberta-base": {
        "model_type": "xlm-roberta",
        "vocab_size": 250002,
        "type_vocab_size": 1,
        **_ROBERTA,
    },
    "albert-base": {"model_type": "albert", **_BASE},
    "mpnet-base": {"model_type": "mpnet", "vocab_size": 30527, **_ROBERTA},
    "deberta-base": {**_DEBERTA, "model_type": "deberta"},
    "deberta-v3-base": _DEBERTA_V3,
    "deberta-v3-small": {**_DEBERTA_V3, "num_hidden_layers": 6},
    "deberta-v2-xlarge": {
        **_DEBERTA_V3,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "attention_head_size": 64,
        "conv_kernel_size": 3,
        "conv_act": "gelu",
    },
    "modernbert-base": {"model_type": "modernbert", "pad_token_id": 1},
    "nomic-base": {"model_type": "nomic_bert", "pad_token_id": 1},
    "gte-base": {"model_type": "gte", "vocab_size": 30528},
    "tiny": {"model_type": "electra", "embedding_size": 16, **BERT_SHAPES["tiny"]},
}
"""Name → what differs from the defaults of its class in `transformers`."""
LABELS = 3
SPECIAL_PIECES = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
"""Special pieces in the order of their ids. [PAD] is 1, because MPNet's code fixes it."""
MAX_TOKENS = 512


def write_encoder(name: str, folder: Path, **changes: Any) -> Any:
    """Write one of SHAPES as a text classifier of `transformers`; return the model."""
    # Imported here: the table is read where torch is not.
    import torch
    import transformers

    torch.manual_seed(0)
    values = {"num_labels": LABELS, **SHAPES[name], **changes}
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def random_places(folder: Path, precision: str | None) -> tuple[Path, Path]:
    """Return where a random model and its bundle lie in a folder."""
    return folder / "model", folder / f"bundle-{precision or 'default'}"


def export_random(name: str, folder: Path, precision: str | None) -> Path:
    """Write one of SHAPES and its bundle; return the bundle. Raises SystemExit where it cannot be exported."""
    model, bundle = random_places(folder.resolve(), precision)
    write_encoder(name, model)
    command = [sys.executable, "-m", "model_export.cli", "--checkpoint", str(model), "--out", str(bundle)]
    command += ["--overwrite", *(["--precision", precision] if precision else [])]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} was not exported:\n{(done.stdout + done.stderr)[-3000:]}")
    return bundle


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer: letters, and the words that made-up texts consist of."""
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = [
        *SPECIAL_PIECES,
        *letters,
        *(f"##{letter}" for letter in letters),
        *sorted(set(COMMON) - set(letters)),
    ]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(list(SPECIAL_PIECES))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(piece, vocabulary[piece]) for piece in ("[CLS]", "[SEP]")],
    )
    backend.save(str(folder / "tokenizer.json"))
    stated = {f"{kind}_token": f"[{kind.upper()}]" for kind in ("cls", "pad", "sep", "unk", "mask")}
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_TOKENS,
        "model_input_names": ["input_ids", "attention_mask"],  # not all of them take segments
        **stated,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(content), encoding="utf-8")
