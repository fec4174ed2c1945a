"""Entities from the logits of every piece: those of transformers' pipeline, and of slow obvious ways."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from bert.tasks import aggregation, ner
from bert.tasks.aggregation import Aggregation, EntityOptions, pieces_as_words
from bert.tasks.ner import Entity
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Floats
from bert.tokenizer import Pieces, Tokenizer
from tests.support.families import relative
from tests.support.reading import AWKWARD_TEXTS, MARKED_TEXTS, character_tokenizer, read
from tests.support.tokenizers import KINDS, TRAINING_TEXTS, backend_of

BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
SPEC = TaskSpec("ner", BIO)
SCHEMES = {
    "BIO": BIO,
    "IOB1": ("I-LOC", "I-PER", "B-LOC", "B-PER", "O"),
    "IO": ("O", "PER", "LOC"),
    "BIOES": ("O", *(f"{role}-{kind}" for kind in ("PER", "LOC") for role in "BIES")),
    "BILOU": ("O", *(f"{role}-{kind}" for kind in ("PER", "LOC") for role in "BILU")),
    "small letters": ("o", "b-per", "i-per", "b-loc", "i-loc"),
}
MODELS = {"wordpiece": "bert", "bpe": "roberta", "unigram": "xlm-roberta"}
ODD_TEXTS = (
    "Ada Lovelace met Charles Babbage in London and Zoë Dvořák wrote the notes",
    "Microsoft bought another company in İstanbul yesterday, for forgotten reasons",
    "Привет, как дела? U.S. vs. O'Neill-Smith (№ 5), ½ of it!",
    "משה גר בירושלים, ישראל 北京",
    "🙂 don't...",
    "a",
)
BY_PIECE = [each for each in Aggregation if each is not Aggregation.FIRST]
TOKENIZER = character_tokenizer()


tokenizer_of = cache(lambda kind: Tokenizer(backend_of(kind)))


@cache
def reference(kind: str, scheme: str) -> tuple[Tokenizer, Any]:
    """Return our tokenizer and a random model's pipeline."""
    ours = tokenizer_of(kind)
    named = {
        name: None if number is None else ours.id_to_token(number)
        for name, number in (
            ("cls_token", ours.cls_id),
            ("sep_token", ours.sep_id),
            ("unk_token", ours.unk_id),
        )
    }
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend_of(kind), model_input_names=["input_ids", "attention_mask"], **named
    )
    spec = TaskSpec("ner", SCHEMES[scheme])
    model = relative(MODELS[kind], spec, seed=3, vocab_size=ours.highest_id() + 1)
    with torch.no_grad():  # else one tag would win everywhere
        logits = piece_logits(ours, model, read(ours, ODD_TEXTS[0]))
        model.classifier.bias -= torch.tensor(logits.mean(axis=0))
    return ours, transformers.pipeline("token-classification", model=model, tokenizer=theirs)


def piece_logits(tokenizer: Tokenizer, model: Any, pieces: Pieces) -> Floats:
    """Return the model's logits at each piece (T, K)."""
    ids = torch.tensor(tokenizer.single(pieces).ids)[None].long()
    with torch.no_grad():
        logits: Floats = model(input_ids=ids).logits[0, 1:-1].numpy()
    return logits


def stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a span without the white space that some tokenizers' offsets have."""
    shown = text[start:end]
    return start + len(shown) - len(shown.lstrip()), end - len(shown) + len(shown.rstrip())


def texts_of_agreed_words(tokenizer: Tokenizer) -> list[str]:
    """Return texts in which transformers finds our words whatever the tokenizer.

    These have letters and single spaces only, and words without a piece for the blank before them or for half a character.
    """

    def is_agreed(word: str) -> bool:
        starts, ends = read(tokenizer, f"a {word}").offsets[1:].T.tolist()
        whole = all(start < end for start, end in zip(starts, ends, strict=True))
        return word.isalpha() and max(word) < "\u0700" and whole and starts == sorted(set(starts))

    words = [word for word in " ".join(TRAINING_TEXTS).split() if is_agreed(word)]
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(words, 12)) for _ in range(12)]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("scheme", ["BIO", "IOB1", "IO"])
@pytest.mark.parametrize("strategy", Aggregation)
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_entities_are_those_of_the_transformers_pipeline(kind: str, scheme: str, strategy: str) -> None:
    tokenizer, pipeline = reference(kind, scheme)
    options, spec, count = EntityOptions(Aggregation(strategy)), TaskSpec("ner", SCHEMES[scheme]), 0
    any_text = strategy in ("simple", "none") or kind == "wordpiece"
    for text in (*texts_of_agreed_words(tokenizer), *(ODD_TEXTS if any_text else ())):
        pieces = read(tokenizer, text)
        logits = piece_logits(tokenizer, pipeline.model, pieces)
        found = options.decode(
            text, pieces, logits if options.by_piece else logits[ner.word_heads(pieces)], spec
        )
        named = "entity" if strategy == "none" else "entity_group"
        theirs = pipeline(text, aggregation_strategy=strategy)
        expected = [(each[named], *stripped(text, each["start"], each["end"])) for each in theirs]
        is_shown = [start < end for _, start, end in expected]
        assert [(e.label, e.start, e.end) for e in found] == [
            each for each, shown in zip(expected, is_shown, strict=True) if shown
        ]
        scores = [float(each["score"]) for each, shown in zip(theirs, is_shown, strict=True) if shown]
        assert [e.score for e in found] == pytest.approx(scores, abs=1e-5)
        count += len(found)
    assert count > 20


@pytest.mark.parametrize("kind", MODELS)
def test_pieces_with_tags_have_the_places_and_names_of_the_pipeline(kind: str) -> None:
    tokenizer, pipeline = reference(kind, "BIO")
    for text in ODD_TEXTS:
        pieces = read(tokenizer, text)
        logits = piece_logits(tokenizer, pipeline.model, pieces)
        found = aggregation.tagged_pieces(text, pieces, logits, SPEC)
        unknown = tokenizer.unk_id
        shown = [
            (p.index + 1, p.entity.text if p.token_id == unknown else tokenizer.id_to_token(p.token_id))
            for p in found
        ]
        theirs = pipeline(text, aggregation_strategy="none")
        visible = [each for each in theirs if text[each["start"] : each["end"]].strip()]
        assert shown == [(each["index"], each["word"]) for each in visible]


def slow_words(pieces: Pieces, choose: Callable[[Floats], Floats], logits: Floats) -> Floats:
    """Return one row for each word, chosen of its pieces' probabilities."""
    words = dict.fromkeys(word for word in pieces.word_ids.tolist() if word >= 0)
    rows = special.softmax(logits, axis=-1)
    return np.stack([choose(rows[pieces.word_ids == word]) for word in words])


CHOICES: dict[Aggregation, Callable[[Floats], Floats]] = {
    Aggregation.AVERAGE: lambda rows: rows.mean(axis=0),
    Aggregation.MAX: lambda rows: max(rows, key=lambda row: row.max()),
}


@given(
    st.sampled_from(sorted(CHOICES)),
    st.sampled_from(AWKWARD_TEXTS),
    st.sampled_from(sorted(SCHEMES)),
    st.integers(0, 2**32 - 1),
)
def test_words_get_what_the_slow_way_gives_them(
    strategy: Aggregation, text: str, scheme: str, seed: int
) -> None:
    pieces, labels = read(TOKENIZER, text), SCHEMES[scheme]
    spec = TaskSpec("ner", labels)
    logits = np.random.default_rng(seed).normal(0, 2, (len(pieces), len(labels))).astype(np.float32)
    rows = slow_words(pieces, CHOICES[strategy], logits)
    expected = ner.decode(text, pieces, np.log(rows), spec)  # the softmax of logarithms is what they were
    found = aggregation.decode(text, pieces, logits, spec, strategy)
    assert [(e.label, e.start, e.end) for e in found] == [(e.label, e.start, e.end) for e in expected]
    assert [e.score for e in found] == pytest.approx([e.score for e in expected], abs=1e-5)


@given(
    strategy=st.sampled_from([each for each in BY_PIECE if each is not Aggregation.NONE]),
    scheme=st.sampled_from(sorted(SCHEMES)),
    words=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_with_a_piece_a_word_every_strategy_joins_the_same(
    strategy: Aggregation, scheme: str, words: int, seed: int
) -> None:
    text, labels = " ".join(["went", "london"] * words), SCHEMES[scheme]
    spec = TaskSpec("ner", labels)
    pieces = read(TOKENIZER, text)
    assert len(pieces) == 2 * words
    logits = np.random.default_rng(seed).normal(0, 2, (len(pieces), len(labels))).astype(np.float32)
    assert aggregation.decode(text, pieces, logits, spec, strategy) == pytest.approx(
        ner.decode(text, pieces, logits, spec)
    )


@pytest.mark.parametrize("kind", KINDS)
@given(
    strategy=st.sampled_from(BY_PIECE),
    text=st.sampled_from((*AWKWARD_TEXTS, *MARKED_TEXTS, "  ", "")),
    seed=st.integers(0, 2**32 - 1),
)
def test_entities_are_slices_of_the_text_without_blanks_around(
    strategy: Aggregation, kind: str, text: str, seed: int
) -> None:
    pieces = read(tokenizer_of(kind), text)
    logits = np.random.default_rng(seed).normal(0, 2, (len(pieces), len(BIO))).astype(np.float32)
    found = aggregation.decode(text, pieces, logits, SPEC, strategy)
    assert [e.start for e in found] == sorted(e.start for e in found)
    for entity in found:
        assert text[entity.start : entity.end] == entity.text == entity.text.strip() != ""
        assert entity.label in (BIO[1:] if strategy is Aggregation.NONE else ("PER", "LOC"))


@given(st.sampled_from(AWKWARD_TEXTS), st.integers(6, 30), st.integers(0, 15))
def test_each_piece_comes_from_the_window_with_most_context(text: str, max_tokens: int, stride: int) -> None:
    pieces = read(TOKENIZER, text)
    windows = TOKENIZER.windows(pieces_as_words(pieces), max_tokens, stride)
    logits = []  # each row says which window and which piece it was made at
    for index, window in enumerate(windows):
        at = window.start + ner.head_positions(window.encoding) - 1
        logits.append(np.stack([np.full(len(at), index), at], axis=1).astype(np.float32))

    def surroundings(index: int, piece: int) -> float:
        start, stop = windows[index].start, windows[index].stop
        return min(piece - start, stop - 1 - piece) + 0.01 * (stop - start) if start <= piece < stop else -1.0

    expected = [
        [max(range(len(windows)), key=lambda i: surroundings(i, piece)), piece]
        for piece in range(len(pieces))
    ]
    assert ner.merge_windows(windows, logits).astype(int).tolist() == expected


def options_of(text: str, **options: Any) -> list[Entity]:
    """Return what is found where the tags are B-PER, I-PER, O, B-LOC and the scores fall from piece to piece."""
    pieces, tags = read(TOKENIZER, text), ["B-PER", "I-PER", "O", "B-LOC"]
    logits = np.zeros((len(pieces), len(BIO)), np.float32)
    logits[np.arange(len(tags)), [BIO.index(tag) for tag in tags]] = [5.0, 4.0, 3.0, 2.0]
    return EntityOptions(**options).decode(text, pieces, logits, SPEC)


@pytest.mark.parametrize("strategy", Aggregation)
def test_scores_and_types_say_what_is_kept(strategy: Aggregation) -> None:
    text = "went london went london"
    every = options_of(text, aggregation=strategy)
    person, place = {"PER", "B-PER", "I-PER"}, {"LOC", "B-LOC"}
    for types, labels in ((["PER"], person), (["LOC"], place), (["PER", "LOC"], person | place)):
        kept = options_of(text, aggregation=strategy, types=frozenset(types))
        assert kept == [entity for entity in every if entity.label in labels] != []
    for entity in every:  # its own score keeps an entity, anything above does not
        kept = options_of(text, aggregation=strategy, min_score=entity.score)
        assert kept == [other for other in every if other.score >= entity.score]
        assert entity in kept
    above = options_of(text, aggregation=strategy, min_score=np.nextafter(every[-1].score, 1))
    assert every[-1] not in above
    assert options_of(text, aggregation=strategy, min_score=1.0) == []


def test_of_equally_certain_pieces_the_first_decides() -> None:
    logits = np.array([[0, 3, 0, 0, 0], [0, 0, 0, 3, 0]], np.float32)
    (entity,) = aggregation.decode("ab", read(TOKENIZER, "ab"), logits, SPEC, Aggregation.MAX)
    assert (entity.text, entity.label) == ("ab", "PER")


def test_a_model_without_a_label_for_outside_tags_every_piece() -> None:
    logits = np.array([[1, 0], [0, 1], [0, 2]], np.float32)
    pieces = read(TOKENIZER, "ab went")
    found = aggregation.decode("ab went", pieces, logits, TaskSpec("ner", ("NOUN", "VERB")), Aggregation.NONE)
    assert [(e.text, e.label) for e in found] == [("a", "NOUN"), ("b", "VERB"), ("went", "VERB")]


@pytest.mark.parametrize("strategy", BY_PIECE)
def test_logits_for_another_number_of_pieces_are_refused(strategy: Aggregation) -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 5\); \(2, 5\) is needed"):
        aggregation.decode("ab", read(TOKENIZER, "ab"), np.zeros((1, 5), np.float32), SPEC, strategy)
