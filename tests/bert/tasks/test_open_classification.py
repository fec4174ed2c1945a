"""How labels stand beside a text, and what is judged, for every way that a GLiClass reads them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.errors import ConfigError, InputError, TextTooLongError
from bert.tasks.open_classification.task import (
    LABEL,
    SAMPLE_LABELS,
    OpenClassificationTask,
    encode,
    prompt_ids,
)
from bert.tasks.spec import ClassPrompt, TaskSpec
from bert.tasks.zero_shot import decode
from bert.tokenizer import Tokenizer
from tests.support.open_classification import PIECES, PROMPT, SPEC, tokenizer_json

MARKER, SEPARATOR = PROMPT.label_id, PROMPT.separator_id
ODD = ["sport", "a long film", "🙂", "食べ物", "<<LABEL>>", "a <<SEP>> b", "[SEP]", "l'été", " x "]
TASK = OpenClassificationTask()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.parse(tokenizer_json().encode(), Path(__file__))


def spec_of(max_tokens: int = 512, **changed: Any) -> TaskSpec:
    return replace(SPEC, class_prompt=replace(PROMPT, **changed), max_tokens=max_tokens)


@given(
    st.lists(st.sampled_from(ODD), min_size=1, max_size=5, unique=True),
    st.text(max_size=60) | st.sampled_from(["<<LABEL>> a <<SEP>> b [CLS]", ""]),
    st.fixed_dictionaries(
        {
            "text_first": st.booleans(),
            "reads_marker": st.booleans(),
            "has_segments": st.booleans(),
            "text_pooling": st.sampled_from(["first", "separator", "avg"]),
            "label_pooling": st.sampled_from(["first", "average"]),
        }
    ),
)
def test_each_label_has_its_marker_and_its_places(
    tokenizer: Tokenizer, labels: list[str], text: str, how: dict[str, Any]
) -> None:
    spec = spec_of(**how)
    assert spec.class_prompt is not None
    ids = [np.array(each, np.int32) for each in tokenizer.ids(labels)]
    (pieces,) = tokenizer.pieces([text])
    encoding = encode(pieces, prompt_ids(ids, spec.class_prompt), tokenizer, spec)
    marked = [token for label in ids for token in (MARKER, *label)] + [SEPARATOR]
    inside = [*pieces.ids, *marked] if how["text_first"] else [*marked, *pieces.ids]
    assert encoding.ids.tolist() == [tokenizer.cls_id, *inside, tokenizer.sep_id]
    found = encoding.ids.tolist()
    at, marks = found.index(SEPARATOR), [n for n, token in enumerate(found) if token == MARKER]
    assert len(marks) == len(labels) == TASK.output_rows(encoding)  # a text or label never makes a marker
    assert encoding.segment_ids.tolist() == [
        int(bool(how["has_segments"]) and n >= at) for n in range(len(found))
    ]
    first, *others = TASK.head_positions(encoding).tolist()
    assert first == (at if how["text_pooling"] == "separator" else 0)
    if how["label_pooling"] == "first":
        assert others == [mark + (not how["reads_marker"]) for mark in marks]
    else:
        end = at if how["text_pooling"] == "separator" else len(found)
        assert others == list(range(marks[0], end))
        numbers = encoding.word_ids[encoding.sequence_ids == LABEL]
        assert numbers.tolist() == [sum(mark <= n for mark in marks) - 1 for n in others]


def test_the_text_alone_is_cut(tokenizer: Tokenizer) -> None:
    (text,), spec = tokenizer.pieces(["the film was warm " * 20]), spec_of(32)
    assert spec.class_prompt is not None
    labels = prompt_ids([np.array(each, np.int32) for each in tokenizer.ids(["film", "a dull film"])], PROMPT)
    with pytest.raises(TextTooLongError, match="has 89 tokens and the model reads at most 32"):
        encode(text, labels, tokenizer, spec)
    encoding = encode(text, labels, tokenizer, spec, truncate=True)
    assert len(encoding) == 32 and encoding.truncated
    assert encoding.ids[1 : 1 + len(labels[0])].tolist() == labels[0].tolist()
    many = prompt_ids([np.array([7], np.int32)] * 20, PROMPT)
    with pytest.raises(InputError, match="take 41 of the 32 tokens"):
        encode(text, many, tokenizer, spec, truncate=True)


def test_scores_are_of_the_logits() -> None:
    logits = np.array([[0.0], [2.0], [1.0]], np.float32)
    one = decode(logits, "abc", None)
    assert one.label == "b" and sum(score for _, score in one.scores) == pytest.approx(1)
    several = decode(logits, "abc", None, multi_label=True)
    assert dict(several.scores) == pytest.approx({"a": 0.5, "b": 0.880797, "c": 0.731059})
    assert decode(logits[:1], "a", None).scores == (("a", 0.5),)


def test_samples_have_labels_and_fit(tokenizer: Tokenizer) -> None:
    (text,) = tokenizer.pieces(["the film was warm " * 20])
    (encoding,) = TASK.sample(tokenizer, [text], spec_of(512))
    assert TASK.output_rows(encoding) == len(SAMPLE_LABELS)
    (small,) = TASK.sample(tokenizer, [text], spec_of(40))
    assert len(small) == 40 and 1 <= TASK.output_rows(small) < len(SAMPLE_LABELS)


@pytest.mark.parametrize(
    ("name", "value"), [("width", 0), ("label_id", -1), ("text_first", 1), ("text_pooling", "max")]
)
def test_a_prompt_that_breaks_a_rule_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(PROMPT, **{name: value})


def test_a_prompt_survives_its_file() -> None:
    assert TaskSpec.from_dict(spec_of(text_first=True).to_dict()) == spec_of(text_first=True)
    assert isinstance(spec_of().class_prompt, ClassPrompt) and PIECES == SEPARATOR + 1
