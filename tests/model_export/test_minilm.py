"""The packaged real weights, on real texts: near to `transformers`, and in 8 bits the same whatever lies beside a text."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import transformers

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.checkpoint.weights import Checkpoint, read_checkpoint
from bert.errors import CheckpointError
from bert.tasks.registry import TASKS
from model_export.reference import Floats
from model_export.verify.precision import Exporter, GraphSession, packer_for
from model_export.verify.texts import EncodedText, shipped_texts
from model_export.verify.verified_graph import ExportContext, build
from tests.support.checkpoints import hf_outputs


@pytest.fixture(scope="module")
def minilm() -> Path:
    try:
        return resolve_base(MINILM)
    except CheckpointError as error:
        pytest.skip(str(error))


@cache
def loaded(folder: Path) -> tuple[Checkpoint, list[EncodedText]]:
    checkpoint = read_checkpoint(folder)
    texts = shipped_texts(checkpoint.tokenizer, checkpoint.spec)
    return checkpoint, texts


@cache
def exported(folder: Path, precision: str) -> Exporter:
    return build(ExportContext(loaded(folder)[0]), precision)


@cache
def expected(folder: Path) -> list[Floats]:
    model = transformers.BertModel.from_pretrained(folder).eval()
    checkpoint, texts = loaded(folder)
    return [hf_outputs(model, checkpoint.spec, text) for text in texts]


def far(first: list[Floats], second: list[Floats]) -> float:
    return float(np.abs(np.concatenate(first) - np.concatenate(second)).max())


def test_the_shipped_texts_are_of_mixed_length(minilm: Path) -> None:
    lengths = [len(text) for text in loaded(minilm)[1]]
    assert len(lengths) == 60 and min(lengths) < 6 and max(lengths) > 100


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", 1e-6), ("fp16", 1e-3), ("int8", 0.05)])
def test_embeddings_are_near_those_of_transformers(precision: str, allowed: float, minilm: Path) -> None:
    found = exported(minilm, precision)
    _, texts = loaded(minilm)
    assert far(found.packed(texts), expected(minilm)) < allowed
    in_numpy = found.in_numpy(texts)
    assert in_numpy is None or far(in_numpy, expected(minilm)) < allowed


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", 1e-6), ("int8", 1e-6)])
def test_order_and_neighbours_change_nothing(precision: str, allowed: float, minilm: Path) -> None:
    """In 8 bits the encoder's bits are the same; the mean over tokens is summed in another order."""
    found = exported(minilm, precision)
    _, texts = loaded(minilm)
    alone = found.alone(texts)
    assert far(alone, found.packed(texts)) < allowed
    assert far(alone, found.packed(texts[::-1])[::-1]) < allowed
    order = np.random.default_rng(0).permutation(len(texts))
    shuffled = found.packed([texts[i] for i in order])
    assert far([alone[i] for i in order], shuffled) < allowed


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_more_threads_give_the_same_bits(precision: str, minilm: Path) -> None:
    """The service gives a lone text more threads: its answer must not show that it was alone."""
    found, (checkpoint, texts) = exported(minilm, precision), loaded(minilm)
    packer = packer_for(checkpoint.config, precision)
    one, two = (GraphSession(found.model, packer, threads).alone(texts) for threads in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_closed_session_opens_again(minilm: Path) -> None:
    found, (_, texts) = exported(minilm, "fp32"), loaded(minilm)
    before = found.alone(texts[:2])
    found.close()
    assert all(np.array_equal(a, b) for a, b in zip(before, found.alone(texts[:2]), strict=True))


def test_cosines_in_8_bits_stay_near(minilm: Path) -> None:
    """The whole matrix of cosines between the texts, and each text's nearest other one."""
    _, texts = loaded(minilm)
    before, after = np.concatenate(expected(minilm)), np.concatenate(exported(minilm, "int8").packed(texts))
    cosines = [vectors @ vectors.T - 2 * np.eye(len(texts), dtype=np.float32) for vectors in (before, after)]
    assert np.abs(cosines[0] - cosines[1]).max() < 0.03
    best = cosines[0].max(axis=1)
    taken = np.take_along_axis(cosines[0], cosines[1].argmax(axis=1)[:, None], axis=1)[:, 0]
    assert (taken > best - 1e-6).mean() > 0.95  # some texts are equally near to two others
    assert TASKS["similarity"].top_labels([before, after]) is None
