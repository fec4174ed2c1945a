"""Sentences of a text, by the rules of sentencex (Wikimedia) for its language."""

import re
from typing import Literal

import sentencex

LineBreaks = Literal["paragraph", "space", "sentence"]
_BLANK_LINE = re.compile(r"\n\s*\n")
_LINE_END = re.compile("\r\n?|[\x85\u2028\u2029]")
_WIDE_SPACE = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")


def split_sentences(
    text: str, language: str, line_breaks: LineBreaks = "paragraph", *, spaced: bool = False
) -> list[str]:
    """Return the sentences in order, stripped, none empty and none with a line break.

    A blank line always ends a sentence. A single line break ends a paragraph, stands for a space, or ends a sentence
    that is not split further, as `line_breaks` says. Spaces of any width become plain ones, as in BERT's tokenizer.
    A `spaced` sentence begins with one space where white space parted it from the sentence before.
    """
    if "\r" in text or not text.isascii():
        # sentencex 1.0.32 panics at a wide space between a capital and a full stop: "A\xa0."
        text = _WIDE_SPACE.sub(" ", _LINE_END.sub("\n", text))
    if line_breaks == "space":
        paragraphs = [paragraph.replace("\n", " ") for paragraph in _BLANK_LINE.split(text)]
    else:
        paragraphs = text.split("\n")
    if line_breaks == "sentence":
        return _stripped(paragraphs, before=" " if spaced else "")
    found: list[str] = []
    for paragraph in _stripped(paragraphs):
        found += [*_segment(language, paragraph), "\n"]
    return _spaced(found) if spaced else _stripped(found)


def _segment(language: str, paragraph: str) -> list[str]:
    """Split by sentencex. A paragraph that makes it panic counts as one sentence: it must not end a run of days."""
    try:
        found: list[str] = sentencex.segment(language, paragraph)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of pyo3, which has no name to import it by
            raise
        return [paragraph]
    return found


def _stripped(texts: list[str], before: str = "") -> list[str]:
    found = [stripped for text in texts if (stripped := text.strip())]
    return [*found[:1], *(before + text for text in found[1:])] if before else found


def _spaced(texts: list[str]) -> list[str]:
    """Strip texts; those that followed white space begin with one space, except for the first."""
    found, parted = list[str](), False
    for text in texts:
        if stripped := text.strip():
            parted |= text[0].isspace()
            found.append(f" {stripped}" if found and parted else stripped)
            parted = False
        parted |= text[-1:].isspace()
    return found
