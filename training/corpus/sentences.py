"""Sentences of a text, by the rules of sentencex (Wikimedia), language by language."""

import re
from typing import Literal

import sentencex

LineBreaks = Literal["paragraph", "space", "sentence"]
_BLANK_LINE = re.compile(r"\n\s*\n")
_LINE_END = re.compile(r"\r\n?")


def split_sentences(text: str, language: str, line_breaks: LineBreaks = "paragraph") -> list[str]:
    """Return the sentences in order, stripped, none empty and none with a line break.

    A blank line always ends a sentence. `line_breaks` says what a single one is: the end of a paragraph, and so of
    a sentence; a space; or the end of a sentence, in which nothing is looked for.
    """
    text = _LINE_END.sub("\n", text) if "\r" in text else text
    if line_breaks == "space":
        paragraphs = [paragraph.replace("\n", " ") for paragraph in _BLANK_LINE.split(text)]
    else:
        paragraphs = text.split("\n")
    if line_breaks == "sentence":
        return _stripped(paragraphs)
    found: list[str] = []
    for paragraph in _stripped(paragraphs):
        found += sentencex.segment(language, paragraph)
    return _stripped(found)


def _stripped(texts: list[str]) -> list[str]:
    return [stripped for text in texts if (stripped := text.strip())]
