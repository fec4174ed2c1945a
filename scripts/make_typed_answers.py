"""Entities of many types, out of questions about paragraphs: the answer to "What album ..." is an album.

    python -m scripts.make_typed_answers OUT SQUAD_JSON...

Writes a line of json for each sentence that holds answers, with their places and types. Products and creative works are left
out, so that a model can be judged by types that it has not seen.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

from bert.data.squad import read_squad

LONGEST_WORDS = 6
"""Most words of an answer that is taken for a name."""
_TYPE = re.compile(
    r"\b(?:what|which) ((?:[a-z-]+ ){0,2}?[a-z-]+) "
    r"(?:is|are|was|were|did|does|do|has|have|had|can|could|will|would|in|of|that|made|won)\b"
)
_NO_TYPE = re.compile(
    r"^(?:is|are|was|were|did|does|do|has|have|had|can|could|will|would|should|of|the|other|else|types?|kinds?|sort|in|at|on|"
    r"by|to|an?|about|makes|happens|happened|two|three|things?|part|ways?|percentage|number|one)\b"
)
_HELD_OUT = re.compile(r"\b(?:products?|creative works?)\b")
_WORDS = {"who": "person", "where": "place", "when": "date"}
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def type_of(question: str) -> str | None:
    """Return what a question asks for, None where it does not say, or where that is held out."""
    question = question.lower().strip()
    if (first := question.partition(" ")[0]) in _WORDS:
        return _WORDS[first]
    found = _TYPE.search(question)
    return None if not found or _NO_TYPE.match(found[1]) or _HELD_OUT.search(found[1]) else found[1]


def main(out: str, *files: str) -> None:
    """Write the sentences of all files."""
    texts = defaultdict[str, set[tuple[int, int, str]]](set)
    for row in (row for file in files for row in read_squad(file)):
        label = type_of(row.question)
        for text, start in row.answers[:1]:
            is_name = any(c.isupper() or c.isdigit() for c in text) and len(text.split()) <= LONGEST_WORDS
            if label is None or not is_name:
                continue
            ends = list(_SENTENCE_END.finditer(row.context))
            first = max((end.end() for end in ends if end.end() <= start), default=0)
            stop = start + len(text)
            last = next((end.start() for end in ends if end.start() >= stop), len(row.context))
            texts[row.context[first:last]].add((start - first, stop - first, label))
    rows = [
        json.dumps({"text": text, "spans": sorted(spans)}, ensure_ascii=False)
        for text, spans in texts.items()
    ]
    Path(out).write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
