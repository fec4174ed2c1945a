"""Special tokens and segments are those that the tokenizer's file puts there."""

import pytest
import tokenizers
from hypothesis import given, settings
from tokenizers import models, processors

from bert.errors import CheckpointError
from bert.text.special_tokens import pair_form
from bert.tokenizer import Tokenizer
from tests.support.odd_texts import TEXTS
from tests.support.tokenizers import KINDS, backend_of

VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "<s>": 4, "</s>": 5, "a": 6}
SPECIAL = [(piece, number) for piece, number in VOCABULARY.items() if piece != "a"]


def backend(processor: processors.PostProcessor | None = None) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    if processor is not None:
        made.post_processor = processor
    return made


def template(single: str, pair: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=SPECIAL)


@pytest.mark.parametrize(
    "processor",
    [
        processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
        processors.RobertaProcessing(("</s>", 5), ("<s>", 4)),
        processors.Sequence([processors.ByteLevel(), processors.RobertaProcessing(("</s>", 5), ("<s>", 4))]),
        template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
        template("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
        template("[CLS] $A [SEP]", "[CLS] $A <s> $B [SEP]"),
    ],
)
def test_pairs_are_those_of_the_library(processor: processors.PostProcessor) -> None:
    theirs = backend(processor)
    ours = Tokenizer(backend(processor))
    (a,) = ours.pieces(["a"])
    one, two = theirs.encode("a"), theirs.encode("a", "a")
    assert ours.single(a).ids.tolist() == one.ids and ours.single(a).segment_ids.tolist() == one.type_ids
    assert ours.pair(a, a).ids.tolist() == two.ids and ours.pair(a, a).segment_ids.tolist() == two.type_ids
    assert ours.form.special_tokens(2) == theirs.num_special_tokens_to_add(is_pair=True)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(first=TEXTS, second=TEXTS)
def test_every_kind_reads_texts_and_pairs_as_the_library_does(kind: str, first: str, second: str) -> None:
    ours, theirs = Tokenizer(backend_of(kind)), backend_of(kind)
    theirs.encode_special_tokens = True
    if any(piece in text for piece in ("[SEP]", "[CLS]") for text in (first, second)):
        return  # the library finds these in the vocabulary of a Unigram: see test_tokenizer_kinds.py
    a, b = ours.pieces([first, second])
    assert a.ids.tolist() == theirs.encode(first, add_special_tokens=False).ids
    for found, expected in (
        (ours.single(a), theirs.encode(first)),
        (ours.pair(a, b), theirs.encode(first, second)),
    ):
        assert found.ids.tolist() == expected.ids
        assert found.segment_ids.tolist() == expected.type_ids
        sequences = [-1 if number is None else number for number in expected.sequence_ids]
        special = [bool(flag) for flag in expected.special_tokens_mask]
        assert (found.sequence_ids == -1).tolist() == special
        assert [s for s, flag in zip(sequences, special, strict=True) if not flag] == found.sequence_ids[
            found.sequence_ids >= 0
        ].tolist()


@pytest.mark.parametrize(
    ("single", "pair", "reason"),
    [
        ("$A [SEP]", "$A [SEP] $B [SEP]", "writes one text as A:0 3:0"),
        ("[CLS] <s> $A [SEP]", "[CLS] $A [SEP] $B [SEP]", "writes one text as 2:0 4:0 A:0 3:0"),
        ("[CLS] $A:1 [SEP]", "[CLS] $A [SEP] $B [SEP]", "in segment 0"),
        ("[CLS] $A [SEP]", "$A $B:1", "writes two texts as A:0 B:1"),
        ("[CLS] $A [SEP]", "[CLS] $A $B [SEP]", "writes two texts"),
        ("[CLS] $A [SEP]", "[CLS] $B [SEP] $A [SEP]", "writes two texts"),
        ("[CLS] $A [SEP]", "<s> $A [SEP] $B [SEP]", "writes two texts"),
        ("[CLS] $A [SEP]", "[CLS] $A [SEP]:1 $B:1 [SEP]:1", "writes two texts"),
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]", "writes two texts"),
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] [SEP] $B [SEP]", "one or two between"),
    ],
)
def test_other_forms_are_refused(single: str, pair: str, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        pair_form(backend(template(single, pair)))


def test_two_templates_are_refused() -> None:
    one = template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    with pytest.raises(CheckpointError, match="two templates"):
        pair_form(backend(processors.Sequence([one, one])))


def test_without_a_post_processor_the_special_pieces_say_the_form() -> None:
    bert = pair_form(backend())
    assert (bert.cls_id, bert.between, bert.sep_id, bert.second_segment) == (2, (3,), 3, 1)
    roberta = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>"))
    form = pair_form(roberta)
    assert (form.cls_id, form.between, form.sep_id, form.second_segment) == (0, (1, 1), 1, 0)
    with pytest.raises(CheckpointError, match="no post_processor"):
        pair_form(tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
