"""Checkpoints of BERT's relatives: read as BERT's, of the same answers and gradients, and written back as their own."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bert.bodies.body import POSITIONS, SEGMENTS
from bert.bodies.family import TASKS as TASK_IDS
from bert.checkpoint.description import Stated
from bert.checkpoint.tensor_names import needed_shapes
from bert.checkpoint.weights import read_checkpoint, read_weights
from bert.config import BertConfig
from bert.errors import CheckpointError, ConfigError, UnsupportedModelError
from bert.families import FAMILIES
from bert.nn import heads
from bert.nn.checkpoint import load_into, save_checkpoint
from bert.nn.encoder import activation
from bert.nn.heads import BertHead
from bert.tasks.spec import TaskSpec
from tests.support.checkpoints import ARCHITECTURES, SPECS, vocabulary
from tests.support.families import CLASSES, SHAPES, has_class, their_outputs, write_relative

TASKS = ["classification", "ner", "qa", "multiple_choice", "similarity", "fill_mask"]
LENGTHS = (140, 20, 7, 2, 1)
"""Lengths of the texts; MPNet's distances change at 8 and end at 128."""
FROZEN = (".self.key.bias", ".self.pos_key_proj.bias")
"""What version 1 of DeBERTa lacks."""
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""All but shrinking, which takes minutes: the shapes are small."""
FAMILY_NAMES = ["bert", *CLASSES]
SERVED = [(task, name) for task in TASKS for name in FAMILY_NAMES if has_class(name, task)]


def drawn_changes(data: st.DataObject, model_type: str) -> dict[str, Any]:
    """Draw the shape of a family's config: keys of its `config.json`."""
    heads_count = data.draw(st.integers(1, 3))
    width = heads_count * 2 * data.draw(st.integers(2, 6))
    changes = FAMILIES[model_type].own_config(
        {
            "num_hidden_layers": data.draw(st.integers(1, 4)),
            "num_attention_heads": heads_count,
            "hidden_size": width,
            "intermediate_size": data.draw(st.integers(4, 40)),
            "hidden_act": data.draw(
                st.sampled_from(["gelu", "relu", "gelu_new", "gelu_pytorch_tanh", "swish"])
            ),
            "max_position_embeddings": data.draw(st.integers(max(LENGTHS), 150)),
            "pad_token_id": data.draw(st.sampled_from([0, 1])),
            "layer_norm_eps": data.draw(st.sampled_from([1e-12, 1e-5])),
        }
    )
    of_families: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "distilbert": {"sinusoidal_pos_embds": st.booleans()},
        "ernie": {"use_task_id": st.booleans()},
        "electra": {"embedding_size": st.sampled_from([width, 10])},
        "albert": {
            "embedding_size": st.sampled_from([width, 10]),
            "num_hidden_groups": st.integers(1, 2),
            "inner_group_num": st.integers(1, 2),
        },
        "modernbert": {
            **dict.fromkeys(
                ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias"), st.booleans()
            ),
            "classifier_pooling": st.sampled_from(["cls", "mean"]),
            "classifier_activation": st.sampled_from(["gelu", "relu"]),
            "local_attention": st.sampled_from([4, 8, 9, 64]),
            "global_attn_every_n_layers": st.integers(1, 3),
            "global_rope_theta": st.sampled_from([160_000.0, 100.0]),
            "local_rope_theta": st.sampled_from([10_000.0, 50.0]),
        },
    }
    own = of_families.get(model_type, {})
    if model_type in ("deberta", "deberta-v2"):
        return changes | drawn_distances(data, model_type, width)
    if model_type in ("nomic_bert", "gte"):
        kinds = {"rope_type": "default"}, {"rope_type": "linear", "factor": 1.3}
        own["rope_parameters"] = st.sampled_from([{"rope_theta": 50.0, **kind} for kind in kinds])
    if model_type not in ("distilbert", "mpnet", "modernbert"):
        own["type_vocab_size"] = st.sampled_from([1, 2, 4])
    return changes | {key: data.draw(strategy) for key, strategy in own.items()}


def drawn_distances(data: st.DataObject, model_type: str, width: int) -> dict[str, Any]:
    """Draw what sets a DeBERTa apart: keys of its `config.json`."""
    terms = [["c2p"], ["p2c"], ["c2p", "p2c"], "c2p|p2c", " P2C | c2p"]
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "relative_attention": st.just(True),
        "pos_att_type": st.sampled_from(terms),
        "max_relative_positions": st.sampled_from([-1, 0, 16, 64]),
        "position_biased_input": st.booleans(),
        "type_vocab_size": st.sampled_from([0, 2]),
        "embedding_size": st.sampled_from([width, 10]),
        "pooler_hidden_act": st.sampled_from(["gelu", "tanh"]),
    }
    if model_type == "deberta-v2":
        strategies |= {
            "position_buckets": st.sampled_from([-1, 8, 9]),
            "share_att_key": st.booleans(),
            "norm_rel_ebd": st.sampled_from(["none", "layer_norm"]),
            "conv_kernel_size": st.sampled_from([0, 1, 3, 5]),
            "conv_act": st.sampled_from(["tanh", "gelu"]),
            "conv_groups": st.sampled_from([1, 2]),
        }
    drawn = {key: data.draw(strategy) for key, strategy in strategies.items()}
    return drawn | {"legacy": drawn["embedding_size"] != width or data.draw(st.booleans())}


def drawn_spec(data: st.DataObject, task: str) -> TaskSpec:
    """Return the task, with 1 to 3 labels where a text has one."""
    labels = ("a", "b", "c")[: data.draw(st.integers(1, 3))]
    return replace(SPECS[task], labels=labels) if task == "classification" else SPECS[task]


def our_model(config: BertConfig, spec: TaskSpec) -> BertHead:
    if spec.task in ("classification", "ner"):
        head: type = (
            heads.BertForSequenceClassification
            if spec.task == "classification"
            else heads.BertForTokenClassification
        )
        model: BertHead = head(config, len(spec.labels))
    else:
        model = getattr(heads, ARCHITECTURES[spec.task].replace("BertModel", "BertForSimilarity"))(config)
    return model.eval()


def our_outputs(model: BertHead, spec: TaskSpec, ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
    encoder = model.bert if spec.task == "similarity" else model
    found: Tensor = encoder(ids, segments, mask)
    return found


def batch(config: BertConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and segment ids (B, T) of texts of LENGTHS, all but the last with a second segment."""
    drawn, at = torch.Generator().manual_seed(3), torch.arange(max(LENGTHS)).expand(len(LENGTHS), -1)
    mask = (at < torch.tensor(LENGTHS)[:, None]).long()
    ids = torch.randint(5, config.vocab_size, mask.shape, generator=drawn)
    ids = ids.masked_fill(mask == 0, config.pad_token_id)
    return ids, mask, (at > 3).long()


def real(values: Tensor, spec: TaskSpec, mask: Tensor) -> Tensor:
    """Return the values at tokens: what stands at padding means nothing."""
    by_token = spec.task in ("ner", "qa", "similarity", "fill_mask")
    return values[mask.bool()] if by_token else values.flatten()


@pytest.mark.parametrize(("task", "model_type"), SERVED)
@settings(max_examples=3, phases=PHASES)
@given(data=st.data())
def test_answers_gradients_and_what_is_saved_are_those_of_transformers(
    task: str, model_type: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, spec = tmp_path_factory.mktemp("drawn"), drawn_spec(data, task)
    theirs = write_relative(folder / "base", model_type, spec, **drawn_changes(data, model_type))
    config = BertConfig.read(folder / "base")
    ours = our_model(config, spec)
    assert load_into(ours, folder / "base") == []
    loaded = saved_and_loaded(ours, model_type, folder, spec)
    before, after = read_weights(folder / "base"), read_weights(folder / "saved")
    kept = {name for name in before if task != "similarity" or "pooler" not in name}
    assert kept == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in kept)
    assert BertConfig.read(folder / "saved") == config
    ids, mask, segments = batch(config)
    # In float64: in float32 two orders of the same sum can lie on two sides of a ReLU's kink.
    ours, theirs = ours.double(), theirs.double()
    found = real(our_outputs(ours, spec, ids, mask, segments), spec, mask)
    expected = real(their_outputs(theirs, ids, mask, segments), spec, mask).view_as(found)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        again = real(their_outputs(loaded.double(), ids, mask, segments), spec, mask)
    torch.testing.assert_close(again.view_as(found), found, atol=1e-5, rtol=1e-5)
    drawn = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=found.dtype)
    (found * drawn).sum().backward()
    (expected * drawn).sum().backward()
    their_gradients = gradients(theirs, config)
    # A key's bias has none but by rounding, in the measure of the others.
    largest = max(float(gradient.abs().max()) for gradient in their_gradients.values())
    compared = 0
    for name, parameter in ours.named_parameters():
        if parameter.requires_grad and (their := their_gradients.get(name)) is not None:
            assert parameter.grad is not None
            assert torch.allclose(parameter.grad, their, atol=1e-6 * largest, rtol=1e-4), name
            compared += 1
    assert compared == len(their_gradients)


def saved_and_loaded(
    ours: BertHead, model_type: str, folder: Path, spec: TaskSpec
) -> transformers.PreTrainedModel:
    """Save a model; return what transformers loads, of the class of the family, with nothing left over."""
    save_checkpoint(ours, folder / "saved", ARCHITECTURES[spec.task], label_maps(spec))
    name = CLASSES.get(model_type, "Bert") + ARCHITECTURES[spec.task].removeprefix("Bert")
    values = json.loads((folder / "saved" / "config.json").read_text(encoding="utf-8"))
    assert (values["model_type"], values["architectures"]) == (model_type, [name])
    loaded, report = getattr(transformers, name).from_pretrained(folder / "saved", output_loading_info=True)
    if spec.task == "similarity":  # whose pooler nothing reads
        parts = {f"pooler.{part}{kind}" for part in ("", "dense.") for kind in ("weight", "bias")}
        report["missing_keys"] -= parts
    assert not any(report.values()), report
    model: transformers.PreTrainedModel = loaded.eval()
    return model


def is_tied(name: str) -> bool:
    """Tell whether a tensor is another one under a second name, by BERT's names."""
    return name.startswith("cls.predictions.decoder.")


def gradients(model: torch.nn.Module, config: BertConfig) -> dict[str, Tensor]:
    """Return the gradients of a model of transformers by BERT's names, of what BERT has too."""
    found = {
        config.family.bert_name(name): parameter.grad
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.grad is not None and not is_tied(config.family.bert_name(name))
    }
    family = config.family
    if family.joined:
        found = family.split_projections(found, config.num_attention_heads)
        found = {name: gradient for name, gradient in found.items() if not name.endswith(FROZEN)}
    found.pop(TASK_IDS, None)  # it moves with the segments
    if not config.has_segments:
        found.pop(SEGMENTS, None)  # they move with the positions
    if POSITIONS in found:
        found[POSITIONS] = found[POSITIONS][-config.max_position_embeddings :]
    return found


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [*((name, {}) for name in FAMILY_NAMES), ("deberta-v2", {"conv_kernel_size": 5, "conv_groups": 2})],
)
def test_a_text_in_a_packed_row_is_read_as_alone(
    model_type: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    spec = SPECS["similarity"]
    write_relative(tmp_path, model_type, spec, **changes)
    config = BertConfig.read(tmp_path)
    model = our_model(config, spec)
    load_into(model, tmp_path)
    body = model.bert
    lengths = (20, 9, 1)
    ids = torch.randint(5, config.vocab_size, (1, sum(lengths)), generator=torch.Generator().manual_seed(3))
    texts = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    places = torch.cat([torch.arange(length) for length in lengths])[None]
    with torch.no_grad():
        packed = body(ids, texts % 2, texts[:, :, None] == texts[:, None], places)
        for number in range(len(lengths)):
            its = texts[0] == number
            alone = body(ids[:, its], (texts % 2)[:, its])
            torch.testing.assert_close(packed[:, its], alone, atol=1e-5, rtol=1e-5)


def label_maps(spec: TaskSpec) -> dict[str, Any]:
    return {"id2label": {str(n): label for n, label in enumerate(spec.labels)}} if spec.labels else {}


@pytest.mark.parametrize(("task", "model_type"), [pair for pair in SERVED if pair[1] != "bert"])
def test_the_task_is_found_without_a_task_json(task: str, model_type: str, tmp_path: Path) -> None:
    write_relative(tmp_path, model_type, SPECS[task])
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.spec.task, checkpoint.spec.labels) == (task, SPECS[task].labels)
    assert {name for name, _ in needed_shapes(checkpoint.config, checkpoint.spec)} <= set(checkpoint.weights)


@pytest.mark.parametrize("model_type", FAMILY_NAMES)
def test_what_a_config_leaves_out_is_the_default_of_transformers(model_type: str) -> None:
    whole = transformers.AutoConfig.for_model(model_type).to_dict()
    assert BertConfig.from_dict({"model_type": model_type}) == BertConfig.from_dict(whole)


@pytest.mark.parametrize("model_type", FAMILY_NAMES)
def test_a_bare_body_needs_no_prefix(model_type: str, tmp_path: Path) -> None:
    model = write_relative(tmp_path / "bare", model_type, SPECS["similarity"])
    values = json.loads((tmp_path / "bare" / "config.json").read_text(encoding="utf-8"))
    family = BertConfig.read(tmp_path / "bare").family
    bare = safetensors.numpy.load_file(tmp_path / "bare" / "model.safetensors")
    assert not any(name.startswith(family.prefix) for name in bare)
    prefixed = {f"{family.prefix}{name}": tensor for name, tensor in bare.items()}
    named = family.bert_weights(bare, values)
    assert named.keys() == family.bert_weights(prefixed, values).keys()
    assert named.keys() >= dict(needed_shapes(BertConfig.read(tmp_path / "bare"), SPECS["similarity"])).keys()
    own = family.own_weights(named, "BertModel", asdict(BertConfig.read(tmp_path / "bare")))
    theirs = {f"{family.prefix}{name}" for name, _ in model.named_parameters() if "pooler" not in name}
    kept = {name for name in own if "pooler" not in name}
    assert kept == theirs - {f"{family.prefix}embeddings.task_type_embeddings.weight"}


def test_an_old_ernie_has_the_prefix_of_bert(tmp_path: Path) -> None:
    write_relative(tmp_path, "ernie", SPECS["ner"])
    before, file = read_weights(tmp_path), tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    safetensors.numpy.save_file({n.replace("ernie.", "bert."): x for n, x in tensors.items()}, file)
    after = read_weights(tmp_path)
    assert all(np.array_equal(before[name], after[name]) for name in before | after)


def test_a_discriminator_is_a_body_and_no_language_model(tmp_path: Path) -> None:
    config = transformers.ElectraConfig(**SHAPES["electra"], vocab_size=len(vocabulary()))
    transformers.ElectraForPreTraining(config).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary()), encoding="utf-8")
    assert read_checkpoint(tmp_path, stated=Stated(pooling="cls")).spec.task == "similarity"
    head = load_into(our_model(BertConfig.read(tmp_path), SPECS["classification"]), tmp_path)
    assert sorted(head) == [
        *(f"bert.pooler.dense.{kind}" for kind in ("bias", "weight")),
        *(f"classifier.{kind}" for kind in ("bias", "weight")),
    ]
    with pytest.raises(CheckpointError, match="say --pooling mean, or another, to export its embeddings"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("file", [{"type_vocab_size": 2, "position_biased_input": True}, {}])
def test_a_head_for_masks_is_found_by_its_tensors(file: dict[str, Any], tmp_path: Path) -> None:
    write_relative(tmp_path, "deberta", SPECS["fill_mask"], legacy=False, max_position_embeddings=150, **file)
    # As microsoft/deberta-base is published: the config does not say which form the head has.
    config_file = tmp_path / "config.json"
    values = json.loads(config_file.read_text(encoding="utf-8"))
    config_file.write_text(
        json.dumps({key: value for key, value in values.items() if key != "legacy"}), encoding="utf-8"
    )
    model = our_model(BertConfig.read(tmp_path), SPECS["fill_mask"])
    assert load_into(model, tmp_path) == []
    save_checkpoint(model, tmp_path / "saved", "BertForMaskedLM", {})
    theirs, report = transformers.DebertaForMaskedLM.from_pretrained(
        tmp_path / "saved", output_loading_info=True
    )
    assert not any(report.values()), report
    ids, mask, segments = batch(model.config)
    with torch.no_grad():
        expected = their_outputs(theirs.eval(), ids, mask, segments)[mask.bool()]
        torch.testing.assert_close(model(ids, segments, mask)[mask.bool()], expected, atol=1e-5, rtol=1e-5)


def test_a_discriminator_of_deberta_fills_no_masks(tmp_path: Path) -> None:
    write_relative(tmp_path, "deberta-v2", SPECS["fill_mask"], legacy=False)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    found = {"mask_predictions.dense.weight": np.ones((32, 32), np.float32)}
    safetensors.numpy.save_file({**tensors, **found}, file)
    with pytest.raises(CheckpointError, match="say --pooling mean, or another, to export its embeddings"):
        read_checkpoint(tmp_path)
    TaskSpec("fill_mask", max_tokens=64).write(tmp_path)
    with pytest.raises(CheckpointError, match="trained to find replaced pieces, and to fill no masks"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pos_att_type": "c2p|p2p"}, "read are c2p, p2c"),
        ({"pos_att_type": None}, "they contradict each other"),
        ({"relative_attention": False}, "they contradict each other"),
        ({"talking_head": True}, "attention whose heads are mixed"),
        ({"attention_head_size": 7}, "attention_head_size is 7; only 64"),
        ({"pooler_hidden_size": 7}, "pooler_hidden_size is 7; only 768"),
        ({"pooler_hidden_act": "mish"}, "pooler_act is 'mish'"),
        ({"share_att_key": "yes"}, r"share_att_key \('yes'\) must be true or false"),
        ({"position_buckets": 1}, r"position_buckets \(1\)"),
        ({"position_buckets": 2000}, r"position_buckets \(2000\)"),
        ({"conv_kernel_size": 4}, r"conv_kernel_size \(4\) must be odd"),
        ({"conv_kernel_size": 3, "conv_groups": 5}, r"conv_groups \(5\) must divide"),
    ],
)
def test_another_attention_than_debertas_is_refused(changes: dict[str, Any], reason: str) -> None:
    values = {**SHAPES["deberta-v2"], "model_type": "deberta-v2", "hidden_size": 768}
    values["num_attention_heads"] = 12
    with pytest.raises((ConfigError, UnsupportedModelError), match=reason):
        BertConfig.from_dict(values | changes)


@pytest.mark.parametrize("model_type", FAMILY_NAMES)
def test_a_decoder_of_its_own_is_refused(model_type: str, tmp_path: Path) -> None:
    write_relative(tmp_path, model_type, SPECS["fill_mask"], tie_word_embeddings=False)
    with pytest.raises(UnsupportedModelError, match=r"decoder\.weight is not the word embedding"):
        read_checkpoint(tmp_path)
    config = BertConfig.read(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"decoder\.weight is not the word embedding"):
        load_into(our_model(config, SPECS["fill_mask"]), tmp_path)


@pytest.mark.parametrize(
    "name", ["gelu_python", "gelu_10", "gelu_fast", "gelu_accurate", "gelu_python_tanh", "swish"]
)
def test_other_names_of_an_activation_are_read(name: str) -> None:
    ours = activation(BertConfig.from_dict({"hidden_act": name}).hidden_act)
    x = torch.linspace(-6, 6, 1000)
    torch.testing.assert_close(ours(x), transformers.activations.ACT2FN[name](x), atol=2e-6, rtol=0)


def test_an_ernie_whose_task_has_no_tensor_is_refused(tmp_path: Path) -> None:
    write_relative(tmp_path, "ernie", SPECS["ner"], use_task_id=False)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text(encoding="utf-8")) | {"use_task_id": True}
    file.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(CheckpointError, match="use_task_id is true, and the file has no tensor"):
        read_weights(tmp_path)


def test_a_choice_that_is_scored_otherwise_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="summary_type is 'mean'; only 'first' is read"):
        BertConfig.from_dict({"model_type": "electra", "summary_type": "mean"})


def test_rates_of_dropout_are_kept() -> None:
    rates = {"seq_classif_dropout": 0.3, "qa_dropout": 0.25, "dropout": 0.15}
    config = BertConfig.from_dict({"model_type": "distilbert", **rates})
    assert (config.pooled_dropout, config.token_dropout, config.qa_dropout) == (0.3, 0.15, 0.25)
    assert config.to_dict().items() >= rates.items()
    albert = BertConfig.from_dict({"model_type": "albert"})
    assert (albert.pooled_dropout, albert.token_dropout, albert.hidden_dropout_prob) == (0.1, 0.1, 0.0)


def test_layers_run_in_the_order_of_their_groups() -> None:
    shape = {"model_type": "albert", "num_hidden_layers": 5, "num_hidden_groups": 2}
    assert BertConfig.from_dict(shape).layer_order == (0, 0, 0, 1, 1)
    config = BertConfig.from_dict({**shape, "inner_group_num": 2})
    assert config.layer_order == (0, 1, 0, 1, 0, 1, 2, 3, 2, 3)
    assert config.num_layer_weights == 4
    assert BertConfig().layer_order == tuple(range(12))


def test_what_a_family_lacks_is_zero_and_is_not_trained(tmp_path: Path) -> None:
    write_relative(tmp_path, "distilbert", SPECS["ner"])
    config = BertConfig.read(tmp_path)
    assert read_weights(tmp_path)[SEGMENTS].tolist() == [[0.0] * 32] * 2
    for model in (our_model(config, SPECS["ner"]), our_model(config, SPECS["classification"])):
        table = model.get_parameter("bert.embeddings.token_type_embeddings.weight")
        assert not table.requires_grad and not table.any()


def test_the_common_names_of_a_shape_are_read_too() -> None:
    config = BertConfig.from_dict(
        {"model_type": "distilbert", "hidden_size": 24, "n_heads": 3, "num_hidden_layers": 1}
    )
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (24, 3, 1)
    assert BertConfig.from_dict({"model_type": "distilbert", "layer_norm_eps": 1e-3}).layer_norm_eps == 1e-12
    assert BertConfig.from_dict(config.to_dict()) == config


def test_a_missing_tensor_has_the_name_that_it_has_in_the_file(tmp_path: Path) -> None:
    write_relative(tmp_path, "distilbert", SPECS["similarity"])
    TaskSpec("classification", ("a", "b"), max_tokens=64).write(tmp_path)
    with pytest.raises(CheckpointError, match=r"no tensor 'pre_classifier\.weight'"):
        read_checkpoint(tmp_path)


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_relative(tmp_path, "roberta", SPECS["ner"])
    (tmp_path / "vocab.txt").rename(tmp_path / "merges.txt")
    with pytest.raises(
        CheckpointError, match=r"holds none of tokenizer.json, vocab.txt, .*no other tokenizer"
    ):
        read_checkpoint(tmp_path)


def test_a_body_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    write_relative(tmp_path, "bert", SPECS["ner"])
    file = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    bare = {"encoder.layer.0.output.dense.bias": np.ones(32, np.float32)}
    safetensors.numpy.save_file({**tensors, **bare}, file)
    with pytest.raises(
        CheckpointError, match=r"encoder\.layer\.0\.output\.dense\.bias', which are one tensor"
    ):
        read_weights(tmp_path)
