"""Memory of the process."""

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD = -3
"""Option of mallopt(3): size from which a block has pages of its own, which go back to the system when it is freed."""
LARGE_BLOCK_BYTES = 2**20


def give_large_blocks_back() -> None:
    """Let every freed block of LARGE_BLOCK_BYTES or more go back to the system at once, if the C library can.

    By itself glibc raises that size to 32 MB as such blocks are freed. After a hundred bodies of 2 MB a process kept 950 MB,
    and keeps 490 MB so.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def release_free_memory() -> None:
    """Return memory freed while loading models to the system, if the C library can.

    glibc keeps free memory below a block in use: a sixth of the process with four models in float32.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).malloc_trim(0)
