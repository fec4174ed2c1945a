"""BPE and Unigram beside WordPiece: exact offsets, the same words, and no answer that a blank piece breaks."""

import json
import unicodedata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from bert.encoding import Pieces
from bert.tasks import ner, qa, spans
from bert.tasks.spec import TaskSpec
from bert.text.offsets import word_bounds
from bert.tokenizer import Tokenizer
from tests.support.odd_texts import LONG_TEXTS, ODD_TEXTS, TEXTS
from tests.support.tokenizers import KINDS, TRAINING_TEXTS, backend_of, tokenizer_json

OTHERS = tuple(kind for kind in KINDS if not kind.startswith("wordpiece"))
LABELS = ("O", "B-PER", "I-PER")
ANY_TEXT = TEXTS | st.sampled_from([*ODD_TEXTS, *TRAINING_TEXTS])


def untrimmed_bpe() -> Tokenizer:
    """Return a BPE whose post-processor leaves the blank in a span, and that puts one before the text."""
    backend = backend_of("bpe")
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    ids = [("<s>", 0), ("</s>", 2)]
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=ids
    )
    return Tokenizer(backend)


def plain_metaspace() -> Tokenizer:
    """Return a Unigram whose spans hold the blank before a word."""
    backend = backend_of("unigram")
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return Tokenizer(backend)


TOKENIZERS = {
    **{kind: Tokenizer(backend_of(kind)) for kind in KINDS},
    "untrimmed_bpe": untrimmed_bpe(),
    "plain_metaspace": plain_metaspace(),
}
every_kind = pytest.mark.parametrize("kind", TOKENIZERS)


def read(kind: str, text: str) -> Pieces:
    (pieces,) = TOKENIZERS[kind].pieces([text])
    return pieces


def check_offsets(text: str, pieces: Pieces, *, lossless: bool) -> None:
    covered = np.zeros(len(text), np.bool_)
    for start, end in pieces.offsets.tolist():
        assert 0 <= start <= end <= len(text)
        span = text[start:end]
        assert span == span.strip()
        covered[start:end] = True
    if lossless:
        assert all(c.isspace() for c, there in zip(text, covered.tolist(), strict=True) if not there)


@every_kind
@settings(max_examples=30)
@given(text=ANY_TEXT)
def test_no_span_begins_or_ends_with_a_blank(kind: str, text: str) -> None:
    check_offsets(text, read(kind, text), lossless="bpe" in kind)


@every_kind
def test_long_texts_have_exact_offsets(kind: str) -> None:
    for text in LONG_TEXTS:
        check_offsets(text, read(kind, text), lossless="bpe" in kind)


@pytest.mark.parametrize("kind", ["bpe", "untrimmed_bpe"])
def test_a_character_of_several_pieces_is_never_cut(kind: str) -> None:
    pieces = read(kind, "a 😀")
    assert pieces.offsets[-4:].tolist() == [[2, 3]] * 4


def slow_words(text: str, pieces: Pieces, splits: list[int | None]) -> list[int]:
    """Return the word in which each piece starts, by looking at all of them."""
    (bounds,) = word_bounds([text])
    spans, found = pieces.offsets.tolist(), []
    for at, (start, end) in enumerate(spans):
        words = [w for w, (first, last) in enumerate(bounds) if first < max(end, start + 1) and start < last]
        is_prefix = any(
            b > a for (a, b), split in list(zip(spans, splits, strict=True))[at:] if split == splits[at]
        )
        found.append(words[0] if words and (is_prefix or bounds[words[0]][0] < start) else -1)
    return found


@pytest.mark.parametrize("kind", [name for name in TOKENIZERS if not name.startswith("wordpiece")])
@settings(max_examples=30)
@given(text=ANY_TEXT)
def test_words_are_those_in_which_pieces_start(kind: str, text: str) -> None:
    pieces = read(kind, text)
    words = pieces.word_ids
    assert words.dtype == np.int32
    if (np.diff(pieces.offsets[:, 0]) >= 0).all():
        splits = TOKENIZERS[kind]._backend.encode(text, add_special_tokens=False).word_ids
        assert words.tolist() == slow_words(text, pieces, splits)
    inside = words[words >= 0]
    assert (np.diff(inside) >= 0).all()
    assert len(ner.word_heads(pieces)) == len(set(inside.tolist()))
    sliced = read(kind, text).slice(1, 4)
    assert sliced.word_ids.tolist() == words[1:4].tolist()


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=30)
@given(words=st.lists(st.sampled_from(["Ada", "met", "London", "naïve", "12", "he", "."]), max_size=12))
def test_plain_words_have_the_same_heads_with_every_kind(kind: str, words: list[str]) -> None:
    text = " ".join(words)
    assert len(ner.word_heads(read(kind, text))) == len(word_bounds([text])[0]) == len(words)


@pytest.mark.parametrize("kind", OTHERS)
def test_the_blank_before_a_word_is_its_head_and_a_line_break_is_not(kind: str) -> None:
    text = "Ω\n\nBonn ☃ "
    pieces = read(kind, text)
    heads = ner.word_heads(pieces)
    assert pieces.offsets[heads, 0].tolist() == [0, 3, 8]
    backend = backend_of(kind).encode(text, add_special_tokens=False)
    written = [backend.tokens[head] for head in heads.tolist()]
    others = {"unigram_deberta": ["▁", "B", "▁"], "gemma": ["<0xCE>", "B", "▁"]}
    assert written == (["Î", "B", "Ġ"] if "bpe" in kind else others.get(kind, ["▁", "▁", "▁"]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_piece_of_a_word_is_the_one_that_run_ner_labels(kind: str) -> None:
    """`transformers` labels the first piece of each given word, which is a lone blank before many signs."""
    words = ["Ada", "☃", "met", "北", "京", "Ω", "in", "漢"]
    reference = PreTrainedTokenizerFast(tokenizer_object=backend_of(kind), add_prefix_space=True)
    theirs = reference(words, is_split_into_words=True, add_special_tokens=False)
    pieces = read(kind, " ".join(words))
    first = [theirs.word_ids().index(word) for word in range(len(words))]
    if (
        "bpe" in kind or kind == "gemma"
    ):  # whose text begins without a blank, and whose given words begin with one
        assert len(first) == len(ner.word_heads(pieces))
    else:
        assert pieces.ids.tolist() == theirs["input_ids"]
        assert ner.word_heads(pieces).tolist() == first


@every_kind
@settings(max_examples=30)
@given(text=ANY_TEXT, max_tokens=st.integers(5, 20), stride=st.integers(0, 6))
def test_entities_of_any_windows_are_words_of_the_text(
    kind: str, text: str, max_tokens: int, stride: int
) -> None:
    tokenizer, pieces = TOKENIZERS[kind], read(kind, text)
    heads = ner.word_heads(pieces)
    if not len(heads):
        return
    windows = tokenizer.windows(pieces, max_tokens, stride)
    logits = [np.tile([0.0, 1.0, 0.0], (len(ner.head_positions(w.encoding)), 1)) for w in windows]
    merged = ner.merge_windows(windows, logits)
    assert merged.shape == (len(heads), 3)
    entities = ner.decode(text, pieces, merged, TaskSpec("ner", LABELS))
    assert len(entities) <= len(heads)
    for one, other in pairwise(entities):
        assert one.end <= other.start
    for entity in entities:
        assert entity.text == text[entity.start : entity.end] == entity.text.strip() != ""


@every_kind
@settings(max_examples=30)
@given(
    text=ANY_TEXT,
    scores=st.lists(st.integers(-9, 9), min_size=80, max_size=80),
    max_tokens=st.integers(8, 30),
)
def test_answers_never_begin_or_end_with_a_blank(
    kind: str, text: str, scores: list[int], max_tokens: int
) -> None:
    tokenizer = TOKENIZERS[kind]
    question, context = tokenizer.pieces(["who", text])
    spec = TaskSpec("qa", max_tokens=max_tokens, max_question_tokens=3, max_answer_tokens=4)
    windows = qa.encode(tokenizer, question, context, spec)
    logits = [np.resize(np.array(scores, np.float32), (len(window.encoding), 2)) for window in windows]
    found = spans.decode(text, windows, logits, spec, top_k=20)
    for span in (*found.alternatives, *([found.best] if found.best else [])):
        assert span.text == text[span.start : span.end] == span.text.strip() != ""


def test_an_answer_may_begin_at_a_blank_piece() -> None:
    text = "it was 😀 there"
    question, context = TOKENIZERS["bpe"].pieces(["who", text])
    spec = TaskSpec("qa", max_tokens=64)
    (window,) = qa.encode(TOKENIZERS["bpe"], question, context, spec)
    first = len(window.encoding) - 1 - len(context)
    blank = int(np.flatnonzero(context.offsets[:, 0] == context.offsets[:, 1])[0])
    logits = np.zeros((len(window.encoding), 2), np.float32)
    logits[first + blank, 0], logits[first + blank + 4, 1] = 9, 9
    assert spans.decode(text, [window], [logits], spec).answer == "😀"


@every_kind
@settings(max_examples=30)
@given(seed=st.integers(0, 999), n_best=st.integers(1, 30))
def test_the_n_best_spans_are_n_where_pieces_share_characters(kind: str, seed: int, n_best: int) -> None:
    text = "it was 😀😀 there , and ☃\n\n漢字 and ½ of I"
    question, context = TOKENIZERS[kind].pieces(["who", text])
    spec = TaskSpec("qa", max_tokens=100, max_answer_tokens=5, n_best=n_best)
    (window,) = qa.encode(TOKENIZERS[kind], question, context, spec)
    logits = np.random.default_rng(seed).normal(0, 2, (len(window.encoding), 2)).astype(np.float32)
    totals: dict[tuple[int, int], float] = {}
    scores = logits[len(window.encoding) - 1 - len(context) :].astype(np.float64)
    for start in range(len(context)):
        for end in range(start, min(start + 5, len(context))):
            written = [(a, b) for a, b in context.offsets[start : end + 1].tolist() if b > a]
            if written:
                key, score = (written[0][0], written[-1][1]), float(scores[start, 0] + scores[end, 1])
                totals[key] = max(totals.get(key, -np.inf), score)
    best = sorted(totals, key=lambda key: -totals[key])[:n_best]
    answer = spans.decode(text, [window], [logits], spec, top_k=n_best)
    assert answer.best is not None
    assert [(span.start, span.end) for span in (answer.best, *answer.alternatives)] == best
    weights = np.exp([totals[key] for key in best])
    assert answer.score == pytest.approx(weights[0] / weights.sum(), abs=1e-6)


@pytest.mark.parametrize("kind", OTHERS)
def test_special_pieces_in_a_text_are_plain_characters(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id}
    text = "a <s> b</s> <pad> <mask> [CLS] [SEP][MASK]"
    assert not special & set(read(kind, text).ids.tolist())
    assert not special & set(tokenizer.ids([text, "＜/s＞"])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_are_found_by_name(kind: str) -> None:
    tokenizer, backend = TOKENIZERS[kind], backend_of(kind)
    roberta = ["<s>", "</s>", "<pad>", "<unk>", "<mask>"]
    names = {
        "bpe": roberta,
        "unigram": roberta,
        "gemma": ["<bos>", "<eos>", "<pad>", "<unk>", "<mask>"],
        "unigram_albert": ["[CLS]", "[SEP]", "<pad>", "<unk>", "[MASK]"],
        "wordpiece_mpnet": ["<s>", "</s>", "<pad>", "[UNK]", "<mask>"],
    }.get(kind, ["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"])
    ids = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.unk_id, tokenizer.mask_id)
    assert ids == tuple(backend.token_to_id(name) for name in names)


def test_a_mask_of_another_name_is_found_among_the_added_pieces() -> None:
    content = tokenizer_json("bpe").replace('"<mask>"', '"<|MASK|>"').encode()
    found = Tokenizer.parse(content, Path("tokenizer.json"))
    assert found.mask_id == 500 and found.mask_piece == "<|MASK|>"


def test_a_truncation_and_padding_of_the_file_are_off() -> None:
    backend = backend_of("unigram")
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    assert len(Tokenizer(backend).pieces(["one two three four five"])[0]) > 8
    assert len(Tokenizer(backend).pieces(["a"])[0]) < 8


def test_marks_belong_to_the_word_before_them() -> None:
    text = "cafe\u0301 x"
    for kind in TOKENIZERS:
        pieces = read(kind, text)
        last = int(np.flatnonzero(pieces.word_ids == 0)[-1])
        assert pieces.offsets[last, 1] == 5 and unicodedata.combining(text[4])


def test_added_pieces_without_blanks_stay_pieces() -> None:
    backend = backend_of("bpe")
    backend.add_tokens([AddedToken("@user", lstrip=True)])
    (pieces,) = Tokenizer(backend).pieces(["hi @user, hi"])
    assert [span for span in pieces.offsets.tolist() if span[1] - span[0] == 5] == [[5 - 2, 8]]


def test_a_file_of_2020_is_read() -> None:
    content = json.loads(tokenizer_json("unigram"))
    del content["model"]["type"], content["model"]["byte_fallback"]
    content["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": True},
        ],
    }
    flags = {"trim_offsets": True, "add_prefix_space": True}
    content["post_processor"] = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], **flags}
    content["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0}
    found = Tokenizer.parse(json.dumps(content).encode(), Path("tokenizer.json"))
    assert found.form == TOKENIZERS["unigram"].form
    texts = [*ODD_TEXTS, *TRAINING_TEXTS]
    assert found.ids(texts) == TOKENIZERS["unigram"].ids(texts)


@every_kind
def test_given_words_get_the_same_targets_with_every_kind(kind: str) -> None:
    words = ["Ada", "Lovelace", "met", "U.S.", "troops", "😀", "in", "北京", "."]
    tags = ["B-PER", "I-PER", "O", "B-LOC", "O", "O", "O", "B-LOC", "O"]
    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    pieces = read(kind, " ".join(words))
    found = ner.word_targets(words, tags, pieces, labels)
    assert found.tolist() == [1, 2, 0, 3, 4, 4, 4, 0, 0, 0, 3, 4, 0]  # "U.S." is four words, "北京" two
    assert ner.given_tags(words, pieces, found, labels) == tags
