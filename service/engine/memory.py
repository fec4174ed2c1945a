"""Memory of the process."""

import ctypes
from contextlib import suppress


def release_free_memory() -> None:
    """Return memory freed while loading models to the system, if the C library can.

    glibc keeps free memory below a block in use: a sixth of the process with four models in float32.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).malloc_trim(0)
