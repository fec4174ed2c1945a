"""The wheel, in a virtual environment that has nothing but it and what it asks for."""

import importlib.metadata
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
OF_THE_SERVICE = {
    "bert",
    "service",
    "fastapi",
    "starlette",
    "pydantic",
    "uvicorn",
    "onnxruntime",
    "tokenizers",
}
USE = """
import asyncio
from collections.abc import Iterator
import numpy as np
from numpy.typing import NDArray
from bert_client import Answer, AsyncClient, Classification, Client, Entity, Match, ProblemError

with Client("http://localhost:8000", api_key="KEY") as client:
    one: Classification = client.classify("A warm film.", top_k=1)
    many: list[Classification] = client.classify(["A warm film."], model="sentiment")
    entities: list[list[Entity]] = client.ner(("Angela Merkel",))
    answer: Answer = client.qa("who?", "Angela Merkel")
    vectors: NDArray[np.float32] = client.embed(["a", "b"], truncate=True)
    ranked: list[Match] = client.similarity("a", ["b"])
    streamed: Iterator[Classification] = client.stream("classify", (text for text in ["a"]))
    kept: list[Entity | None] = []
    for found in client.stream("ner", ["a"], on_error=lambda place, error: str(error)):
        kept += [None] if isinstance(found, str) else found

async def main() -> list[Answer]:
    async with AsyncClient("http://localhost:8000") as client:
        found: Classification = await client.classify("a")
        return [answer async for answer in client.stream("qa", [("who?", "Angela")], top_k=2)]
"""
WRONG = """
from bert_client import Client
client = Client("http://localhost:8000")
client.classify("a", tpo=1)
client.classify(3)
label: str = client.classify(["a"]).label
"""


def needed(name: str) -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions that one asks for, itself among them, as they are installed here."""
    found = {name: importlib.metadata.distribution(name)}
    for line in found[name].requires or ():
        requirement = Requirement(line)
        if requirement.name not in found and (
            not requirement.marker or requirement.marker.evaluate({"extra": ""})
        ):
            found |= needed(requirement.name)
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and links to the packages that it asks for; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("package")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT / "client",
        check=True,
    )
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("bert_client-*.whl")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-index",
        "--no-deps",
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (metadata,) = importlib.metadata.distributions(name="bert-client", path=[str(site)])
    for line in metadata.requires or ():
        for distribution in needed(Requirement(line).name).values():
            for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
                if not (site / top).exists() and top != "__pycache__":
                    (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder


def python(environment: Path, *arguments: str) -> str:
    command = [str(environment / "venv" / "bin" / "python"), *arguments]
    done = subprocess.run(
        command, cwd=environment, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_it_runs_with_what_it_asks_for_and_nothing_of_the_service(environment: Path) -> None:
    shown = python(
        environment, "-c", "import bert_client, sys; print(*{n.split('.')[0] for n in sys.modules})"
    )
    assert "bert_client" in shown.split() and not OF_THE_SERVICE & set(shown.split())
    asked = "from bert_client import *; Client('http://127.0.0.1:9', max_retries=0).classify('a')"
    with pytest.raises(AssertionError, match="UnreachableError: no answer from http"):
        python(environment, "-c", asked)


@pytest.mark.slow
def test_a_program_that_uses_it_passes_mypy_s_strict_mode(environment: Path) -> None:
    def mypy(code: str) -> str:
        (environment / "use.py").write_text(code, encoding="utf-8")
        command = [sys.executable, "-m", "mypy", "--strict", "use.py"]
        command += ["--python-executable", str(environment / "venv" / "bin" / "python")]
        return subprocess.run(command, cwd=environment, capture_output=True, text=True).stdout

    assert mypy(USE).startswith("Success"), mypy(USE)
    assert set(re.findall(r"use.py:(\d+): error", mypy(WRONG))) == {"4", "5", "6"}
