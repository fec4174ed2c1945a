"""Pairs for similarity: with scores, positive ones, triplets and rows of NLI, under the names that data sets have."""

import json
from typing import Any

import pytest

from bert.data.examples import LabelledFile, TextExample
from bert.data.read import read_labelled
from bert.errors import ConfigError, DataError
from tests.support.files import Write


def read(write: Write, name: str, content: str, **fields: Any) -> list[TextExample]:
    return read_labelled(LabelledFile(write(name, content), **fields), "similarity")


def of(examples: list[TextExample]) -> list[tuple[Any, ...]]:
    return [(e.text, e.text_pair, e.label, e.negatives) for e in examples]


@pytest.mark.parametrize(
    "header", ["text,text_pair,label", "sentence1,sentence2,score", "sentence1,sentence2,label"]
)
def test_pairs_with_scores(write: Write, header: str) -> None:
    assert of(read(write, "a.csv", f"{header}\nA cat,A dog,2.5\n")) == [("A cat", "A dog", 2.5, None)]


@pytest.mark.parametrize("header", ["anchor,positive", "query,positive", "query,answer", "question,answer"])
def test_pairs_that_belong_together(write: Write, header: str) -> None:
    assert of(read(write, "a.csv", f"{header}\nA cat,A dog\n")) == [("A cat", "A dog", None, ())]


def test_an_empty_label_says_that_pairs_belong_together(write: Write) -> None:
    found = read(write, "a.csv", "text,text_pair,label\nA cat,A dog,x\n", columns={"label": ""})
    assert of(found) == [("A cat", "A dog", None, ())]


def test_pairs_without_scores_are_not_taken_for_positive_ones(write: Write) -> None:
    with pytest.raises(
        DataError, match=r"a\.csv:1: has no column 'label'.*[{]\"label\": \"\"[}] for pairs that belong"
    ):
        read(write, "a.csv", "text,text_pair,similarity\nA cat,A dog,3\n")


@pytest.mark.parametrize("header", ["anchor,positive,negative", "text,text_pair,negative"])
def test_triplets(write: Write, header: str) -> None:
    assert of(read(write, "a.csv", f"{header}\nA cat,A kitten,A car\n")) == [
        ("A cat", "A kitten", None, ("A car",))
    ]


def test_several_negatives_in_columns_and_lists(write: Write) -> None:
    rows = "anchor\tpositive\tnegative_1\tnegative_10\tnegative_2\na\tb\tc\te\td\n"
    assert read(write, "a.tsv", rows)[0].negatives == ("c", "d", "e")
    lists = [{"anchor": "a", "positive": "b", "negatives": found} for found in (["c", "d"], [])]
    content = "\n".join(map(json.dumps, lists))
    assert [e.negatives for e in read(write, "a.jsonl", content)] == [("c", "d"), ()]
    columns = {"text": "x", "text_pair": "y", "negative": "n, m"}
    assert of(read(write, "b.csv", "x,y,m,n\na,b,c,d\n", columns=columns)) == [("a", "b", None, ("d", "c"))]


def test_a_missing_column_of_a_triplet_is_named(write: Write) -> None:
    with pytest.raises(
        DataError, match=r"a\.csv:1: has no column 'positive'; its columns are 'anchor', 'negative'"
    ):
        read(write, "a.csv", "anchor,negative\na,b\n")
    with pytest.raises(DataError, match=r"b\.csv:1: has no column 'wrong'"):
        read(write, "b.csv", "anchor,positive\na,b\n", columns={"negative": "wrong"})
    rows = ({"anchor": "a", "positive": "b", "negative": "c"}, {"anchor": "a", "positive": "b"})
    with pytest.raises(DataError, match=r"c\.jsonl:2: has no field 'negative'"):
        read(write, "c.jsonl", "\n".join(map(json.dumps, rows)))


def test_an_empty_negative_is_a_problem_or_left_out(write: Write) -> None:
    content = "anchor,positive,negative\na,b,\na,b,c\n"
    with pytest.raises(DataError, match=r"a\.csv:2: 'negative' is empty"):
        read(write, "a.csv", content)
    assert len(read(write, "a.csv", content, skip_empty=True)) == 1


def test_scores_and_negatives_together_are_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match="names a label and negatives"):
        read(write, "a.csv", "text,text_pair,s,negative\na,b,1,c\n", columns={"label": "s"})
    content = "text,text_pair,label,negative\na,b,1,c\n"  # of reviews, say
    with pytest.raises(
        ConfigError, match=r"has scores \('label'\) and negatives \('negative'\): say which are read"
    ):
        read(write, "a.csv", content)
    assert of(read(write, "a.csv", content, columns={"negative": ""})) == [("a", "b", 1.0, None)]
    assert of(read(write, "a.csv", content, columns={"label": ""})) == [("a", "b", None, ("c",))]
    mined = "anchor,positive,negative,score\na,b,c,0.3\n"
    assert of(read(write, "a.csv", mined)) == [("a", "b", None, ("c",))]


NLI = [
    ("A man sleeps.", "A person rests.", "entailment"),
    ("A man sleeps.", "A man runs.", "contradiction"),
    ("A man sleeps.", "Someone is asleep.", "entailment"),
    ("A man sleeps.", "He dreams.", "neutral"),
    ("A dog barks.", "An animal is loud.", "entailment"),
    ("A dog barks.", "The dog is mute.", "-"),
]
PAIRS = [
    ("A man sleeps.", "A person rests.", None, ("A man runs.",)),
    ("A man sleeps.", "Someone is asleep.", None, ("A man runs.",)),
    ("A dog barks.", "An animal is loud.", None, ()),
]


def test_entailment_gives_pairs_and_a_contradiction_the_negative(write: Write) -> None:
    snli = [{"sentence1": a, "sentence2": b, "gold_label": label} for a, b, label in NLI]
    assert of(read(write, "snli.jsonl", "\n".join(map(json.dumps, snli)))) == PAIRS
    rows = "".join(f"{a}\t{b}\t{label}\n" for a, b, label in NLI)
    assert of(read(write, "a.tsv", "sentence1\tsentence2\tgold_label\n" + rows)) == PAIRS
    numbers = {"entailment": "0", "neutral": "1", "contradiction": "2", "-": "-"}
    rows = "".join(f"{a},{b},{numbers[label]}\n" for a, b, label in NLI)
    named = {"label_names": ["entailment", "neutral", "contradiction"]}
    assert of(read(write, "a.csv", "premise,hypothesis,label\n" + rows, **named)) == PAIRS


def test_numbers_of_nli_are_not_taken_for_scores(write: Write) -> None:
    """A contradiction is 2, and would be the highest similarity."""
    with pytest.raises(
        DataError, match=r"has numbers for labels of NLI: .* label_names: \[entailment, neutral, contr"
    ):
        read(write, "a.csv", "premise,hypothesis,label\na,b,0\na,c,2\n")
    graded = read(write, "b.csv", "premise,hypothesis,label\na,b,0\na,c,2.5\n")
    assert [e.label for e in graded] == [0.0, 2.5]


def test_nli_without_entailment_and_other_labels_are_refused(write: Write) -> None:
    with pytest.raises(DataError, match="has no row with the label 'entailment'"):
        read(write, "a.csv", "premise,hypothesis,label\na,b,neutral\n")
    with pytest.raises(DataError, match=r"has labels of NLI and the label 1\.0"):
        read(write, "b.csv", "premise,hypothesis,label\na,b,entailment\na,c,1\n")
    with pytest.raises(DataError, match="'label' is 'same', which is not a number"):
        read(write, "c.csv", "text,text_pair,label\na,b,same\n")
    with pytest.raises(DataError, match="has the label 'equivalent'; similarity is learned from numbers"):
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        read(write, "d.tsv", header + "1\t1\t2\ta\tb\n", format="glue", glue_task="MRPC")
    with pytest.raises(DataError, match="has 1 pairs without a score, of 1"):
        read(write, "test.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n", format="glue", glue_task="STS-B")
