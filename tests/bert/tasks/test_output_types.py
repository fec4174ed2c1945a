"""Numbers of embeddings in a byte and in bits."""

import numpy as np
import pytest

from bert.errors import BundleError
from bert.tasks.vectors.output_types import DTYPES, Ranges, converted
from bert.tasks.vectors.similarity import normalize

VECTORS = np.array(
    [
        [-0.5, 0, 0.25, 1, -1, 0.1, 0.2, -0.3, 0.7, 0],
        [0.6, -0.6, 0, 0, 0.9, -0.9, 0.05, 0.3, -0.1, 0.1],
    ],
    np.float32,
)
LOW, HIGH = (np.array([value] * 9 + [0.1], np.float32) for value in (-0.5, 0.5))
OF_SENTENCE_TRANSFORMERS = {
    "int8": [
        [-128, -1, 63, 127, -128, 25, 50, -78, 127, -128],
        [127, -128, -1, -1, 127, -128, 12, 75, -27, -128],
    ],
    "uint8": [[0, 127, 191, 255, 0, 153, 178, 50, 255, 0], [255, 0, 127, 127, 255, 0, 140, 203, 101, 0]],
    "binary": [[-74, 0], [11, -64]],
    "ubinary": [[54, 128], [139, 64]],
}
"""Results of sentence-transformers 6.2.0: `quantize_embeddings(VECTORS, kind, ranges=np.stack([LOW, HIGH]))`."""


@pytest.mark.parametrize("kind", OF_SENTENCE_TRANSFORMERS)
def test_codes_and_bits_are_those_of_sentence_transformers(kind: str) -> None:
    found = converted(VECTORS, kind, Ranges(LOW, HIGH, LOW[:0]))
    assert found.dtype == np.dtype(DTYPES[kind]) and found.tolist() == OF_SENTENCE_TRANSFORMERS[kind]


def test_floats_keep_their_numbers() -> None:
    assert converted(VECTORS, "float") is VECTORS
    assert np.array_equal(converted(VECTORS, "float16"), VECTORS.astype(np.float16))
    large = np.array([[1e6, -1e6, 0.5]], np.float32)
    assert converted(large, "float16").tolist() == [[65504, -65504, 0.5]]


@pytest.mark.parametrize("dimensions", [32, 96, 256])
def test_ranges_fit_vectors_that_were_cut(dimensions: int) -> None:
    """Nearly all codes of other texts lie within them, and they are little wider than need be."""
    generator = np.random.default_rng(0)
    scale = generator.uniform(0.2, 2, 256)
    made = [normalize((generator.normal(size=(300, 256)) * scale).astype(np.float32)) for _ in range(2)]
    ranges = Ranges.from_dict(Ranges.of(made[0], normalize=True).to_dict())
    low, high = ranges.of_first(dimensions)
    others = normalize(made[1][:, :dimensions])
    assert np.mean((others < low) | (others > high)) < 0.02
    needed = others.max(axis=0) - others.min(axis=0)
    assert 0.9 < np.mean((high - low) / needed) < 1.1
    codes = converted(others, "uint8", ranges).astype(np.float32)
    np.testing.assert_allclose(
        (codes + 0.5) * (high - low) / 255 + low, np.clip(others, low, high), atol=5e-3
    )


def test_ranges_of_vectors_of_any_length_are_those_of_their_first_numbers() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 12)).astype(np.float32)
    low, high = Ranges.of(vectors, normalize=False).of_first(5)
    assert np.array_equal(low, vectors.min(axis=0)[:5]) and np.array_equal(high, vectors.max(axis=0)[:5])


def test_numbers_that_are_nothing_for_all_texts_have_codes() -> None:
    vectors = np.zeros((3, 4), np.float32)
    vectors[:, 3] = 1
    ranges = Ranges.from_dict(Ranges.of(vectors, normalize=True).to_dict())
    assert converted(vectors[:, :2], "uint8", ranges).tolist() == [[0, 0]] * 3


OF_32 = {"low": [0.0] * 32, "high": [1.0] * 32, "lengths": []}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"lengths": None}, "must have low, high and lengths"),
        ({"high": [1.0] * 31}, "has 32 low, 31 high and 0 lengths, and an embedding has 32 numbers"),
        ({"lengths": [1.0]}, "1 lengths"),
        ({"low": [2.0] * 32}, "low at most high"),
        ({"low": ["a"] * 32}, "lists of finite numbers"),
        ({"high": [True] * 32}, "lists of finite numbers"),
        ({"high": [10**400] * 32}, "lists of finite numbers"),
        ({"low": [float("nan")] * 32}, "lists of finite numbers"),
    ],
)
def test_a_manifest_has_a_finite_range_for_each_number(values: dict[str, list[float]], reason: str) -> None:
    from tests.support.tiny import SPECS, write_tiny_bundle

    with pytest.raises(BundleError, match=reason):
        write_tiny_bundle(None, "x", SPECS["meaning"], 1, embedding_ranges={**OF_32, **values})  # type: ignore[arg-type]
