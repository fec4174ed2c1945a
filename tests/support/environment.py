"""Signals, umask, variables and HOME of the tests: the suite sets them, whoever starts it."""

import atexit
import os
import shutil
import signal
import sys
import tempfile
import time

from service.system import STOPS

KEPT = frozenset(
    f"BERT_{name}_PYTHON"
    for name in ("FRAMEWORKS", "GLICLASS", "GLINER", "PYLATE", "RAY", "SENTENCE_TRANSFORMERS")
)
"""Variables of the suite itself, which name the environments of `make clients`."""
PREFIXES = (
    *("BERT_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "XDG_", "LC_", "GIT_"),
    *("OMP_", "MKL_", "KMP_", "OPENBLAS_", "ORT_", "TOKENIZERS_", "RAYON_", "PROMETHEUS_"),
)
"""What the names of variables begin with that change what the programs do."""
NAMES = frozenset(
    [
        *("LANG", "LANGUAGE", "TZ", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"),
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("PYTHONPATH", "PYTHONWARNINGS", "PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONSAFEPATH"),
        "PYTHONDONTWRITEBYTECODE",  # hundreds of programs would compile all modules anew
    ]
)
"""Other such variables."""
SET = {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    # The models of the tests are small: the threads of numpy and torch, in the workers of pytest-xdist and in the programs
    # that they start, would only wait for one another. On a busy machine that took four times the CPU time of one thread.
    "OMP_NUM_THREADS": "1",
}
"""Variables that every test finds."""


def is_foreign(name: str) -> bool:
    """Tell whether a variable could change what a test finds."""
    upper = name.upper()
    is_known = upper in NAMES or upper.startswith(PREFIXES) or upper.endswith("_PROXY")
    return is_known and name not in KEPT


def set_environment(*, with_home: bool) -> None:
    """Set signals, umask and variables, also for the programs that tests start.

    A shell that starts the tests in the background has them ignore Ctrl-C, and nohup a hang-up. `with_home` makes an
    empty HOME, before any module can read it; the workers of pytest-xdist have that of the process which starts them.
    """
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o022)
    for name in filter(is_foreign, list(os.environ)):
        del os.environ[name]
    os.environ |= SET
    sys.dont_write_bytecode = False
    if hasattr(time, "tzset"):
        time.tzset()
    if with_home:
        os.environ["HOME"] = tempfile.mkdtemp(prefix="bert-tests-home-")
        atexit.register(_remove, os.environ["HOME"], os.getpid())


def _remove(folder: str, owner: int) -> None:
    """Remove a folder, but not at the end of a process that was forked from its owner."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
