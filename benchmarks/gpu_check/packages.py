"""Packages that the check brings along, and the environment of its processes.

Only the standard library is imported here: what is missing on a machine must not keep the report from being written.
"""

import importlib.util
import os
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def unpack(folder: Path, site: Path) -> tuple[list[str], list[str]]:
    """Unpack every wheel and tar archive of a folder into one; return the names of those unpacked, and the errors."""
    site.mkdir(parents=True, exist_ok=True)
    names, errors = list[str](), list[str]()
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            if file.suffix == ".whl":
                with zipfile.ZipFile(file) as wheel:
                    wheel.extractall(site)
            elif ".tar" in file.suffixes:
                with tarfile.open(file) as archive:
                    archive.extractall(site, filter="data")
            else:
                continue
            names.append(file.name)
        except (OSError, EOFError, ValueError, tarfile.TarError, zipfile.BadZipFile, ImportError) as error:
            errors.append(f"{file.name}: {type(error).__name__}: {error}")
    return names, errors


def environment(site: Path, caches: Path) -> dict[str, str]:
    """Return the environment of the check's processes: brought packages first, CUDA's libraries found, no network.

    The service imports no torch, which would load CUDA's libraries for it. So it has to find them by itself.
    """
    paths = {"PYTHONPATH": [str(site), str(ROOT)], "LD_LIBRARY_PATH": cuda_libraries()}
    found = {
        name: os.pathsep.join(filter(None, [*first, os.environ.get(name, "")]))
        for name, first in paths.items()
    }
    of_caches = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR", "XDG_CACHE_HOME")
    found |= {name: str(caches / name.lower()) for name in of_caches}
    return {
        **os.environ,
        **{name: value for name, value in found.items() if value},
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def cuda_libraries() -> list[str]:
    """Return the folders of CUDA's libraries among the installed packages: nvidia/cu13/lib, nvidia/cudnn/lib, ..."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec else None
    return sorted({str(folder) for place in places or () for folder in Path(place).glob("*/lib")})
