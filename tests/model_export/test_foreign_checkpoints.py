"""Checkpoints of the hub that say more than a graph would hold, or less than it needs: honoured, or refused."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification

from bert.bundle import read_bundle
from bert.checkpoint.description import Stated
from bert.checkpoint.weights import Checkpoint, read_checkpoint
from bert.errors import CheckpointError
from bert.graph_inputs import Packer
from bert.tasks.classification import decode
from bert.tasks.spec import DenseLayer, TaskSpec
from model_export.cli import main
from model_export.verify.precision import GraphSession
from model_export.verify.texts import shipped_texts
from tests.support.checkpoints import SPECS, hf_outputs, write_checkpoint
from tests.support.pooling import embedded

TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
MODULES = ["Transformer", "Pooling", "Normalize"]
CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def write_embedder(folder: Path, modules: list[str] = MODULES, **files: Any) -> Any:
    """Write a folder as sentence-transformers does; `files` by name without ending, 1_Pooling as `pooling`."""
    model = write_checkpoint(folder, SPECS["similarity"])
    as_published(folder)
    listed = [
        {"idx": n, "path": f"{n}_{name}" if n else "", "type": f"sentence_transformers.models.{name}"}
        for n, name in enumerate(modules)
    ]
    (folder / "1_Pooling").mkdir()
    contents = {"modules": listed, "1_Pooling/config": files.pop("pooling", MEAN), **files}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return model


def as_published(folder: Path) -> None:
    """Make a checkpoint of ours one of the hub: no `task.json`, and its `vocab.txt` says its case."""
    (folder / "task.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")


def read(folder: Path, **stated: Any) -> Checkpoint:
    return read_checkpoint(folder, stated=Stated(**stated))


def test_a_pooling_by_cls_is_exported_as_such(tmp_path: Path) -> None:
    model = write_embedder(tmp_path / "m", pooling=CLS, sentence_bert_config={"max_seq_length": 64})
    out = tmp_path / "b"
    assert main(["--checkpoint", str(tmp_path / "m"), "--out", str(out), "--precision", "fp32"]) == 0
    spec = read_bundle(out).manifest.task
    assert (spec.pooling, spec.max_tokens) == ("cls", 64)
    text = shipped_texts(read(tmp_path / "m").tokenizer, spec)[3]
    found = GraphSession(onnx.load(out / "model.onnx"), Packer("rows"), threads=1).alone([text])[0]
    assert np.abs(found - hf_outputs(model, SPECS["cls"], text)).max() < 1e-5


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (MEAN, "mean"),
        ({"pooling_mode_mean_tokens": False}, "mean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len_tokens"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode_max_tokens": True, **MEAN, "pooling_mode_cls_token": True}, "cls+max+mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["mean"], "include_prompt": True}, "mean"),
        ({"pooling_mode": ["lasttoken", "max"], "embedding_dimension": 32}, "lasttoken+max"),
        ({**MEAN, "pooling_mode": "cls"}, "cls"),
        (
            {"pooling_mode": "mean", "include_prompt": False},
            "mean",
        ),  # without prompts there is nothing to leave out
    ],
)
def test_poolings_that_are_honoured(pooling: dict[str, Any], expected: str, tmp_path: Path) -> None:
    write_embedder(tmp_path, pooling=pooling)
    assert read(tmp_path).spec == TaskSpec("similarity", pooling=expected, max_tokens=128)


@pytest.mark.parametrize(
    ("pooling", "reason"),
    [
        ({}, "1_Pooling/config.json is missing or names no pooling, and modules.json has a module for it"),
        ({"word_embedding_dimension": 32}, "names no pooling"),
        ({"pooling_mode": None}, "names no pooling"),
        ({"pooling_mode": []}, "names no pooling"),
        ({"pooling_mode_cls_token": 1}, r"pooling_mode_cls_token \(1\) must be true or false"),
        ({**MEAN, "pooling_mode_cls_token": "true"}, r"pooling_mode_cls_token \('true'\) must be true or"),
        ({**CLS, "pooling_mode_max_tokens": None}, r"pooling_mode_max_tokens \(None\) must be true or fa"),
        ({**MEAN, "include_prompt": 0}, r"include_prompt \(0\) must be true or false"),
    ],
)
def test_a_pooling_that_is_not_stated_is_refused(
    pooling: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    write_embedder(tmp_path, pooling=pooling)
    with pytest.raises(CheckpointError, match=reason):
        read(tmp_path)


def test_a_missing_file_of_the_pooling_is_refused(tmp_path: Path) -> None:
    write_embedder(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"1_Pooling/config\.json is missing"):
        read(tmp_path)


def write_dense(
    folder: Path, width: int, out: int, *, pickled: bool = False, **values: Any
) -> torch.nn.Linear:
    """Write a Dense layer as sentence-transformers does; return it."""
    torch.manual_seed(2)
    linear = torch.nn.Linear(width, out, bias=values.get("bias", True))
    folder.mkdir()
    config = {"in_features": width, "out_features": out, "bias": True, "activation_function": TANH, **values}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    state = {f"linear.{name}": tensor.detach() for name, tensor in linear.named_parameters()}
    if pickled:
        torch.save(state, folder / "pytorch_model.bin")
    else:
        save_file(state, folder / "model.safetensors")
    return linear


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "bin"])
def test_a_whole_folder_is_embedded_as_sentence_transformers_does(pickled: bool, tmp_path: Path) -> None:
    modules = ["Transformer", "Pooling", "Dense", "Dense"]
    model = write_embedder(tmp_path / "m", modules, pooling={**MEAN, "pooling_mode_cls_token": True})
    first = write_dense(tmp_path / "m" / "2_Dense", 64, 24, pickled=pickled)
    second = write_dense(tmp_path / "m" / "3_Dense", 24, 16, bias=False, activation_function=IDENTITY)
    out = tmp_path / "b"
    assert main(["--checkpoint", str(tmp_path / "m"), "--out", str(out), "--precision", "fp32"]) == 0
    manifest = read_bundle(out).manifest
    assert manifest.task.dense == (DenseLayer(24, "tanh"), DenseLayer(16, "identity"))
    assert not manifest.task.normalize
    assert {"2_Dense/config.json", "3_Dense/model.safetensors"} <= manifest.source["files"].keys()
    texts = shipped_texts(read(tmp_path / "m").tokenizer, manifest.task)[:6]
    found = GraphSession(onnx.load(out / "model.onnx"), Packer("rows"), threads=1).run(texts)
    for text, vector in zip(texts, found, strict=True):
        ids = torch.tensor(text.encoding.ids)[None].long()
        with torch.no_grad():
            tokens = model(input_ids=ids).last_hidden_state
            wanted = embedded(
                tokens,
                torch.ones_like(ids),
                ("cls", "mean"),
                [(first, "tanh"), (second, "identity")],
                normalize=False,
            )
        assert np.abs(vector - wanted.numpy()).max() < 1e-5


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"activation_function": "torch.nn.modules.activation.ReLU"},
            "activation_function is ReLU; exported are",
        ),
        (
            {"out_features": 9},
            r"tensor 'dense.0.weight' has shape \(16, 32\); config and task ask for \(9, 32\)",
        ),
        ({"out_features": "many"}, "out_features \\('many'\\) must be a whole number"),
        ({"out_features": 0}, "out_features \\(0\\) must be at least 1"),
        (
            {"module_input_name": "token_embeddings"},
            "module_input_name is 'token_embeddings'; exported is 'sent",
        ),
        ({"use_residual": True}, "2_Dense/config.json: use_residual is True, which is not known"),
    ],
)
def test_other_dense_layers_are_refused(values: dict[str, Any], reason: str, tmp_path: Path) -> None:
    write_embedder(tmp_path, [*MODULES[:2], "Dense"])
    write_dense(tmp_path / "2_Dense", 32, 16, **values)
    with pytest.raises(CheckpointError, match=reason):
        read(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        (
            {"residual.weight": (16, 32)},
            "2_Dense has the tensor 'residual.weight', which a linear layer has n",
        ),
        ({"linear.weight": ()}, "2_Dense has no matrix 'linear.weight'"),
        ({"linear.bias": ()}, r"tensor 'dense.0.bias' has shape \(\)"),
    ],
)
def test_other_tensors_of_a_dense_layer_are_refused(
    tensors: dict[str, tuple[int, ...]], reason: str, tmp_path: Path
) -> None:
    write_embedder(tmp_path, [*MODULES[:2], "Dense"])
    state = {
        f"linear.{name}": tensor
        for name, tensor in write_dense(tmp_path / "2_Dense", 32, 16).state_dict().items()
    }
    state |= {name: torch.ones(shape) for name, shape in tensors.items()}
    save_file(state, tmp_path / "2_Dense" / "model.safetensors")
    with pytest.raises(CheckpointError, match=reason):
        read(tmp_path)


@pytest.mark.parametrize(
    ("modules", "files", "reason"),
    [
        ([*MODULES[:2], "LSTM"], {}, r"modules.json has a module 'LSTM' \(2_LSTM\), which is not exported"),
        (["Transformer"], {}, "modules.json has the modules Transformer; exported are"),
        (["Transformer", "Normalize", "Pooling"], {}, "has the modules Transformer Normalize Pooling"),
        (["Transformer", "Pooling", "Normalize", "Dense"], {}, "Transformer Pooling Normalize Dense"),
        (["WordEmbeddings", "Pooling"], {}, "has a module 'WordEmbeddings'"),
        (
            MODULES,
            {"pooling": {"pooling_mode_first_tokens": True}},
            "1_Pooling/config.json: the pooling is 'first_tokens'; known are cls, max",
        ),
        (MODULES, {"pooling": {"pooling_mode": "splade"}}, "the pooling is 'splade'"),
        (
            MODULES,
            {
                "pooling": {**MEAN, "include_prompt": False},
                "config_sentence_transformers": {"prompts": {"q": "query: "}},
            },
            "include_prompt is false, so the pooling leaves out the prompt's tokens",
        ),
        (
            MODULES,
            {"sentence_bert_config": {"max_seq_length": "long"}},
            "max_seq_length is 'long', which is no whole number",
        ),
        (
            MODULES,
            {"sentence_bert_config": {"transformer_task": "fill-mask"}},
            "transformer_task is 'fill-mask'",
        ),
        (MODULES, {"sentence_bert_config": {"query_length": 32}}, "query_length is 32, which is not known"),
        (
            MODULES,
            {
                "sentence_bert_config": {
                    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}}
                }
            },
            "exported is the last hidden state",
        ),
        (
            MODULES,
            {"pooling": {**MEAN, "layers": [1]}},
            r"1_Pooling/config.json: layers is \[1\], which is not kn",
        ),
        (
            MODULES,
            {"config_sentence_transformers": {"prompts": {"q": "query: "}, "default_prompt_name": "p"}},
            "default_prompt_name is 'p'; known are q",
        ),
        (
            MODULES,
            {"config_sentence_transformers": {"prompts": {"q": 5}}},
            "prompts must be texts by name: 'q'",
        ),
        (
            MODULES,
            {"sentence_bert_config": {"modality_config": "x"}},
            r"modality_config \('x'\) must be an obj",
        ),
        (
            MODULES,
            {"sentence_bert_config": {"modality_config": [1]}},
            r"modality_config \(\[1\]\) must be an",
        ),
        (
            MODULES,
            {"config_sentence_transformers": {"prompts": {"\ud800": "a"}}},
            r"'\\ud800' among the labels",
        ),
        (
            MODULES,
            {"config_sentence_transformers": {"prompts": {"a": "\udfff"}}},
            r"'\\udfff' among the labels",
        ),
        (MODULES, {"config_sentence_transformers": {"prompts": ["q"]}}, r"prompts are \['q'\], and no texts"),
        (
            MODULES[:2],
            {"config_sentence_transformers": {"similarity_fn_name": "euclidean"}},
            "similarity_fn_name is 'euclidean', and the service compares by cosine or dot",
        ),
    ],
)
def test_what_would_give_other_embeddings_is_refused(
    modules: list[str], files: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    write_embedder(tmp_path, modules, **files)
    with pytest.raises(CheckpointError, match=reason):
        read(tmp_path)


DEEP, LONG = '{"a":' * 100_000 + "1" + "}" * 100_000, '{"a": ' + "9" * 5_000 + "}"
READ = (
    "config", "modules", "config_sentence_transformers", "sentence_bert_config", "tokenizer_config",
    "special_tokens_map", "1_Pooling/config", "task", "model.safetensors.index",
)  # fmt: skip


@pytest.mark.parametrize("content", [DEEP, LONG, "{", "\0"], ids=["deep", "long", "cut", "nul"])
@pytest.mark.parametrize("name", READ)
def test_a_damaged_file_is_named(name: str, content: str, tmp_path: Path) -> None:
    write_embedder(tmp_path)
    (tmp_path / f"{name}.json").write_text(content, encoding="utf-8")
    if name.endswith("index"):
        (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=f"{name}.json is not JSON"):
        read(tmp_path)


def test_a_shard_whose_name_is_too_long_is_refused(tmp_path: Path) -> None:
    write_embedder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    index = {"weight_map": {"a": "x" * 5_000}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=r"has a shard 'x{61}\.\.\.' that cannot be read: File name too"
    ):
        read(tmp_path)


@pytest.mark.parametrize("length", ["512", 0, -5, math.nan, -math.inf, True, [512]])
def test_a_tokenizer_length_that_is_none_is_refused(length: object, tmp_path: Path) -> None:
    write_embedder(tmp_path, tokenizer_config={"model_max_length": length})
    with pytest.raises(CheckpointError, match=r"model_max_length \(.*\) must be a number of at least 3"):
        read(tmp_path)


@pytest.mark.parametrize("path", ["../1_Pooling", ".."])
def test_modules_outside_the_folder_are_refused(path: str, tmp_path: Path) -> None:
    write_embedder(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text(encoding="utf-8"))
    modules[1]["path"] = path
    (tmp_path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"names {re.escape(repr(path))}, which is no folder beside it"):
        read(tmp_path)


def test_lower_case_is_built_into_a_tokenizer_that_keeps_capitals(tmp_path: Path) -> None:
    lower = {"do_lower_case": True}
    write_embedder(tmp_path, sentence_bert_config=lower, tokenizer_config=lower)
    uncased = read(tmp_path).tokenizer
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    found = read(tmp_path).tokenizer
    text = "THE Film of 1999"
    assert found.ids([text]) == found.ids([text.lower()]) == uncased.ids([text])
    (pieces,) = found.pieces([text])
    assert [text[start:end] for start, end in pieces.offsets.tolist()][:2] != []
    assert pieces.offsets[-1, 1] == len(text)
    (tmp_path / "sentence_bert_config.json").unlink()
    plain = read(tmp_path).tokenizer
    assert plain.ids([text]) != plain.ids([text.lower()])


def test_the_files_of_sentence_transformers_6_are_read(tmp_path: Path) -> None:
    """As 6.2.0 writes them."""
    names = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    write_embedder(
        tmp_path,
        pooling={"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True},
        sentence_bert_config={
            "transformer_task": "feature-extraction",
            "modality_config": {"text": text},
            "module_output_name": "token_embeddings",
        },
        config_sentence_transformers={
            "model_type": "SentenceTransformer",
            "prompts": {"query": "", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    )
    (tmp_path / "2_Normalize").mkdir()
    (tmp_path / "2_Normalize" / "config.json").write_text(json.dumps(names), encoding="utf-8")
    assert read(tmp_path).spec.normalize and read(tmp_path).spec.pooling == "cls"
    names["module_input_name"] = "token_embeddings"
    (tmp_path / "2_Normalize" / "config.json").write_text(json.dumps(names), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=r"2_Normalize/config.json: module_input_name is 'token_embeddings'"
    ):
        read(tmp_path)


def test_prompts_and_dot_products_are_recorded(tmp_path: Path) -> None:
    settings = {
        "prompts": {"query": "query: ", "document": ""},
        "default_prompt_name": "query",
        "similarity_fn_name": "dot",
    }
    write_embedder(tmp_path / "unit", config_sentence_transformers=settings)
    found = read(tmp_path / "unit")
    assert found.remarks == ("requests may name a prompt: query",)
    assert (found.spec.prompts, found.spec.default_prompt_name) == (settings["prompts"], "query")
    assert found.spec.similarity == "cosine"  # the same for vectors of length 1
    write_embedder(tmp_path / "plain", MODULES[:2], config_sentence_transformers=settings)
    assert read(tmp_path / "plain").spec.similarity == "dot"


@pytest.mark.parametrize(
    ("tokenizer", "lengths", "expected"),
    [
        (None, None, 128),
        (math.inf, None, 128),
        (64, None, 64),
        (64, 32, 32),
        (10**30, 500, 128),
        (512, 96, 96),
    ],
)
def test_the_shortest_length_counts(
    tokenizer: int | None, lengths: int | None, expected: int, tmp_path: Path
) -> None:
    files: dict[str, Any] = {
        "tokenizer_config": {"model_max_length": tokenizer} if tokenizer else {},
        "sentence_bert_config": {"max_seq_length": lengths},
    }
    write_embedder(tmp_path, **files)
    assert read(tmp_path).spec.max_tokens == expected


def test_task_json_and_modules_json_have_to_agree(tmp_path: Path) -> None:
    write_embedder(tmp_path, pooling=CLS)
    SPECS["similarity"].write(tmp_path)
    with pytest.raises(CheckpointError, match=r"task\.json has pooling 'mean', and .*modules\.json 'cls'"):
        read(tmp_path)
    SPECS["cls"].write(tmp_path)
    assert read(tmp_path).spec == SPECS["cls"]


def test_an_encoder_that_says_nothing_of_pooling(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["similarity"])
    as_published(tmp_path)
    found = read(tmp_path)
    assert found.spec.pooling == "mean" and "--pooling cls takes [CLS]" in found.remarks[0]
    assert read(tmp_path, pooling="cls").spec.pooling == "cls"
    assert read(tmp_path, pooling="mean").remarks == ()
    assert read(tmp_path, pooling="max+mean").spec.pooling == "max+mean"
    with pytest.raises(CheckpointError, match="pooling is 'first'; known are cls, max"):
        read(tmp_path, pooling="first")
    with pytest.raises(CheckpointError, match="pair is said of classification, and the task is similarity"):
        read(tmp_path, pair=True)
    with pytest.raises(
        CheckpointError, match="labels is said of classification and ner, and the task is simi"
    ):
        read(tmp_path, labels=("a", "b"))


def without_class(folder: Path, name: str | None = None) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["architectures"] = [name] if name else None
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_embeddings_are_found_by_modules_whatever_the_class(tmp_path: Path) -> None:
    write_embedder(tmp_path, pooling=CLS)
    without_class(tmp_path, "BertForMaskedLM")
    found = read(tmp_path)
    assert (found.spec.task, found.spec.pooling) == ("similarity", "cls")
    assert found.remarks == (
        "architectures is 'BertForMaskedLM', and modules.json makes embeddings: these are taken",
    )
    (tmp_path / "modules.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tensor 'cls.predictions.*say --pooling mean, or another"):
        read(tmp_path)
    assert read(tmp_path, pooling="cls").spec.pooling == "cls"


@pytest.mark.parametrize("task", ["classification", "ner", "qa", "fill_mask", "similarity"])
def test_without_a_class_the_tensors_tell_the_task(task: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS[task])
    (tmp_path / "task.json").unlink()
    without_class(tmp_path)
    found = read(tmp_path)
    assert found.spec.task == task
    assert f"by its tensors it is taken for {task}" in found.remarks[0]


def test_tensors_that_do_not_tell_the_task_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "one", SPECS["multiple_choice"])
    (tmp_path / "one" / "task.json").unlink()
    without_class(tmp_path / "one")
    with pytest.raises(
        CheckpointError, match="a head of one number may be a classifier's or that of multiple"
    ):
        read(tmp_path / "one")
    write_checkpoint(tmp_path / "own", SPECS["classification"])
    (tmp_path / "own" / "task.json").unlink()
    without_class(tmp_path / "own", "BertForMoods")
    with pytest.raises(
        CheckpointError, match=r"architectures is 'BertForMoods', which is not known, and .*'classifier'"
    ):
        read(tmp_path / "own")
    assert read(tmp_path / "own", pooling="mean").spec.task == "similarity"


def classifier(folder: Path, labels: list[str], **values: Any) -> Path:
    """Write a classifier as the hub has them."""
    spec = TaskSpec("classification", tuple(labels), max_tokens=128)
    write_checkpoint(folder, spec)
    as_published(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"id2label": {str(n): label for n, label in enumerate(labels)}, **values}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


SIGMOID = "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("values", "activation"),
    [
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, ""),
        ({"sbert_ce_default_activation_function": IDENTITY}, ""),
        ({"sentence_transformers": {"activation_fn": SIGMOID}}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": None}}, "sigmoid"),
        ({"sentence_transformers": {"version": "4.1.0"}, "problem_type": "regression"}, "sigmoid"),
        (
            {
                "sentence_transformers": {"activation_fn": IDENTITY},
                "sbert_ce_default_activation_function": SIGMOID,
            },
            "",
        ),
    ],
)
def test_a_cross_encoder_reads_two_texts(values: dict[str, Any], activation: str, tmp_path: Path) -> None:
    found = read(classifier(tmp_path, ["LABEL_0"], **values))
    assert (found.spec.pair, found.spec.problem_type, found.remarks) == (True, "regression", ())
    assert found.spec.activation == activation


def test_the_settings_file_of_a_cross_encoder_comes_first(tmp_path: Path) -> None:
    folder = classifier(tmp_path, ["LABEL_0"], sentence_transformers={"activation_fn": SIGMOID})
    settings = {"model_type": "CrossEncoder", "activation_fn": IDENTITY}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "modules.json").write_text("[]", encoding="utf-8")  # not those of an embedding model
    found = read(folder)
    assert (found.spec.task, found.spec.pair, found.spec.activation) == ("classification", True, "")


@pytest.mark.parametrize("name", ["torch.nn.modules.activation.ReLU", "os.system", "mine.Score"])
def test_a_cross_encoder_with_another_activation_is_refused(name: str, tmp_path: Path) -> None:
    folder = classifier(tmp_path, ["LABEL_0"], sentence_transformers={"activation_fn": name})
    with pytest.raises(
        CheckpointError, match=f"score goes through {name.rpartition('.')[2]}, which is not known"
    ):
        read(folder)


def test_one_number_is_a_sigmoid_unless_it_is_a_regression(tmp_path: Path) -> None:
    plain = read(classifier(tmp_path / "plain", ["LABEL_0"]))
    assert plain.spec.activation == "sigmoid" and "its sigmoid is taken" in plain.remarks[0]
    number = read(classifier(tmp_path / "number", ["LABEL_0"], problem_type="regression"))
    assert (number.spec.activation, number.spec.problem_type) == ("", "regression")
    assert not any("sigmoid" in remark for remark in number.remarks)


def test_several_numbers_of_a_regression_are_given_as_they_are(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "m", ["clarity", "depth"], problem_type="regression")
    out = tmp_path / "b"
    assert main(["--checkpoint", str(folder), "--out", str(out), "--precision", "fp32"]) == 0
    spec = read_bundle(out).manifest.task
    text = shipped_texts(read(folder).tokenizer, spec)[3]
    logits = GraphSession(onnx.load(out / "model.onnx"), Packer("rows"), threads=1).alone([text])[0]
    (result,) = decode(logits.reshape(1, -1), spec)
    wanted = hf_outputs(AutoModelForSequenceClassification.from_pretrained(folder), spec, text).ravel()
    assert dict(result.scores) == pytest.approx(dict(zip(spec.labels, wanted, strict=True)), abs=1e-5)


@pytest.mark.parametrize(
    "labels",
    [
        ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"],
        ["contradiction", "neutral", "entailment"],
        ["entailment", "not_entailment"],
        ["Not Entailment", "Entailment"],
        ["implicazione", "neutro", "contraddizione"],
        ["Widerspruch", "neutral", "Folgerung"],
        ["矛盾", "中立", "蕴含"],
    ],
)
def test_labels_of_inference_mean_two_texts(labels: list[str], tmp_path: Path) -> None:
    folder = classifier(tmp_path, labels)
    found = read(folder)
    assert found.spec.pair and found.spec.labels == tuple(labels)
    assert "two texts are read; --no-pair reads one" in found.remarks[0]
    alone = read(folder, pair=False)
    assert not alone.spec.pair and alone.remarks == ()


def test_any_other_classifier_leaves_it_to_the_request(tmp_path: Path) -> None:
    folder = classifier(tmp_path, ["bad", "good"])
    found = read(folder)
    assert found.spec.pair is None and "requests may have either" in found.remarks[0]
    assert TaskSpec.from_dict(found.spec.to_dict()).pair is None
    assert read(folder, pair=True).spec.pair is True and read(folder, pair=False).spec.pair is False


def test_what_the_user_says_overrules_the_files(tmp_path: Path) -> None:
    folder = classifier(tmp_path, ["no", "yes"])
    SPECS["pair"].write(folder)
    found = read(folder, pair=False, labels=("nein", "ja"), max_tokens=64)
    assert (found.spec.pair, found.spec.labels, found.spec.max_tokens) == (False, ("nein", "ja"), 64)
    assert found.remarks == (
        "pair is True by the checkpoint's own files; False is taken, as was asked",
        "labels is ('no', 'yes') by the checkpoint's own files; ('nein', 'ja') is taken, as was asked",
        "max_tokens is 128 by the checkpoint's own files; 64 is taken, as was asked",
    )
    with pytest.raises(CheckpointError, match="3 labels were given, and the model has 2"):
        read(folder, labels=("a", "b", "c"))
    with pytest.raises(
        CheckpointError, match=r"max_tokens \(129\) must be at most the model's positions \(128\)"
    ):
        read(folder, max_tokens=129)
    with pytest.raises(
        CheckpointError, match="pooling is said of similarity, and the task is classification"
    ):
        read(folder, pooling="cls")
    (folder / "task.json").unlink()
    found = read(folder, labels=("nein", "ja"))
    assert found.spec.labels == ("nein", "ja") and "nein, ja are taken, as was asked" in found.remarks[0]
    with pytest.raises(CheckpointError, match="3 labels were given, and the head has 2 outputs"):
        read(folder, labels=("a", "b", "c"))


def test_the_command_overrules_by_its_flags(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("eins, zwei\ndrei\n", encoding="utf-8")
    folder = classifier(tmp_path / "m", ["a", "b"])
    arguments = ["--checkpoint", str(folder), "--out", str(tmp_path / "b"), "--precision", "fp32"]
    flags = ["--pair", "--max-tokens", "96", "--labels"]
    assert main([*arguments, *flags, str(tmp_path / "labels.txt")]) == 0
    spec = read_bundle(tmp_path / "b").manifest.task
    assert (spec.pair, spec.max_tokens, spec.labels) == (True, 96, ("eins, zwei", "drei"))
    assert main([*arguments, "--overwrite", "--labels", "x, y"]) == 0
    assert read_bundle(tmp_path / "b").manifest.task.labels == ("x", "y")
    embedder = tmp_path / "e"
    write_embedder(embedder)
    arguments = ["--checkpoint", str(embedder), "--out", str(tmp_path / "c"), "--precision", "fp32"]
    assert main([*arguments, "--pooling", "cls"]) == 0
    assert read_bundle(tmp_path / "c").manifest.task.pooling == "cls"


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ({"id2label": {"0": 0, "1": 1}}, ("0", "1")),
        ({"id2label": {"1": "up", "0": "down"}, "label2id": {"up": 0, "down": 1}}, ("down", "up")),
        ({"id2label": None}, ("LABEL_0", "LABEL_1")),
        ({"id2label": None, "num_labels": 2}, ("LABEL_0", "LABEL_1")),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, ("LABEL_0", "LABEL_1")),
    ],
)
def test_labels_are_those_of_id2label(
    values: dict[str, Any], labels: tuple[str, ...], tmp_path: Path
) -> None:
    assert read(classifier(tmp_path, ["a", "b"], **values)).spec.labels == labels


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"problem_type": "foo"},
            "problem_type is 'foo'; known are single_label_classification, multi_label",
        ),
        ({"problem_type": ["regression"]}, r"problem_type is \['regression'\]; known are single_label_"),
        ({"problem_type": {"a": 1}}, "problem_type is {'a': 1}; known are single_label_"),
        ({"architectures": 5}, r"architectures \(5\) must be a list of names of classes"),
        ({"architectures": "BertForMaskedLM"}, r"architectures \('BertForMaskedLM'\) must be a list of"),
        ({"architectures": {"BertForMaskedLM": 1}}, "must be a list of names of classes"),
        ({"architectures": [None]}, r"architectures \(\[None\]\) must be a list of names of classes"),
        ({"id2label": {"0": "a", "1": ""}}, "label 1 is empty; name it"),
        (
            {"id2label": {"0": "a", "1": "\ud800"}},
            r"'\\ud800' among the labels and prompts is no valid Unicode",
        ),
        ({"layer_norm_eps": 10**400}, r"layer_norm_eps \(10*\) must be a number"),
    ],
)
def test_values_of_another_kind_are_refused(values: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=reason):
        read(classifier(tmp_path, ["a", "b"], **values))


@pytest.mark.parametrize("values", [{"problem_type": None}, {"architectures": None}, {"architectures": []}])
def test_values_that_are_not_stated_are_found_otherwise(values: dict[str, Any], tmp_path: Path) -> None:
    found = read(classifier(tmp_path, ["a", "b"], **values)).spec
    assert (found.task, found.problem_type) == ("classification", "single_label")


def test_labels_without_names_are_as_many_as_the_head_has(tmp_path: Path) -> None:
    spec = read(classifier(tmp_path, ["a", "b", "c", "d"], id2label=None)).spec
    assert spec.labels == ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3")


def test_tags_without_an_outside_are_told(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, replace(SPECS["ner"], labels=("NOUN", "VERB")))
    (tmp_path / "task.json").unlink()
    assert "no label is O: every word belongs to an entity" in read(tmp_path).remarks


def test_the_best_checkpoint_of_a_run_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    write_checkpoint(run / "best", SPECS["classification"])
    (run / "checkpoints").mkdir()
    assert main(["--checkpoint", str(run), "--out", str(tmp_path / "b"), "--precision", "fp32"]) == 0
    assert f"{run} is the folder of a run; {run / 'best'} is exported" in capsys.readouterr().err
