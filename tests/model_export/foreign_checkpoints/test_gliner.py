"""Folders of GLiNER: exported with parity to plain numpy, read as the hub has them, or refused with what to do.

Entities are compared with those of `gliner` 0.2.29 where BERT_GLINER_PYTHON is the Python of an environment that has it.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from bert.bundle import read_bundle
from bert.checkpoint.weights import read_checkpoint
from bert.errors import BertError, CheckpointError, ParityError
from bert.names import HubName
from bert.tasks.open_ner.decode import Choosing
from bert.tasks.open_ner.inputs import word_bounds
from bert.tasks.open_ner.task import OpenNerTask
from model_export.cli import main
from model_export.verify.agreement import entity_changes
from model_export.verify.precision import Fp32, LabelsFp32
from model_export.verify.texts import make_text, texts_file
from model_export.verify.verified_graph import ExportContext, build
from tests.support.hub_process import hub_variables, start
from tests.support.local_hub import commit_of, local_hub
from tests.support.open_ner import BODY, LABELS_BODY, PIECES, SPEC, find, write_bi_gliner, write_gliner
from tests.support.tiny import tiny_tokenizer, vocabulary

PYTHON = os.environ.get("BERT_GLINER_PYTHON", "")
WORDS = [
    *"person organization place date product event law money film song book disease drug gene animal plant".split(),  # noqa: SIM905
    *"vehicle weapon sport team award language religion URL colour quantity 食べ物 🙂".split(),  # noqa: SIM905
    *("place of birth", "e-mail address"),
]  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "spans": {"body": "bert", "hidden_size": 32, "max_width": 5},
    "narrow-spans": {"body": "deberta-v2", "hidden_size": 24, "max_width": 12},
    "plain-spans": {"body": "deberta-v2", "hidden_size": 32, "span_mode": "marker", "num_rnn_layers": 0},
    "labels-own-vector": {
        "body": "modernbert",
        "hidden_size": 16,
        "embed_ent_token": False,
        "num_rnn_layers": 0,
    },
    "words": {"body": "deberta-v2", "hidden_size": 32, "span_mode": "token_level"},
    "narrow-words": {"body": "bert", "hidden_size": 16, "span_mode": "token_level", "num_rnn_layers": 0},
    "two-lstms": {"body": "bert", "hidden_size": 32, "span_mode": "marker", "num_rnn_layers": 2},
    "bi-spans": {"body": "bert", "labels_body": "bert", "hidden_size": 32, "max_width": 5},
    "bi-plain-spans": {
        "body": "deberta-v2",
        "labels_body": "bert",
        "hidden_size": 24,
        "span_mode": "marker",
        "num_rnn_layers": 0,
    },
    "bi-same-width": {
        "body": "modernbert",
        "labels_body": "deberta-v2",
        "hidden_size": 40,
        "num_rnn_layers": 0,
    },
    "bi-words": {"body": "deberta-v2", "labels_body": "bert", "hidden_size": 24, "span_mode": "token_level"},
}
WAYS: list[dict[str, Any]] = [
    {"threshold": 0.5},
    {"threshold": 0.3, "flat_ner": False},
    {"threshold": 0.5, "multi_label": True},
]


@pytest.mark.parametrize("mode", ["markerV0", "marker", "token_level"])
def test_an_export_is_the_checkpoint_in_plain_numpy(mode: str, tmp_path: Path) -> None:
    write_gliner(tmp_path / "m", mode, has_pickle=mode == "marker")
    assert (
        main(["--checkpoint", str(tmp_path / "m"), "--out", str(tmp_path / "b"), "--precision", "fp32"]) == 0
    )
    manifest = read_bundle(tmp_path / "b").manifest
    assert manifest.parity["largest_difference"] < 1e-4 and manifest.parity["neighbours_difference"] < 1e-5
    assert manifest.task.label_prompt is not None and manifest.task.label_prompt.span_mode == mode
    assert "gliner_config.json" in manifest.source["files"]


def test_auto_judges_8_bits_by_entities(tmp_path: Path) -> None:
    write_gliner(tmp_path / "m")
    assert main(["--checkpoint", str(tmp_path / "m"), "--out", str(tmp_path / "b")]) == 0
    choice = read_bundle(tmp_path / "b").manifest.choice
    assert choice["tried"]["int8"]["measured"]["entities"] > 1000, (
        "the model is random, and many are near 0.5"
    )
    assert "entities differ from the checkpoint's" in choice["why"]


@pytest.mark.parametrize("mode", ["markerV0", "marker", "token_level"])
def test_in_8_bits_no_text_depends_on_its_neighbours(mode: str, tmp_path: Path) -> None:
    """Nor on its place in a batch: with the same labels its scores are the same to the bit."""
    write_gliner(tmp_path / "m", mode, num_rnn_layers=1)
    checkpoint = read_checkpoint(tmp_path / "m")
    context = ExportContext(checkpoint)
    graph = build(context, "int8")
    texts = context.texts
    alone, packed = graph.alone(texts), graph.packed(texts)
    assert all(np.array_equal(one, other) for one, other in zip(alone, packed, strict=True))
    assert all(
        np.array_equal(one, other) for one, other in zip(alone[::-1], graph.run(texts[::-1]), strict=True)
    )
    operators = graph.fused_operators["com.microsoft.MatMulIntegerToFloat"]
    assert operators > 2 * 6, "the head's layers of words are in 8 bits too"


def test_entities_of_either_graph_count() -> None:
    spec, tokenizer = SPEC["markerV0"], tiny_tokenizer()
    pieces = tokenizer.pieces(["the film was warm and good"])
    text = make_text(OpenNerTask().sample(tokenizer, pieces, spec)[0], "open_ner")
    assert text.rows is not None
    before = np.full((text.rows, 4), -9.0, np.float32)
    before[0, 0] = before[6, 1] = 3.0
    after = before.copy()
    after[0, 0], after[-1, 0], after[2, 0] = -1.0, 2.0, -0.1
    changes = entity_changes(spec, [text, text], [before, before], [before, after])
    assert (changes.what, changes.count, changes.changed) == ("entities", 5, 2)
    none = [np.full_like(before, -9.0)]
    with pytest.raises(ParityError, match="0 of 0 entities"):
        entity_changes(spec, [text], none, none).check(0.05)


@pytest.mark.parametrize("mode", ["markerV0", "marker", "token_level"])
def test_a_bi_encoder_is_exported_as_two_graphs(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bi_gliner(tmp_path / "m", mode)
    assert (
        main(["--checkpoint", str(tmp_path / "m"), "--out", str(tmp_path / "b"), "--precision", "fp32"]) == 0
    )
    assert "LSTM over the words is passed over" in capsys.readouterr().err
    bundle = read_bundle(tmp_path / "b")
    assert bundle.labels is not None
    for manifest in (bundle.manifest, bundle.labels.manifest):
        assert manifest.parity["largest_difference"] < 1e-4
    assert bundle.manifest.parity["neighbours_difference"] < 1e-5
    assert bundle.labels.manifest.task.pooling == "mean" and bundle.labels.model_path.is_file()
    assert bundle.manifest.source["labels"]["files"]["tokenizer.json"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels_encoder": None}, "labels_encoder .None. must be a name"),
        (
            {"labels_encoder_config": {"model_type": "t5"}},
            "the body that reads its labels is 't5'; read are bert",
        ),
        ({"labels_encoder_config": {**LABELS_BODY, "vocab_size": 3}}, "word_embeddings.weight' has shape"),
        ({"labels_encoder_config": None, "labels_encoder": "/nowhere"}, "/nowhere"),
        ({"hidden_size": 16}, "no tensor 'token_rep_layer.projection.weight'|has shape"),
        ({"fuse_layers": True}, "layers are fused"),
        ({"post_fusion_schema": "l2l"}, "fused with its labels"),
    ],
)
def test_what_is_not_read_of_a_bi_encoder_is_refused_by_name(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_bi_gliner(tmp_path / "m", **changed)
    with pytest.raises(BertError, match=f"(?s){message}"):
        read_checkpoint(tmp_path / "m")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "gliner_streaming_span"}, "model_type is 'gliner_streaming_span'"),
        (
            {"model_type": "gliner_uni_encoder_span_decoder"},
            "model_type is 'gliner_uni_encoder_span_decoder'",
        ),
        ({"model_type": "gliner_uni_encoder_token_relex"}, "model_type is 'gliner_uni_encoder_token_relex'"),
        ({"labels_decoder": "gpt2"}, "a decoder of labels"),
        ({"relations_layer": "biaffine"}, "a model of relations"),
        ({"fuse_layers": True}, "layers are fused"),
        ({"post_fusion_schema": "l2l"}, "fused with its labels"),
        ({"span_encoder_config": {"model_type": "rnn"}}, "another encoder before its spans"),
        (
            {"span_mode": "token-level", "represent_spans": True},
            "represent_spans is True, so this is a model that judges spans of the words",
        ),
        ({"precomputed_prompts_mode": True}, "a model whose labels were read once and for all"),
        ({"span_mode": "conv_max"}, "span_mode is 'conv_max'"),
        ({"words_splitter_type": "spacy"}, "words_splitter_type is 'spacy'; only 'whitespace'"),
        ({"subtoken_pooling": "mean"}, "subtoken_pooling is 'mean'; only 'first'"),
        ({"encoder_config": {"model_type": "mt5"}}, "its body is 'mt5'; read are bert"),
        ({"class_token_index": 5}, "class_token_index 5, and '<<ENT>>' is"),
        ({"ent_token": "<<E>>"}, "no added token '<<E>>'.*save it"),
        ({"num_rnn_layers": 2}, "no tensor 'rnn.lstm.weight_ih_l1'"),
        ({"hidden_size": 16}, "no tensor 'token_rep_layer.projection.weight'"),
        ({"hidden_size": "x"}, "whole numbers"),
        ({"num_rnn_layers": "x"}, "whole numbers"),
        ({"vocab_size": 40}, "word_embeddings.weight' has shape"),
        ({"max_width": 500}, "1 to 128"),
        ({"encoder_config": None, "model_name": None}, "model_name .None. does not say.*save it"),
    ],
)
def test_what_is_not_read_is_refused_by_name(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_gliner(tmp_path, **changed)
    with pytest.raises(BertError, match=f"(?s){message}"):
        read_checkpoint(tmp_path)


def test_without_a_hub_an_old_folder_says_how_to_make_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(name: HubName) -> Path:
        raise CheckpointError(f"{name} does not answer")

    monkeypatch.setattr("bert.checkpoint.hub.download_texts", download)
    write_gliner(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"those of org/body are needed: .*; or load the model with gliner"
    ):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("mode", ["markerV0", "marker", "token_level"])
def test_fp16_is_evaluated_without_a_gpu(mode: str, tmp_path: Path) -> None:
    write_gliner(tmp_path / "m", mode)
    out = str(tmp_path / "b")
    assert main(["--checkpoint", str(tmp_path / "m"), "--out", out, "--precision", "fp16"]) == 0
    manifest = read_bundle(tmp_path / "b").manifest
    assert "not run on a GPU" in manifest.parity["check"] and manifest.parity["scaled_difference"] < 1e-2
    assert manifest.layout == "flat"
    model = onnx.load(tmp_path / "b" / "model.onnx")
    inner = [
        node.op_type
        for loop in model.graph.node
        if loop.op_type == "Loop"
        for node in loop.attribute[0].g.node
    ]
    assert "LSTM" in inner
    assert not {"Shape", "Range", "Size", "NonZero"} & {*inner, *(node.op_type for node in model.graph.node)}


@pytest.mark.parametrize("has_other_marker", [False, True])
def test_an_old_folder_gets_body_and_tokenizer_from_the_hub(has_other_marker: bool, tmp_path: Path) -> None:
    folder, body, pieces = tmp_path / "m", tmp_path / "body", len(vocabulary())
    write_gliner(folder, encoder_config=None, class_token_index=pieces + has_other_marker, vocab_size=PIECES)
    (folder / "tokenizer.json").unlink()
    body.mkdir()
    (body / "config.json").write_text(json.dumps({**BODY, "vocab_size": pieces}), "utf-8")
    (body / "tokenizer.json").write_text(tiny_tokenizer().to_json(), "utf-8")
    (body / "model.safetensors").write_bytes(b"not needed")
    with local_hub() as hub:
        hub.add("org/gliner", folder)
        hub.add("org/body", body)
        variables = hub_variables(hub, tmp_path / "home")
        arguments = ["--checkpoint", "org/gliner", "--out", str(tmp_path / "b"), "--precision", "fp32"]
        process = start(["-m", "model_export.cli", *arguments], variables)
        _, error = process.communicate(timeout=240)
        assert not hub.asked("org/body/resolve/main/model.safetensors")
    if has_other_marker:  # one more piece than the weights have
        assert process.returncode and "the tokenizer's ids go up to" in error
        return
    assert process.returncode == 0, error
    source = read_bundle(tmp_path / "b").manifest.source
    assert source["hub"]["repo"] == "org/gliner"
    assert source["base"]["hub"] == {"repo": "org/body", "commit": commit_of(body)}
    assert {"config.json", "tokenizer.json"} <= source["base"]["files"].keys()


def test_an_old_folder_whose_body_has_other_pieces_is_refused(tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.mkdir()
    (body / "config.json").write_text(json.dumps(BODY), "utf-8")
    (body / "tokenizer.json").write_text(tiny_tokenizer().to_json(), "utf-8")
    write_gliner(tmp_path / "m", class_token_index=1000, model_name=str(body))
    (tmp_path / "m" / "tokenizer.json").unlink()
    with pytest.raises(BertError, match=f"class_token_index 1000, and .* has {len(vocabulary())} pieces"):
        read_checkpoint(tmp_path / "m")


def test_markers_of_a_text_are_characters_whatever_the_tokenizer_says(tmp_path: Path) -> None:
    write_gliner(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    for token in content["added_tokens"]:
        token["special"] = False
    for name in ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"):
        next(token for token in content["added_tokens"] if token["content"] == name)["special"] = True
    file.write_text(json.dumps(content), "utf-8")
    tokenizer = read_checkpoint(tmp_path).tokenizer
    marker = tokenizer.token_to_id("<<ENT>>")
    assert marker not in tokenizer.ids(["a <<ENT>> b"])[0] and len(vocabulary()) == marker


def test_a_tensor_that_was_saved_once_is_read_by_both_names(tmp_path: Path) -> None:
    write_gliner(tmp_path)
    file, kept = tmp_path / "model.safetensors", "span_rep_layer.span_rep_layer.project_start.3.weight"
    omitted = kept.replace("start", "end")
    tensors = {name: tensor for name, tensor in load_file(file).items() if name != omitted}
    save_file(tensors, file, {"format": "pt", omitted: kept})
    weights = read_checkpoint(tmp_path).weights
    assert np.array_equal(weights[omitted], weights[kept])
    save_file(tensors, file, {"format": "pt", omitted: "elsewhere"})
    with pytest.raises(BertError, match=f"says that '{omitted}' is 'elsewhere', which is not there.*save it"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("name", [None, "/nowhere/body"])
def test_a_folder_without_tokenizer_is_refused(name: str | None, tmp_path: Path) -> None:
    write_gliner(tmp_path, model_name=name)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(BertError, match=r"has no tokenizer\.json.*model_name.*save it"):
        read_checkpoint(tmp_path)


@pytest.mark.skipif(not PYTHON, reason="BERT_GLINER_PYTHON names no Python that has gliner 0.2.29")
def test_entities_are_those_of_gliner(tmp_path: Path) -> None:
    """Both span modes and words, narrow heads, with and without LSTM: 50 texts with 1, 5 and 30 labels, in three ways.

    Those of bi-encoders too, of which labels are read by a body of another width.
    """
    shipped = texts_file()
    odd = [
        "",
        " \n ",
        "人 与 机 e-mail_x 東京タワー",
        "State-of-the-art co-op_x!! 🙂 ok",
        "x",
        "Die Straße, l'été, naïve",
    ]
    texts = [*shipped["texts"][:38], *(row["context"] for row in shipped["questions"][:6]), *odd]
    asked = {"texts": texts, "label_sets": [WORDS[:1], WORDS[:5], WORDS], "ways": WAYS, "kinds": KINDS}
    script = Path(__file__).parents[2] / "support" / "gliner_models.py"
    command = [PYTHON, "-P", str(script), str(tmp_path)]
    subprocess.run(command, input=json.dumps(asked), text=True, check=True, capture_output=True, timeout=1200)
    count = 0
    for name in KINDS:
        checkpoint = read_checkpoint(tmp_path / name)
        graph, of_labels = Fp32(checkpoint, ()), None
        if checkpoint.labels is not None:
            of_labels = LabelsFp32(checkpoint.labels, ())
        for expected in json.loads((tmp_path / name / "expected.json").read_text("utf-8")):
            how = Choosing(
                expected["threshold"], expected.get("flat_ner", True), expected.get("multi_label", False)
            )
            got = find(checkpoint, graph, texts, expected["labels"], how, of_labels)
            for ours, theirs in zip(got, expected["entities"], strict=True):
                assert [[e.start, e.end, e.label] for e in ours] == [each[:3] for each in theirs]
                assert [e.score for e in ours] == pytest.approx([each[3] for each in theirs], abs=1e-4)
                count += len(ours)
    assert count > 10_000


def test_a_word_without_pieces_shifts_no_other(tmp_path: Path) -> None:
    """`gliner` counts words by their pieces, so that all words after it are taken for their neighbours."""
    write_gliner(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    graph, labels, how = Fp32(checkpoint, ()), ["a film", "person"], Choosing(0.02)
    plain, odd = find(checkpoint, graph, ["angela met merkel", "angela \u200b met merkel"], labels, how)
    assert [e.text for e in plain] == [e.text.replace("\u200b ", "") for e in odd] and plain
    assert np.allclose([e.score for e in plain], [e.score for e in odd], atol=1e-5)
    assert len(word_bounds("angela \u200b met merkel")) == 4
