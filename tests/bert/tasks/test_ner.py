"""Entities from the logits of words."""

import unicodedata

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special
from tokenizers import models, pre_tokenizers

from bert.metrics.entities import bio_spans
from bert.tasks import ner
from bert.tasks.ner import Entity
from bert.tasks.spec import TaskSpec
from bert.text.offsets import join_words
from bert.tokenizer import Tokenizer
from tests.support.reading import AWKWARD_TEXTS, MARKED_TEXTS, character_tokenizer, read
from tests.support.tokenizers import KINDS, backend_of

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG")
SPEC = TaskSpec("ner", LABELS)
TOKENIZER = character_tokenizer()


def logits_for(tags: list[str], noise: float = 0.0, seed: int = 0) -> NDArray[np.float32]:
    """Return logits (W, K) whose highest are the tags'."""
    logits = np.random.default_rng(seed).uniform(0, noise, (len(tags), len(LABELS)))
    logits[np.arange(len(tags)), [LABELS.index(tag) for tag in tags]] += noise + 3.0
    return logits.astype(np.float32)


def found(text: str, tags: str) -> list[Entity]:
    return ner.decode(text, read(TOKENIZER, text), logits_for(tags.split()), SPEC)


def spans(entities: list[Entity]) -> list[tuple[str, str]]:
    return [(entity.text, entity.label) for entity in entities]


def words_of(text: str) -> list[tuple[int, int]]:
    """Return the slow obvious way where each word begins and ends."""
    pieces = read(TOKENIZER, text)
    bounds: dict[int, tuple[int, int]] = {}
    for word, (start, end) in zip(pieces.word_ids.tolist(), pieces.offsets.tolist(), strict=True):
        bounds[word] = (bounds.get(word, (start, end))[0], end)
    return list(bounds.values())


def test_words_of_one_entity_are_joined_with_what_lies_between() -> None:
    text = "Ada  Lovelace lived in London"
    person, place = found(text, "B-PER I-PER O O B-LOC")
    score = float(special.softmax([3.0] + [0.0] * 6)[0])
    assert person == Entity("Ada  Lovelace", "PER", 0, 13, pytest.approx(score))  # type: ignore[arg-type]
    assert place == Entity("London", "LOC", 23, 29, pytest.approx(score))  # type: ignore[arg-type]


def test_b_begins_an_entity_beside_another_of_its_type() -> None:
    assert spans(found("Ada Babbage", "B-PER B-PER")) == [("Ada", "PER"), ("Babbage", "PER")]


def test_i_after_o_begins_an_entity() -> None:
    assert spans(found("in London", "O I-LOC")) == [("London", "LOC")]


def test_i_after_another_type_begins_an_entity() -> None:
    assert spans(found("Ada London", "B-PER I-LOC")) == [("Ada", "PER"), ("London", "LOC")]


def test_punctuation_inside_a_name_stays_in_it() -> None:
    assert spans(found("the U.S. won", "O B-LOC I-LOC I-LOC I-LOC O")) == [("U.S.", "LOC")]


def test_an_entity_may_be_the_last_word() -> None:
    assert spans(found("in New York", "O B-LOC I-LOC")) == [("New York", "LOC")]


@given(st.lists(st.sampled_from(LABELS), max_size=15), st.integers(0, 2**32 - 1))
def test_entities_and_scores_are_those_of_the_slow_way(tags: list[str], seed: int) -> None:
    text = " ".join(f"w{i}" for i in range(len(tags)))
    logits = logits_for(tags, noise=2.0, seed=seed)
    bounds, shares = words_of(text), special.softmax(logits, axis=-1).max(axis=-1, initial=0.0)
    expected = [(kind, bounds[first][0], bounds[last - 1][1]) for kind, first, last in bio_spans(tags)]
    scores = [float(shares[first:last].mean()) for _, first, last in bio_spans(tags)]
    entities = ner.decode(text, read(TOKENIZER, text), logits, SPEC)
    assert [(e.label, e.start, e.end) for e in entities] == expected
    assert [e.score for e in entities] == pytest.approx(scores, abs=1e-5)


@given(st.sampled_from(AWKWARD_TEXTS), st.integers(0, 2**32 - 1))
def test_offsets_give_back_the_text_in_any_script(text: str, seed: int) -> None:
    bounds = words_of(text)
    logits = np.random.default_rng(seed).normal(size=(len(bounds), len(LABELS))).astype(np.float32)
    entities = ner.decode(text, read(TOKENIZER, text), logits, SPEC)
    for entity in entities:
        assert text[entity.start : entity.end] == entity.text
        assert entity.text == entity.text.strip() != ""
    starts = [entity.start for entity in entities]
    assert starts == sorted(starts)


def test_a_name_keeps_its_combining_marks() -> None:
    text = "chez Ame\u0301lie Dvor\u030ca\u0301k 🙂"
    assert spans(found(text, "O B-PER I-PER O")) == [("Ame\u0301lie Dvor\u030ca\u0301k", "PER")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [*MARKED_TEXTS, "葛\U000e0100城"])
@settings(max_examples=20)
@given(seed=st.integers(0, 99))
def test_no_entity_ends_before_a_mark_unless_another_begins_there(kind: str, text: str, seed: int) -> None:
    pieces = read(Tokenizer(backend_of(kind)), text)
    words = len(ner.word_heads(pieces))
    logits = np.random.default_rng(seed).normal(size=(words, len(LABELS))).astype(np.float32)
    entities = ner.decode(text, pieces, logits, SPEC)
    starts = {entity.start for entity in entities}
    for entity in entities:
        assert text[entity.start : entity.end] == entity.text
        is_mark = unicodedata.category(text[entity.end : entity.end + 1] or " ") in ("Mn", "Me")
        assert not is_mark or entity.end in starts


def test_chinese_names_are_words_of_one_character() -> None:
    assert spans(found("李明去了上海", "B-PER I-PER O O B-LOC I-LOC")) == [("李明", "PER"), ("上海", "LOC")]


def test_no_words_give_no_entities() -> None:
    assert ner.decode("  \t", read(TOKENIZER, "  \t"), np.zeros((0, 7), np.float32), SPEC) == []


def test_labels_without_a_prefix_run_together() -> None:
    logits = np.array([[0, 9], [0, 9], [9, 0]], np.float32)
    entities = ner.decode(
        "Ada Lovelace sang",
        read(TOKENIZER, "Ada Lovelace sang"),
        logits,
        TaskSpec("ner", labels=("O", "PER")),
    )
    assert spans(entities) == [("Ada Lovelace", "PER")]


def test_logits_for_another_number_of_words_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 7\); \(2, 7\) is needed"):
        ner.decode("Ada sang", read(TOKENIZER, "Ada sang"), np.zeros((1, 7), np.float32), SPEC)


@given(st.sampled_from(AWKWARD_TEXTS), st.integers(6, 30), st.integers(0, 15))
def test_every_word_has_a_head_whatever_the_windows(text: str, max_tokens: int, stride: int) -> None:
    windows = TOKENIZER.windows(read(TOKENIZER, text), max_tokens, stride)
    logits = [np.ones((len(ner.head_positions(w.encoding)), 7), np.float32) for w in windows]
    assert len(ner.merge_windows(windows, logits)) == len(words_of(text))


def test_heads_are_the_first_pieces() -> None:
    encoding = TOKENIZER.single(read(TOKENIZER, "abc london de"))
    assert ner.head_positions(encoding).tolist() == [1, 4, 5]


@given(st.sampled_from(AWKWARD_TEXTS), st.integers(6, 30), st.integers(0, 15))
def test_each_word_comes_from_the_window_with_most_context(text: str, max_tokens: int, stride: int) -> None:
    pieces = read(TOKENIZER, text)
    windows = TOKENIZER.windows(pieces, max_tokens, stride)
    logits = []  # each row says which window and which piece it was made at
    for index, window in enumerate(windows):
        at = window.start + ner.head_positions(window.encoding) - 1
        logits.append(np.stack([np.full(len(at), index), at], axis=1).astype(np.float32))
    heads = np.unique(pieces.word_ids, return_index=True)[1].tolist()

    def surroundings(index: int, head: int) -> float:
        start, stop = windows[index].start, windows[index].stop
        return min(head - start, stop - 1 - head) + 0.01 * (stop - start) if start <= head < stop else -1.0

    expected = [[max(range(len(windows)), key=lambda i: surroundings(i, h)), h] for h in heads]
    assert ner.merge_windows(windows, logits).astype(int).tolist() == expected


def test_windows_without_their_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="1 windows but 0 arrays"):
        ner.merge_windows(TOKENIZER.windows(read(TOKENIZER, "x"), 8, 0), [])


def test_a_given_word_of_several_parts_goes_on_with_its_type() -> None:
    words, tags = ["In", "the", "U.S.", ",", "Ada"], ["O", "O", "B-LOC", "O", "B-PER"]
    targets = ner.word_targets(words, tags, read(TOKENIZER, join_words(words)), LABELS)
    assert [LABELS[t] for t in targets] == ["O", "O", "B-LOC", "I-LOC", "I-LOC", "I-LOC", "O", "B-PER"]


WORDS = st.lists(st.sampled_from(["Ada", "U.S.", "O'Neill", "北京", "\u200b", "cafe\u0301"]), max_size=8)


@given(WORDS, st.data())
def test_given_tags_come_back_from_their_targets(words: list[str], data: st.DataObject) -> None:
    tags = data.draw(st.lists(st.sampled_from(LABELS), min_size=len(words), max_size=len(words)))
    pieces = read(TOKENIZER, join_words(words))
    targets = ner.word_targets(words, tags, pieces, LABELS)
    assert len(targets) == len(words_of(join_words(words)))
    expected = ["O" if word == "\u200b" else tag for word, tag in zip(words, tags, strict=True)]
    assert ner.given_tags(words, pieces, targets, LABELS) == expected


def test_a_given_word_inside_a_piece_goes_on_with_its_tag() -> None:
    words, tags = (
        list("他在北京市见李明。"),
        ["O", "O", "B-LOC", "I-LOC", "I-LOC", "O", "B-PER", "I-PER", "O"],
    )
    vocabulary = [
        (piece, -1.0)
        for piece in ("<unk>", "▁", "他", "在", "北京", "市见", "李明", "。", "<pad>", "<s>", "</s>")
    ]
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, 0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    pieces = read(Tokenizer(backend), join_words(words))
    assert pieces.offsets.tolist() == [[0, 1], [0, 1], [1, 2], [2, 4], [4, 6], [6, 8], [8, 9]]
    targets = ner.word_targets(words, tags, pieces, LABELS)
    assert [LABELS[t] for t in targets] == ["O", "O", "B-LOC", "I-LOC", "B-PER", "O"]
    # 见 lies in a piece with the end of a place, and no tag of pieces can tell them apart.
    assert ner.given_tags(words, pieces, targets, LABELS) == [*tags[:5], "I-LOC", *tags[6:]]


def test_a_tag_that_is_no_label_is_refused() -> None:
    with pytest.raises(ValueError, match="tag 'B-MISC' is not among the labels O, B-PER"):
        ner.word_targets(["x"], ["B-MISC"], read(TOKENIZER, "x"), LABELS)
