"""The child that exports a model: what it prints, and how it ends."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert.errors import BundleError
from service.exports import export_process
from service.exports.named_model import NamedModel

MODEL = NamedModel("mine", "mine")
MUCH = 200_000
"""Characters, more than a pipe holds."""
ENDS_A_CHILD_THAT_HANGS = "import signal, sys; signal.alarm(30)\n"


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "lock", os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def run(lock: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Run code as the module that a child is told to run; give what it printed last."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(code: str) -> str:
        (tmp_path / "played.py").write_text(ENDS_A_CHILD_THAT_HANGS + code)
        return export_process._run(MODEL, "played", [], lock, as_log=True)

    return run


def test_a_child_that_prints_more_than_a_pipe_holds_comes_to_its_end(run: Callable[[str], str]) -> None:
    assert run(f"print('progress' * {MUCH}); print('done')") == "done"
    assert run(f"print('x\\n' * {MUCH}); print('done')") == "done"


def test_what_is_kept_of_a_line_that_does_not_end_is_bounded(run: Callable[[str], str]) -> None:
    assert run(f"print('a' * {MUCH}, end='b')") == "a" * (export_process.MAX_LINE - 1) + "b"


def test_the_end_by_a_signal_is_told_with_its_likely_cause(run: Callable[[str], str]) -> None:
    reads_beyond_the_end = (
        "import mmap, pathlib; p = pathlib.Path(__file__).with_name('weights'); p.write_bytes(b'a' * 8192); "
        "f = p.open('r+b'); m = mmap.mmap(f.fileno(), 0); f.truncate(0); m[5000]"
    )
    with pytest.raises(BundleError, match=r"was ended by SIGBUS: a file of the checkpoint was cut short"):
        run(reads_beyond_the_end)
    with pytest.raises(BundleError, match=r"was ended by SIGTERM$"):
        run("import os; os.kill(os.getpid(), 15)")


def test_a_child_that_fails_gives_its_last_line_on_standard_error_as_the_reason(
    run: Callable[[str], str],
) -> None:
    with pytest.raises(BundleError, match=r"^no such model$"):
        run(f"print('x' * {MUCH}); sys.exit('bert-export: no such model')")
