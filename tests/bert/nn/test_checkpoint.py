"""Checkpoint folders: transformers' and ours read each other's, and what does not fit is refused."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from bert.config import BertConfig
from bert.errors import CheckpointError, UnsupportedModelError
from bert.nn.checkpoint import load_into, read_weights, save_checkpoint
from bert.nn.heads import BertForMaskedLM, BertForSequenceClassification, BertForSimilarity, BertHead
from tests.support.bert_reference import (
    HEADS,
    LABELS,
    assert_same,
    fill,
    labels_of,
    our_logits,
    random_batch,
    small_config,
    their_logits,
    twins,
)

CONFIG = small_config(21, num_hidden_layers=2)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
EXTRA = {"id2label": {str(i): f"label {i}" for i in range(LABELS)}}


class Planted:
    """A pickle that leaves a trace when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return self.file.write_text, ("code was run",)


def classifier(seed: int) -> BertForSequenceClassification:
    model = BertForSequenceClassification(CONFIG, LABELS)
    fill(model, seed)
    return model.eval()


@pytest.fixture
def source() -> BertForSequenceClassification:
    """The model that is saved."""
    return classifier(1)


@pytest.fixture
def folder(tmp_path: Path, source: BertForSequenceClassification) -> Path:
    save_checkpoint(source, tmp_path, "BertForSequenceClassification", EXTRA)
    return tmp_path


def rewrite(folder: Path, weights: dict[str, Tensor]) -> None:
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)


def assert_loads(folder: Path, source: BertHead) -> None:
    """Fail unless the folder gives a model of the same answers, with nothing left fresh."""
    target = classifier(2)
    batch = random_batch(CONFIG, 1)
    assert not torch.equal(target(*batch), source(*batch))
    assert load_into(target, folder) == []
    assert torch.equal(target(*batch), source(*batch))


@pytest.mark.parametrize("name", HEADS)
def test_transformers_loads_what_is_saved(name: str, tmp_path: Path) -> None:
    ours, _ = twins(name, CONFIG)
    # transformers gives every head of a config with three labels three outputs, the span head too.
    save_checkpoint(ours, tmp_path, name, EXTRA if labels_of(name) == LABELS else {})
    theirs, report = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    batch = random_batch(CONFIG, 1)
    for our, their in zip(our_logits(ours, batch), their_logits(theirs(**batch.theirs(name))), strict=True):
        assert_same(our, their)
    encoder = transformers.AutoModel.from_pretrained(tmp_path)
    assert_same(ours.bert(*batch), encoder(**batch.theirs("")).last_hidden_state)


def test_transformers_finds_the_class_and_the_labels(folder: Path) -> None:
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert theirs.config.architectures == ["BertForSequenceClassification"]
    assert theirs.config.id2label == {0: "label 0", 1: "label 1", 2: "label 2"}


def test_transformers_loads_a_similarity_model_as_an_encoder(tmp_path: Path) -> None:
    ours = BertForSimilarity(CONFIG).eval()
    fill(ours, 3)
    save_checkpoint(ours, tmp_path, "BertModel", {})
    theirs = transformers.AutoModel.from_pretrained(tmp_path, add_pooling_layer=False)
    batch = random_batch(CONFIG, 1)
    assert_same(ours.bert(*batch), theirs(**batch.theirs("")).last_hidden_state)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("shard", ["1GB", "5KB"])
def test_what_transformers_saves_is_loaded(name: str, shard: str, tmp_path: Path) -> None:
    source, theirs = twins(name, CONFIG)
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / INDEX).is_file() == (shard == "5KB")
    ours = HEADS[name](BertConfig.read(tmp_path)).eval()
    assert load_into(ours, tmp_path) == []
    batch = random_batch(CONFIG, 1)
    for our, before in zip(our_logits(ours, batch), our_logits(source, batch), strict=True):
        assert torch.equal(our, before)


def test_what_is_saved_is_loaded_again(folder: Path, source: BertHead) -> None:
    assert_loads(folder, source)
    assert BertConfig.read(folder) == CONFIG


def test_names_of_tensorflow_without_prefix_and_with_a_buffer_are_read(
    folder: Path, source: BertHead
) -> None:
    old = {
        name.removeprefix("bert.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(folder / WEIGHTS).items()
    }
    rewrite(folder, {**old, "embeddings.position_ids": torch.arange(9)[None]})
    assert_loads(folder, source)


def test_a_missing_pooler_and_head_stay_fresh_and_are_named(folder: Path, source: BertHead) -> None:
    weights = load_file(folder / WEIGHTS)
    rewrite(folder, {name: t for name, t in weights.items() if "encoder" in name or "embeddings" in name})
    target = classifier(2)
    fresh = target.classifier.weight.clone()
    names = ["bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"]
    assert load_into(target, folder) == names
    assert torch.equal(target.classifier.weight, fresh)
    batch = random_batch(CONFIG, 1)
    assert torch.equal(target.bert(*batch), source.bert(*batch))


def test_tensors_of_other_heads_are_left_out(folder: Path, source: BertHead) -> None:
    weights = load_file(folder / WEIGHTS)
    rewrite(folder, {**weights, "cls.predictions.bias": torch.zeros(3), "qa_outputs.bias": torch.zeros(2)})
    assert_loads(folder, source)


def test_half_precision_becomes_float32(folder: Path) -> None:
    rewrite(folder, {name: tensor.half() for name, tensor in load_file(folder / WEIGHTS).items()})
    target = classifier(2)
    load_into(target, folder)
    assert target.classifier.weight.dtype == torch.float32
    assert torch.equal(target.classifier.weight, target.classifier.weight.half().float())


def test_a_pickle_of_anything_but_tensors_is_refused_and_never_run(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    trace = folder / "trace"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Planted(trace)))
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin asks for .*nothing but tensors"):
        load_into(classifier(2), folder)
    assert not trace.exists()
    pickle.loads((folder / "pytorch_model.bin").read_bytes())
    assert trace.exists()  # so it would have shown


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_that_torch_saved_are_read(zipped: bool, folder: Path, source: BertHead) -> None:
    (folder / WEIGHTS).unlink()
    torch.save(source.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert_loads(folder, source)


def test_a_pickle_beside_safetensors_does_no_harm(folder: Path, source: BertHead) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Planted(folder / "trace")))
    assert_loads(folder, source)
    assert not (folder / "trace").exists()


def test_missing_and_damaged_files_are_named(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        read_weights(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        read_weights(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not an index of weights"),
        ("[]", "is not an index of weights"),
        ('{"weight_map": {"a": "part.safetensors"}}', r"part\.safetensors is missing"),
        ('{"weight_map": {"a": "../other/model.safetensors"}}', "names files outside its folder"),
    ],
)
def test_a_broken_index_is_named(folder: Path, content: str, reason: str) -> None:
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=reason):
        read_weights(folder)


def test_a_tensor_of_another_shape_says_both(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    rewrite(folder, {**weights, "classifier.weight": torch.zeros(5, CONFIG.hidden_size)})
    wanted = (
        rf"classifier\.weight has shape \(5, {CONFIG.hidden_size}\), expected \(3, {CONFIG.hidden_size}\)"
    )
    with pytest.raises(CheckpointError, match=wanted):
        load_into(classifier(2), folder)


def test_a_missing_part_of_the_encoder_is_named(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights["bert.encoder.layer.1.attention.self.key.bias"]
    rewrite(folder, weights)
    with pytest.raises(CheckpointError, match=r"layer\.1\.attention\.self\.key\.bias is missing"):
        load_into(classifier(2), folder)


def test_a_layer_that_the_config_does_not_have_is_refused(folder: Path) -> None:
    # Else half of a model would be loaded in silence.
    weights = load_file(folder / WEIGHTS)
    extra = {
        name.replace("layer.1.", "layer.2."): t.clone() for name, t in weights.items() if "layer.1." in name
    }
    rewrite(folder, {**weights, **extra})
    with pytest.raises(CheckpointError, match=r"layer\.2\.\S+ is not in BERT.*; and 11 more"):
        load_into(classifier(2), folder)


def test_nothing_is_loaded_from_a_folder_that_is_refused(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    rewrite(folder, {**weights, "classifier.weight": torch.zeros(5, 5)})
    target = classifier(2)
    with pytest.raises(CheckpointError):
        load_into(target, folder)
    assert torch.equal(target.classifier.bias, classifier(2).classifier.bias)


def test_a_decoder_may_be_in_the_file_if_it_is_the_embedding(tmp_path: Path) -> None:
    source = BertForMaskedLM(CONFIG).eval()
    fill(source, 4)
    save_checkpoint(source, tmp_path, "BertForMaskedLM", {})
    weights = load_file(tmp_path / WEIGHTS)
    table = weights["bert.embeddings.word_embeddings.weight"]
    rewrite(
        tmp_path,
        {
            **weights,
            "cls.predictions.decoder.weight": table.clone(),
            "cls.predictions.decoder.bias": weights["cls.predictions.bias"].clone(),
        },
    )
    target = BertForMaskedLM(CONFIG).eval()
    assert load_into(target, tmp_path) == []
    assert target.cls.predictions.decoder.weight is target.bert.embeddings.word_embeddings.weight
    assert torch.equal(target(*random_batch(CONFIG, 1)), source(*random_batch(CONFIG, 1)))
    rewrite(tmp_path, {**weights, "cls.predictions.decoder.weight": table + 1})
    with pytest.raises(UnsupportedModelError, match="is not the word embedding, as it is in plain BERT"):
        load_into(target, tmp_path)
    load_into(classifier(2), tmp_path)  # which has no decoder


def test_the_saved_file_holds_each_tensor_once(tmp_path: Path) -> None:
    model = BertForMaskedLM(CONFIG)
    save_checkpoint(model, tmp_path, "BertForMaskedLM", {"note": "kept"})
    stored = load_file(tmp_path / WEIGHTS)
    assert sum(t.numel() for t in stored.values()) == sum(p.numel() for p in model.parameters())
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["note"] == "kept"
