"""What the documents show: their pages, the blocks of code, the command lines and the code inside sentences."""

import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "models/*.md", "examples/**/*.md", "benchmarks/**/*.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md"  # says what was, too
)
STUDIES_AT = "c697517"
"""Commit that pages name where they show the command of a study whose code is not in the tree any more."""
PROGRAMS = ("bash", "bert-", "cd ", "curl", "docker", "git ", "head ", "make", "pip", "python", "torchrun")
"""How a command line begins; anything else in a block of sh is something that no test looks at."""
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """Code of a page, set apart from its text."""

    page: Path
    language: str
    """Of the fence; empty where the block is only indented."""
    text: str
    end: int
    """Where it ends in its page, characters."""

    def __str__(self) -> str:
        return f"{name_of(self.page)}: {self.text.splitlines()[0]}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command line of a page, or of the first lines of a configuration."""

    page: Path
    words: tuple[str, ...]
    end: int = 0
    """Where its block ends in its page, characters."""

    def __str__(self) -> str:
        return f"{name_of(self.page)}: {shlex.join(self.words)}"

    @property
    def program(self) -> str:
        """The program's name, without the folder that it may be in."""
        return Path(self.words[0]).name


def name_of(page: Path) -> str:
    """Return a page's path in the project."""
    return str(page.relative_to(ROOT))


EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=name_of)


def text_of(page: Path) -> str:
    """Read a page."""
    return page.read_text(encoding="utf-8")


def is_of_commit(page: Path) -> bool:
    """Tell whether a page of measurements shows commands of STUDIES_AT, whose options the tree may lack."""
    return page.parent.name == "measurements" and STUDIES_AT in text_of(page)


def blocks(page: Path) -> list[Block]:
    """Return a page's blocks of code: the fenced ones, then the indented ones."""
    content = text_of(page)
    fenced = [Block(page, found[1], found[2], found.end()) for found in FENCED.finditer(content)]
    rest = FENCED.sub(lambda found: re.sub(r"[^\n]", "-", found[0]), content)
    indented = [Block(page, "", textwrap.dedent(found[0]), found.end()) for found in INDENTED.finditer(rest)]
    return fenced + indented


def inline(page: Path) -> list[str]:
    """Return the code inside a page's sentences and tables, line breaks as blanks."""
    prose = FENCED.sub("", text_of(page))
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", prose)]


def commands(page: Path) -> Iterator[Command]:
    """Give every command line of a page's blocks.

    Raises ValueError for a line in a block of sh that begins with none of PROGRAMS.
    """
    for block in blocks(page):
        for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
            if block.language == "sh" or (not block.language and _is_command(line)):
                for part in line.split(" && "):
                    words = [word for word in shlex.split(part, comments=True) if word != "&"]
                    # Variables for this command come before it.
                    words = list(dropwhile(re.compile(r"[A-Z_]+=").match, words))
                    if words and not _is_command(f"{words[0]} "):
                        raise ValueError(f"{block}: {words[0]} is none of {', '.join(PROGRAMS)}")
                    if words:
                        yield Command(page, tuple(words), block.end)


def opening_command(yaml: str, page: Path) -> Command:
    """Return the command that a YAML file's first line, a comment, shows."""
    first = yaml.partition("\n")[0]
    if not first.startswith("# bert-"):
        raise ValueError(f"{page}: {first!r} is not '# ' and the command that reads the file")
    return Command(page, tuple(shlex.split(first[2:])))


def _is_command(line: str) -> bool:
    return re.sub(r"^[\w./-]*/bin/", "", line).startswith(PROGRAMS)


def scripts() -> dict[str, str]:
    """Return module → the command that is installed for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {entry.partition(":")[0]: name for name, entry in project["scripts"].items()}
