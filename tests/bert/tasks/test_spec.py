"""task.json: written, read again, and refused where it breaks a rule."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.errors import CheckpointError, ConfigError
from bert.tasks.registry import TASKS
from bert.tasks.spec import POOLINGS, PROBLEM_TYPES, SPAN_MODES, TASK_NAMES, DenseLayer, LabelPrompt, TaskSpec

SPECS = st.builds(
    TaskSpec,
    task=st.sampled_from([name for name in TASK_NAMES if not name.startswith(("open_", "token_"))]),
    labels=st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=4, unique=True).map(tuple),
    problem_type=st.sampled_from(PROBLEM_TYPES),
    activation=st.sampled_from(["", "sigmoid", "identity"]),
    pair=st.booleans(),
    pooling=st.lists(st.sampled_from(POOLINGS), min_size=1, max_size=3).map("+".join),
    dense=st.lists(
        st.builds(DenseLayer, st.integers(1, 99), st.sampled_from(["tanh", "identity"])), max_size=2
    ).map(tuple),
    normalize=st.booleans(),
    similarity=st.sampled_from(["cosine", "dot"]),
    prompts=st.just({"query": "query: ", "document": ""}),
    default_prompt_name=st.sampled_from(["", "query"]),
    max_tokens=st.integers(40, 512),
    stride=st.integers(0, 30),
    allows_no_answer=st.booleans(),
    null_threshold=st.floats(-9, 9),
    base=st.just({"name": "base", "sha256": "0" * 64}),
    scores=st.just({"dev": {"accuracy": 0.9}}),
    examples=st.just(({"text": "a film", "candidates": ["the film"]},)),
    command=st.text(max_size=9),
)


PROMPTED = st.builds(
    TaskSpec,
    task=st.just("open_ner"),
    label_prompt=st.builds(
        LabelPrompt,
        st.integers(0, 9),
        st.integers(0, 9),
        st.sampled_from(SPAN_MODES),
        st.sampled_from([2, 64]),
        max_width=st.integers(1, 128),
        lstm_layers=st.integers(0, 2),
        reads_label=st.booleans(),
    ),
)


@given(spec=SPECS | PROMPTED)
def test_what_is_written_is_read_again(spec: TaskSpec) -> None:
    assert TaskSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_the_file_is_readable_text(tmp_path: Path) -> None:
    spec = TaskSpec("classification", ("吉", "schön"))
    spec.write(tmp_path)
    assert '"schön"' in (tmp_path / "task.json").read_text(encoding="utf-8")
    assert TaskSpec.read(tmp_path) == spec


@pytest.mark.parametrize(
    ("spec", "outputs"),
    [
        (TaskSpec("classification", ("a", "b", "c")), 3),
        (TaskSpec("ner", ("O", "B-PER", "I-PER")), 3),
        (TaskSpec("qa"), 2),
        (TaskSpec("multiple_choice"), 1),
        (TaskSpec("similarity"), 0),
        (TaskSpec("fill_mask"), 0),
    ],
)
def test_the_head_has_a_score_for_what_the_task_chooses(spec: TaskSpec, outputs: int) -> None:
    assert TASKS[spec.task].head_outputs(spec) == outputs


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"task": "translation"}, "task is 'translation'; known are classification"),
        ({"task": "classification", "labels": ["a"], "problem": "ranking"}, "problem_type is 'ranking'"),
        ({"task": "classification"}, "a classification task needs labels"),
        ({"task": "ner", "labels": []}, "a ner task needs labels"),
        ({"task": "ner", "labels": ["O", "O"]}, "labels must differ"),
        ({"task": "ner", "labels": ["O", ""]}, "label 1 is empty; name it"),
        ({"task": "ner", "labels": ["O", "B-\ud800"]}, "is not valid Unicode"),
        ({"task": "ner", "labels": "O"}, "labels must be a list of texts: 'O'"),
        ({"task": "ner", "labels": [0, 1]}, "labels must be a list of texts"),
        ({"task": "qa", "max_tokens": 2}, r"max_tokens \(2\) must be at least 3"),
        ({"task": "qa", "max_tokens": 64, "stride": 62}, r"stride \(62\) must be at least 0 and below"),
        ({"task": "qa", "stride": -1}, r"stride \(-1\)"),
        ({"task": "qa", "n_best": 0}, r"n_best \(0\) must be at least 1"),
        ({"task": "qa", "max_answer_tokens": 0}, r"max_answer_tokens \(0\) must be at least 1"),
        ({"task": "qa", "max_question_tokens": -3}, r"max_question_tokens \(-3\) must be at least 1"),
        ({"task": "qa", "strides": 3}, r"unknown keys \['strides'\]"),
        ({"labels": ["a"]}, "no key 'task'"),
        ({"task": "qa", "schema_version": 2}, "schema_version 2; this version reads 1"),
        (["qa"], "task.json holds list, not an object"),
        ({"task": 5}, r"task \(5\) must be a text"),
        ({"task": ["qa"]}, r"task \(\['qa'\]\) must be a text"),
        ({"task": "ner", "labels": None}, "labels must be a list of texts: None"),
        ({"task": "ner", "labels": {"O": 0}}, "labels must be a list of texts"),
        ({"task": "qa", "max_tokens": "many"}, r"max_tokens \('many'\) must be a whole number"),
        ({"task": "qa", "max_tokens": None}, r"max_tokens \(None\) must be a whole number"),
        ({"task": "qa", "max_tokens": 12.5}, r"max_tokens \(12.5\) must be a whole number"),
        ({"task": "qa", "stride": True}, r"stride \(True\) must be a whole number"),
        ({"task": "qa", "pair": "yes"}, r"pair \('yes'\) must be true, false or null"),
        ({"task": "qa", "null_threshold": "0"}, r"null_threshold \('0'\) must be a number"),
        ({"task": "qa", "null_threshold": float("nan")}, r"null_threshold \(nan\) must be a number"),
        ({"task": "qa", "base": "minilm"}, r"base \('minilm'\) must be an object"),
        ({"task": "qa", "base": {"name": 5}}, r"base.name \(5\) must be a text"),
        ({"task": "qa", "examples": ["a film"]}, "examples must be a list of texts by field: 'a film'"),
        ({"task": "qa", "examples": {"text": "a"}}, "examples must be a list of texts by field: {'text'"),
        (
            {"task": "qa", "examples": [{"text": 5}]},
            r"examples: text \(5\) must be a text or a list of texts",
        ),
        ({"task": "qa", "examples": [{"text": "\ud800"}]}, "must be a text or a list of texts"),
        ({"task": "similarity", "pooling": "first"}, "pooling is 'first'; known are cls, max, mean"),
        ({"task": "similarity", "pooling": "mean+first"}, r"pooling is 'mean\+first'"),
        ({"task": "similarity", "pooling": ""}, "pooling is ''"),
        ({"task": "similarity", "dense": [{"out_features": 0}]}, r"out_features \(0\) must be at least 1"),
        ({"task": "similarity", "dense": [{"out": 3}]}, "dense must be a list of layers with out_features"),
        ({"task": "similarity", "dense": 5}, "dense must be a list of layers"),
        (
            {"task": "similarity", "dense": [{"out_features": 3, "activation": "swish"}]},
            "activation is 'swish'",
        ),
        (
            {"task": "similarity", "similarity": "euclidean"},
            "similarity is 'euclidean'; known are cosine, dot",
        ),
        ({"task": "similarity", "prompts": {"q": None}}, "prompts must be texts by name: 'q' is None"),
        ({"task": "similarity", "default_prompt_name": "q"}, "default_prompt_name is 'q'; known are none"),
        ({"task": "similarity", "normalize": 1}, r"normalize \(1\) must be true or false"),
        (
            {"task": "classification", "labels": ["a"], "activation": "relu"},
            "activation is 'relu'; known are",
        ),
        ({"task": "qa", "scores": []}, r"scores \(\[\]\) must be an object"),
    ],
)
def test_a_broken_value_is_refused_with_the_rule(values: dict[str, Any], rule: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rule):
        TaskSpec.from_dict(values)
    (tmp_path / "task.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"task\.json(: | is not JSON: )"):
        TaskSpec.read(tmp_path)


def test_a_file_of_before_these_fields_is_read_as_it_was_meant() -> None:
    old = TaskSpec.from_dict({"task": "similarity", "pooling": "cls", "max_tokens": 99})
    assert old == TaskSpec("similarity", pooling="cls", max_tokens=99)
    assert (old.poolings, old.normalize, old.similarity, old.dense) == (("cls",), True, "cosine", ())
    assert old.vector_size(32) == 32
    assert TaskSpec("similarity", pooling="cls+mean").vector_size(32) == 64
    assert TaskSpec("similarity", dense=(DenseLayer(8), DenseLayer(4))).vector_size(32) == 4


@pytest.mark.parametrize("content", [b"{", b"\xff", b"null", b'{"task": "qa", "max_tokens": "many"}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "task.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"task\.json(: | is not JSON: )"):
        TaskSpec.read(tmp_path)


def test_a_missing_file_says_what_it_is_for(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it says what the checkpoint was fine-tuned for"):
        TaskSpec.read(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"span_mode": "conv"}, "span_mode is 'conv'"),
        ({"max_width": 129}, "1 to 128"),
        ({"max_words": 0}, "max_words 1 or more"),
        ({"width": 3}, "must be even"),
        ({"lstm_layers": -1}, "whole numbers"),
        ({"label_id": True}, "whole numbers"),
        ({"color": 1}, "not complete"),
    ],
)
def test_a_label_prompt_that_breaks_a_rule_is_refused(changed: dict[str, Any], message: str) -> None:
    prompt = {"label_id": 1, "separator_id": 2, "span_mode": "marker", "width": 4, **changed}
    with pytest.raises(ConfigError, match=message):
        TaskSpec.from_dict({"task": "open_ner", "label_prompt": prompt})


@pytest.mark.parametrize("values", [{"task": "open_ner"}, {"task": "qa", "label_prompt": {}}])
def test_a_label_prompt_is_for_its_task(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="label_prompt"):
        TaskSpec.from_dict(values)


def test_each_known_name_has_its_task() -> None:
    assert set(TASKS) == set(TASK_NAMES)
