"""Blocks have the same borders from wherever a run goes on."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from training.corpus.documents import BEGINNING, is_chosen, read_blocks
from training.corpus.text_files import TextFile, list_files


def write(folder: Path, files: list[list[int]]) -> tuple[TextFile, ...]:
    for number, lengths in enumerate(files):
        text = "\n\n".join("x" * length for length in lengths)
        (folder / f"{number}.txt").write_text(text)
    return list_files([str(folder / f"{number}.txt") for number in range(len(files))])


@given(
    files=st.lists(st.lists(st.integers(1, 30), max_size=6), min_size=1, max_size=4),
    block_bytes=st.integers(1, 60),
    limit=st.integers(0, 8),
)
def test_a_run_that_goes_on_cuts_the_same_blocks(
    files: list[list[int]], block_bytes: int, limit: int
) -> None:

    with TemporaryDirectory() as folder:
        found = write(Path(folder), files)
        whole = list(read_blocks(found, block_bytes, BEGINNING, limit))
        for index, block in enumerate(whole):
            assert list(read_blocks(found, block_bytes, block.end, limit)) == whole[index + 1 :]
        records = [raw for block in whole for raw in block.records]
        total = sum(map(len, files))
        assert len(records) == (min(limit, total) if limit else total)
        assert [block.start.block for block in whole] == list(range(len(whole)))
        starts = [block.start.document for block in whole]
        assert starts == [sum(len(block.records) for block in whole[:index]) for index in range(len(whole))]
        sizes = [[len(raw.data) for raw in block.records] for block in whole]
        assert all(sum(each[:-1]) < block_bytes for each in sizes)
        assert all(sum(each) >= block_bytes for each in sizes[:-1])


def test_a_share_of_documents_is_chosen_by_number_and_seed() -> None:
    chosen = [number for number in range(20_000) if is_chosen(1, number, 0.05)]
    assert 900 < len(chosen) < 1100
    assert set(chosen) <= {number for number in range(20_000) if is_chosen(1, number, 0.1)}
    assert chosen != [number for number in range(20_000) if is_chosen(2, number, 0.05)]
    assert not any(is_chosen(1, number, 0.0) for number in range(100))
