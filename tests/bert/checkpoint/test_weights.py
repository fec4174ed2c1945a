"""Checkpoints as numpy weights: names, types, shards."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from bert.checkpoint.weights import read_checkpoint, read_safetensors, read_weights, release_pages
from bert.config import BertConfig
from bert.errors import CheckpointError, UnsupportedModelError
from bert.nn import checkpoint as torch_checkpoint
from bert.nn.checkpoint import save_checkpoint
from bert.nn.heads import BertForPreTraining
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from tests.support.hub_checkpoints import PIECES, adapter_of, assert_same, model, save

# peft asks transformers for a name that is going away.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save(tmp_path / "base")


def test_whole_weights_take_no_base(base: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds whole weights, and a base \(.*\) is for adapters"):
        read_checkpoint(base, base)


def test_a_task_alone_means_its_base_as_it_is(base: Path, tmp_path: Path) -> None:
    TaskSpec("similarity", max_tokens=16, base={"name": str(base), "sha256": ""}).write(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.spec.max_tokens == 16
    assert_same(checkpoint.weights, model().state_dict())


def test_old_and_bare_names_become_todays(tmp_path: Path) -> None:
    tensors = {
        "embeddings.LayerNorm.gamma": torch.ones(2),
        "embeddings.LayerNorm.beta": torch.zeros(2),
        "encoder.layer.0.output.dense.weight": torch.ones(2, 2),
        "embeddings.position_ids": torch.arange(3),
        "classifier.weight": torch.ones(1, 2),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert set(read_weights(tmp_path)) == {
        "bert.embeddings.LayerNorm.weight",
        "bert.embeddings.LayerNorm.bias",
        "bert.encoder.layer.0.output.dense.weight",
        "classifier.weight",
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_float_type_is_read_as_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.randn(3, 5).to(dtype)
    save_file({"x": tensor}, tmp_path / "w.safetensors")
    found = read_safetensors(tmp_path / "w.safetensors")["x"]
    assert found.dtype == np.float32 and np.array_equal(found, tensor.float().numpy())


def test_floats_of_8_bits_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"n": torch.arange(3), "x": torch.ones(3).to(torch.float8_e4m3fn)}, tmp_path / "w.safetensors")
    with pytest.raises(
        CheckpointError, match=r"w\.safetensors: tensor 'x' is of type F8_E4M3, which is not read"
    ):
        read_safetensors(tmp_path / "w.safetensors")


def test_released_weights_are_read_from_their_file_again(tmp_path: Path) -> None:
    save_file({"weight": torch.arange(2.0**20)}, tmp_path / "model.safetensors")
    weights = read_safetensors(tmp_path / "model.safetensors")
    before, kept = weights["weight"].sum(), weights["weight"][:4] + 1
    release_pages(weights | {"other": kept})
    assert weights["weight"].sum() == before
    assert kept.tolist() == [1, 2, 3, 4]


def test_shards_are_read_together(tmp_path: Path) -> None:
    save(tmp_path)
    whole = read_checkpoint(tmp_path).weights
    (tmp_path / "model.safetensors").unlink()
    model().save_pretrained(tmp_path, max_shard_size="5KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert_same(whole, model().state_dict())
    assert_same(read_checkpoint(tmp_path).weights, model().state_dict())


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ([], "is not an index of weights"),
        ({}, "is not an index of weights"),
        ({"weight_map": ["a"]}, "is not an index of weights"),
        ({"weight_map": {}}, "must name a file for each tensor"),
        ({"weight_map": {"a": 5}}, "must name a file for each tensor"),
        ({"weight_map": {"a": "../a.safetensors"}}, "names files outside its folder"),
        ({"weight_map": {"a": "a.safetensors"}}, r"a\.safetensors is missing"),
    ],
)
def test_an_index_that_is_none_is_refused(index: Any, why: str, base: Path) -> None:
    (base / "model.safetensors").unlink()
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=why):
        read_checkpoint(base)
    with pytest.raises(CheckpointError, match=why):
        torch_checkpoint.read_weights(base)


def test_both_readers_find_the_same_names(tmp_path: Path) -> None:
    body = ("embeddings.LayerNorm.gamma", "encoder.x.beta", "pooler.y", "bert.z")
    names = (*body, "classifier.weight", "cls.predictions.bias")
    dropped = ("bert.embeddings.token_type_ids", "embeddings.position_ids", "cls.predictions.decoder.bias")
    save_file({name: torch.ones(2) for name in (*names, *dropped)}, tmp_path / "model.safetensors")
    found = set(read_weights(tmp_path))
    assert found == set(torch_checkpoint.read_weights(tmp_path))
    assert len(found) == len(names) and "bert.embeddings.LayerNorm.weight" in found


def test_a_decoder_that_is_not_tied_has_its_own_bias(tmp_path: Path) -> None:
    head, decoder = "cls.predictions.bias", "cls.predictions.decoder.bias"
    save_file({head: torch.zeros(2), decoder: torch.ones(2)}, tmp_path / "model.safetensors")
    for tied in (True, False):
        (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
        assert read_weights(tmp_path)[head].tolist() == [float(not tied)] * 2
    save_file({decoder: torch.ones(2)}, tmp_path / "model.safetensors")
    assert read_weights(tmp_path)[head].tolist() == [1, 1]


def test_a_checkpoint_of_the_hub_says_its_task_itself(tmp_path: Path) -> None:
    save(tmp_path, id2label={0: "down", 1: "up", 2: "level"}, problem_type="multi_label_classification")
    (tmp_path / "task.json").unlink()
    spec = read_checkpoint(tmp_path).spec
    assert (spec.task, spec.labels, spec.problem_type) == (
        "classification",
        ("down", "up", "level"),
        "multi_label",
    )
    assert spec.max_tokens == 32


def save_pretrained(folder: Path, architecture: str) -> dict[str, torch.Tensor]:
    """Write a checkpoint with the MLM head as the hub has them, without task.json; return its weights."""
    config = model().config
    pretrained = getattr(transformers, architecture)(config)
    pretrained.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    weights: dict[str, torch.Tensor] = pretrained.state_dict()
    return {name: tensor.clone() for name, tensor in weights.items()}


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertForPreTraining"])
def test_a_pretrained_checkpoint_of_the_hub_fills_masks(architecture: str, tmp_path: Path) -> None:
    weights = save_pretrained(tmp_path, architecture)
    assert read_checkpoint(tmp_path).spec == TaskSpec("fill_mask", max_tokens=32)
    save_file(weights, tmp_path / "model.safetensors")  # the decoder and its bias are there again by name
    checkpoint = read_checkpoint(tmp_path)
    assert "cls.predictions.decoder.weight" in checkpoint.weights
    weights["cls.predictions.decoder.weight"] += 1e-3
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"decoder\.weight is not the word embedding"):
        read_checkpoint(tmp_path)


def test_what_pretraining_saves_fills_masks(tmp_path: Path) -> None:
    config = BertConfig(7, 16, 2, 2, 24, max_position_embeddings=32)
    save_checkpoint(BertForPreTraining(config), tmp_path, "BertForPreTraining", {})
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    assert read_checkpoint(tmp_path).spec == TaskSpec("fill_mask", max_tokens=32)


def test_a_masked_model_without_its_head_is_refused(tmp_path: Path) -> None:
    weights = save_pretrained(tmp_path, "BertForMaskedLM")
    save_file({k: v for k, v in weights.items() if "cls." not in k}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no tensor 'cls\.predictions\..*a fill_mask model needs"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda w: w.pop("classifier.bias"), "has no tensor 'classifier.bias', which a classification model"),
        (lambda w: w.update({"classifier.weight": torch.ones(3, 16)}), r"\(3, 16\); config and task ask for"),
        (lambda w: w["bert.pooler.dense.bias"].fill_(float("nan")), "not numbers"),
    ],
)
def test_weights_that_do_not_fit_are_named(spoil: Any, why: str, base: Path) -> None:
    weights = {name: tensor.clone() for name, tensor in model().state_dict().items()}
    spoil(weights)
    save_file(weights, base / "model.safetensors")
    with pytest.raises(CheckpointError, match=why):
        read_checkpoint(base)


@pytest.mark.parametrize("alone", [True, False], ids=["whole", "adapter"])
def test_a_length_past_the_models_positions_is_refused(alone: bool, base: Path, tmp_path: Path) -> None:
    if not alone:
        adapter_of(base, tmp_path / "adapter")
    folder = base if alone else tmp_path / "adapter"
    TaskSpec("classification", ("no", "yes"), max_tokens=99999).write(folder)
    with pytest.raises(
        CheckpointError, match=r"max_tokens \(99999\) must be at most the model's positions \(32\)"
    ):
        read_checkpoint(folder, None if alone else base)


@pytest.mark.parametrize(
    ("files", "remark"),
    [
        ({}, "vocab.txt has no capitals, so texts are lower-cased"),
        ({"vocab.txt": "\n".join([*PIECES[:-1], "B"])}, "vocab.txt has capitals, so texts keep theirs"),
        ({"tokenizer_config.json": '{"do_lower_case": false}'}, ""),
    ],
)
def test_an_assumed_case_is_told(files: dict[str, str], remark: str, base: Path) -> None:
    for name, content in files.items():
        (base / name).write_text(content, encoding="utf-8")
    found = [text for text in read_checkpoint(base).remarks if "vocab.txt" in text]
    assert [text.split(";")[0] for text in found] == [remark] * bool(remark)
    Tokenizer.load(base).save(base)
    assert not any("vocab.txt" in text for text in read_checkpoint(base).remarks)


def test_a_tokenizer_of_another_model_is_refused(base: Path) -> None:
    (base / "vocab.txt").write_text("\n".join([*PIECES, "c"]))
    with pytest.raises(
        CheckpointError,
        match="the tokenizer's ids go up to 7, and the model has 7 pieces: they do not belong",
    ):
        read_checkpoint(base)


def edit_tokenizer(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Write `tokenizer.json` in place of `vocab.txt`, changed by `edit`."""
    Tokenizer.load(folder).save(folder)
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    edit(content)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content["model"]["vocab"].update({PIECES[-1]: 5000}),
        lambda content: content["added_tokens"].append(
            content["added_tokens"][0] | {"id": 5000, "content": "<x>"}
        ),
        lambda content: content["post_processor"]["special_tokens"]["[SEP]"].update(ids=[5000]),
    ],
    ids=["piece", "added piece", "special token"],
)
def test_an_id_past_the_models_rows_is_refused(edit: Callable[[dict[str, Any]], object], base: Path) -> None:
    edit_tokenizer(base, edit)
    with pytest.raises(CheckpointError, match=r"ids go up to (5000|7), and the model has 7 pieces"):
        read_checkpoint(base)


def test_a_segment_past_the_models_rows_is_refused(base: Path) -> None:
    def edit(content: dict[str, Any]) -> None:
        for part in content["post_processor"]["pair"][3:]:
            next(iter(part.values()))["type_id"] = 5

    edit_tokenizer(base, edit)
    with pytest.raises(CheckpointError, match="segments go up to 5, and the model has 2"):
        read_checkpoint(base)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({"down": 0, "up": 1}, "the keys of id2label must be 0, 1, 2 ...: down, up"),
        ({"0": "down", "1": None}, "id2label must name a label for each number"),
        ({"0": "down", "1": True}, "id2label must name a label for each number"),
        ({"zero": "down", "one": "up"}, "the keys of id2label must be 0, 1, 2 ...: zero, one"),
        ({"0": "down", "2": "up"}, "the keys of id2label must be 0, 1, 2 ...: 0, 2"),
        (["down", "up"], "id2label must name a label for each number"),
    ],
)
def test_labels_of_the_hub_that_have_no_numbers_are_refused(names: Any, why: str, base: Path) -> None:
    (base / "task.json").unlink()
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    (base / "config.json").write_text(json.dumps(config | {"id2label": names}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=why):
        read_checkpoint(base)


def test_damaged_weights_are_refused(base: Path) -> None:
    (base / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        read_checkpoint(base)
    (base / "model.safetensors").unlink()
    (base / "task.json").unlink()
    (base / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is not a file that torch\.save wrote"):
        read_checkpoint(base)
    (base / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"holds none of model\.safetensors, pytorch_model\.bin"):
        read_checkpoint(base)


def test_layers_that_the_config_does_not_know_are_refused(base: Path) -> None:
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    (base / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"layer\.1\..*of 1 layers"):
        read_checkpoint(base)
