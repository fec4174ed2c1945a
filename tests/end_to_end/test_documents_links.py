"""The files, tests, modules, links and targets of make that the documents name are there."""

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from tests.support.documents import EACH_PAGE, PAGES, ROOT, STUDIES_AT, commands, inline, name_of, text_of

MAKEFILE = text_of(ROOT / "Makefile")
MADE = {"bundles", "corpora", "runs"}
"""Folders that the product makes."""
FOLDERS = {
    folder.name
    for folder in ROOT.iterdir()
    if folder.is_dir() and folder.name not in MADE and (folder.name == ".ci" or folder.name[0] != ".")
}
FILES = [
    path.relative_to(ROOT) for name in sorted(FOLDERS) for path in (ROOT / name, *(ROOT / name).rglob("*"))
]
FILES += [path.relative_to(ROOT) for path in ROOT.iterdir() if path.is_file()]


def shown_lines(page: Path) -> list[str]:
    """Return the commands of a page, those inside its sentences too."""
    return [*(shlex.join(command.words) for command in commands(page)), *inline(page)]


@EACH_PAGE
def test_targets_and_variables_of_make_are_in_the_makefile(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) \??=", MAKEFILE, re.MULTILINE))
    for line in shown_lines(page):
        if found := re.match(r"make ([a-z-]+)(.*)", line):
            assert found[1] in targets, f"{page}: {line}"
            assert set(re.findall(r"([A-Z_]+)=", found[2])) <= variables, f"{page}: {line}"


@EACH_PAGE
def test_modules_that_are_run_are_there_with_their_options(page: Path) -> None:
    for line in shown_lines(page):
        if found := re.match(r"python -m ([\w.]+)(.*)", line):
            is_study = STUDIES_AT in text_of(page) and found[1].startswith("benchmarks.")
            if is_study and not is_there(found[1].replace(".", "/") + ".py"):
                continue
            spec = importlib.util.find_spec(found[1])
            assert spec and spec.origin, f"{page}: {line}"
            file = Path(spec.origin)
            if spec.submodule_search_locations:
                file = file.with_name("__main__.py")
            known = set(re.findall(r'"(--[\w-]+)"', file.read_text(encoding="utf-8")))
            known |= {name.replace("--", "--no-", 1) for name in known}  # of argparse.BooleanOptionalAction
            assert set(re.findall(r" (--[\w-]+)", found[2])) <= known, f"{page}: {line}"


@EACH_PAGE
def test_what_pip_installs_is_there(page: Path) -> None:
    extras = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    for command in commands(page):
        if command.program == "pip":
            line = shlex.join(command.words)
            for file in re.findall(r" -[cr] (\S+)", line):
                assert (ROOT / file).is_file(), f"{page}: {line}"
            for named in re.findall(r"\.\[([\w,]+)\]", line):
                assert set(named.split(",")) <= set(extras), f"{page}: {line}"


def is_there(path: str) -> bool:
    """Tell whether a file of the project has this path, or ends with it: pages say `loop.py` where its folder is clear."""
    return any(file.match(path.rstrip("/")) for file in FILES)


@EACH_PAGE
def test_files_inside_sentences_are_there(page: Path) -> None:
    for code in inline(page):
        path = code.removeprefix("bash ")
        if not re.fullmatch(r"[\w.*/-]+", path):
            continue
        first = path.partition("/")[0]
        if (first in FOLDERS and "/" in path) or path.endswith((".py", ".sh", ".yml")):
            assert is_there(path), f"{page}: `{code}`"


def test_tests_inside_sentences_are_there() -> None:
    files = ROOT.glob("tests/**/test_*.py")
    written = {name for file in files for name in re.findall(r"^def (test_\w+)", text_of(file), re.MULTILINE)}
    named = {code for page in PAGES for code in inline(page) if re.fullmatch(r"test_\w+", code)}
    assert named <= written


def anchors(page: Path) -> set[str]:
    """Return the names that a page's headings can be linked by."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", text_of(page)):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(target), f"{page}: {link}"


TOOLS = ("kubernetes-validate", "moto", "boto3", "detect-secrets", "pip-audit", "gliclass")
"""Packages in requirements/clients.txt that are no clients."""


@pytest.mark.parametrize("page", ["README.md", "docs/wires.md"])
def test_versions_of_tested_clients_are_those_that_are_installed(page: str) -> None:
    text = text_of(ROOT / page).replace("`", "")
    for file in ("clients", "frameworks", "gliner"):
        pins = re.findall(
            r"^([\w-]+)(?:\[\w+\])?==(\S+)$", text_of(ROOT / f"requirements/{file}.txt"), re.MULTILINE
        )
        assert pins
        for name, version in pins:
            if name not in TOOLS:
                assert f"{name} {version}" in text, f"{page}: {name} {version}"
