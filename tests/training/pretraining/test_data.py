"""From settings to streams of examples."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.languages import topics, write_corpus
from training.corpus.shards import Corpus
from training.pretraining.data import held_out_examples, masking
from training.pretraining.examples.base import MaskedExample, SpecialIds
from training.pretraining.settings import PretrainSettings


def held_out(folder: Path, documents: int, **changes: Any) -> list[MaskedExample]:
    corpus = Corpus.open(write_corpus(folder, 48, topics(20), held_out=documents))
    fixed = {"corpus": folder, "output_dir": folder, "objective": "mlm+nsp"}
    values = {**fixed, "max_tokens": 48, "max_steps": 1, **changes}
    settings = PretrainSettings(**values)
    return held_out_examples(settings, corpus, masking(settings, corpus, SpecialIds.load(folder)))


def test_two_documents_give_pairs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert {example.pair_label for example in held_out(tmp_path / "corpus", 2)} <= {0, 1}
    assert not caplog.messages


def test_one_document_gives_no_pairs_but_masked_words_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = held_out(tmp_path / "corpus", 1)
    assert sum(len(example.labels) for example in found) > 0
    assert {example.pair_label for example in found} == {-1}
    assert max(len(example.ids) for example in found) <= 48
    (told,) = caplog.messages
    assert told == (
        f"{tmp_path / 'corpus'} has 1 held-out document, and pairs take two: held-out scores leave the pairs out; "
        "bert-prepare with a larger held_out gives them"
    )


def test_one_document_is_enough_where_both_segments_are_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = held_out(tmp_path / "corpus", 1, objective="mlm+sop", examples="sentence_order")
    assert {example.pair_label for example in found} <= {0, 1}
    assert not caplog.messages
