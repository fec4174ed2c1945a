"""Embedding tables that the sessions of this process share, so that each is in memory once."""

import io
import threading
from weakref import WeakValueDictionary

import numpy as np
import onnxruntime

from bert.bundle import Bundle

_TABLES: WeakValueDictionary[str, onnxruntime.OrtValue] = WeakValueDictionary()
"""sha256 → table, while an engine holds it."""
_LOADING = threading.Lock()


def shared_tables(bundle: Bundle) -> dict[str, onnxruntime.OrtValue]:
    """Return a bundle's tables by the names of the graph's initializers; the session's owner must hold them.

    A table in memory is not read again. Raises BundleIntegrityError if a file's hash is not the manifest's.
    """
    return {name: _table(bundle, file) for name, file in bundle.tables.items()}


def _table(bundle: Bundle, name: str) -> onnxruntime.OrtValue:
    sha256 = bundle.manifest.files[name]
    with _LOADING:
        table = _TABLES.get(sha256)
        if table is None:
            array = np.load(io.BytesIO(bundle.read(name)), allow_pickle=False)
            table = _TABLES[sha256] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
    return table
