"""Bundles whose files hypothesis changed: read as they are, or refused by an error that names the file."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.errors import BertError
from bert.tokenizer import Tokenizer
from service.engine.bundle_folders import find_bundles
from service.engine.bundle_loader import BundleLoader
from tests.support.odd_texts import ODD_TEXTS, TEXTS

pytestmark = pytest.mark.slow

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
CHANGE = st.tuples(st.floats(0, 1), st.sampled_from([0, 1, 1, 7, 300]), st.binary(max_size=3))


def places(content: object, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where each value of a JSON document is; of long lists and objects the first ones."""
    yield place
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for number, (name, value) in enumerate(items):
        if number < 40:
            yield from places(value, (*place, name))


def changed(content: Any, place: tuple[Any, ...], value: object) -> Any:
    """Return a document with another value in a place."""
    if not place:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[place[0]] = changed(copy[place[0]], place[1:], value)
    return copy


def patched(data: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    for where, gone, put in changes:
        at = int(where * len(data))
        data = data[:at] + put + data[at + gone :]
    return data


@pytest.fixture(scope="module")
def names(bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(bundles / "names", tmp_path_factory.mktemp("hunted") / "names"))


def is_opened_or_refused(folder: Path, file: str, content: bytes) -> None:
    """Put content in a file's place, and open the bundle as the service does."""
    path = folder / file
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        found = find_bundles([folder])
        BundleLoader(found, threads=1, verify_hashes=False).open(folder)
    except BertError as error:
        assert str(error)
    finally:
        path.write_bytes(before)


@given(data=st.data())
def test_a_manifest_with_another_value_anywhere(names: Path, data: st.DataObject) -> None:
    content = json.loads((names / "bundle.json").read_bytes())
    place = data.draw(st.sampled_from(list(places(content))))
    is_opened_or_refused(
        names, "bundle.json", json.dumps(changed(content, place, data.draw(VALUES))).encode()
    )


@given(changes=st.lists(CHANGE, min_size=1, max_size=3))
def test_a_manifest_with_other_bytes(names: Path, changes: list[tuple[float, int, bytes]]) -> None:
    is_opened_or_refused(names, "bundle.json", patched((names / "bundle.json").read_bytes(), changes))


@given(data=st.data())
def test_a_tokenizer_with_another_value_anywhere(names: Path, data: st.DataObject) -> None:
    content = json.loads((names / "tokenizer.json").read_bytes())
    place = data.draw(st.sampled_from(list(places(content))))
    is_read_or_refused(json.dumps(changed(content, place, data.draw(VALUES))).encode())


@given(changes=st.lists(CHANGE, min_size=1, max_size=3))
def test_a_tokenizer_with_other_bytes(names: Path, changes: list[tuple[float, int, bytes]]) -> None:
    is_read_or_refused(patched((names / "tokenizer.json").read_bytes(), changes))


def is_read_or_refused(content: bytes) -> None:
    try:
        tokenizer = Tokenizer.parse(content, Path("tokenizer.json"))
    except BertError as error:
        assert "tokenizer.json" in str(error)
        return
    with contextlib.suppress(BertError):
        tokenizer.pieces(list(ODD_TEXTS))
