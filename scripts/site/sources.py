"""Files outside docs/ that the documents link to, as pages of the site under source/."""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = "source/"
LANGUAGES = {".py": "python", ".sh": "bash", ".yml": "yaml", ".yaml": "yaml", ".json": "json"}
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^()\s#]+)(#[^()\s]*)?(?=\))")


def linked(pages: dict[str, str]) -> dict[str, str]:
    """Return the pages to add for links that lead out of docs/, and for the links in those: path in the site → Markdown."""
    added: dict[str, str] = {}
    waiting = list(pages.items())
    while waiting:
        uri, content = waiting.pop()
        for found in _LINK.finditer(content):
            path = _path(found[1], uri)
            place = page_of(path)
            if place.startswith(FOLDER) and place not in added and (ROOT / path).exists():
                added[place] = _markdown(path)
                waiting.append((place, added[place]))
    return added


def relink(content: str, uri: str) -> str:
    """Point a page's links at the pages of the files that they name; others stay as they are."""

    def replace(found: re.Match[str]) -> str:
        path = _path(found[1], uri)
        if not (ROOT / path).exists():
            return found[0]
        return posixpath.relpath(page_of(path), posixpath.dirname(uri) or ".") + (found[2] or "")

    return _LINK.sub(replace, content)


def page_of(path: str) -> str:
    """Return the path in the site of a file or folder of the project."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        pages = sorted((ROOT / path).glob("*.md"))  # of a folder; README.md, where there is one, is its index
        first = next((page for page in pages if page.name == "README.md"), pages[0]) if pages else ROOT / path
        return first.relative_to(ROOT / "docs").as_posix()
    return FOLDER + path + ("" if path.endswith(".md") else ".md")


def _path(link: str, uri: str) -> str:
    """Return the path in the project that a link of a page leads to."""
    page = uri.removeprefix(FOLDER) if uri.startswith(FOLDER) else f"docs/{uri}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _markdown(path: str) -> str:
    """Return a page that shows a file, or lists a folder's files."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(item.name for item in file.iterdir() if item.is_file())
        return "\n".join((f"# {path}", "", *(f"- [{name}]({file.name}/{name})" for name in names), ""))
    content = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return content
    return f"# {path}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{content}````\n"
