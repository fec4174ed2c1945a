"""Hooks of mkdocs: patterns in the navigation, links out of docs/, the HTTP reference, the icon, ranks of the search."""

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.site import http_reference, sources

FOUND_FIRST, FOUND_LAST = "faq.md", ("decisions/", "measurements/", "source/CHANGELOG.md")
"""Pages that the search shows before those that match as well, and after all others: what was, and how it came to be."""
ICON = sources.ROOT / "service/web/static/icon.svg"


def on_config(config: MkDocsConfig) -> None:
    """Replace each pattern in `nav` by the pages that it matches."""
    config.nav = expanded(config.nav, Path(config.docs_dir))


def expanded(entries: list[Any], docs: Path) -> list[Any]:
    """Return a navigation without patterns and without the sections that none matches."""
    result: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            ((name, value),) = entry.items()
            pages = expanded([value] if isinstance(value, str) else value, docs)
            if pages:
                result.append({name: pages if isinstance(value, list) or "*" in value else value})
        elif "*" in entry:
            result += sorted(file.relative_to(docs).as_posix() for file in docs.glob(entry))
        else:
            result.append(entry)
    return result


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add what docs/ does not hold: files that its pages link to, the HTTP reference and the icon."""
    document = http_reference.document()
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    pages = sources.linked(pages) | {"reference/http.md": http_reference.markdown(document)}
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    openapi = json.dumps(document, indent=2, ensure_ascii=False)
    files.append(File.generated(config, "reference/openapi.json", content=openapi))
    files.append(File.generated(config, "assets/icon.svg", abs_src_path=str(ICON)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the project into links to their pages, and rank the page in the search."""
    if page.file.src_uri == FOUND_FIRST:
        page.meta["search"] = {"boost": 2}
    if page.file.src_uri.startswith(FOUND_LAST):
        page.meta["search"] = {"boost": 1e-4}  # a word in a title counts 1000 times as much as one in a text
    return sources.relink(markdown, page.file.src_uri)
