"""Multiple choice: CODAH tsv, SWAG csv, and json lines of {"prompt", "choices", "label"}."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bert.data.examples import ChoiceExample
from bert.data.files import NOT_UNICODE, Place, Problems, ending, holds_unicode
from bert.data.tables import read_rows, split_records
from bert.errors import DataError

Raw = tuple[Place, str, Sequence[str], str]
"""Place, prompt, choices, label as it was written."""
SWAG_ENDINGS = ("ending0", "ending1", "ending2", "ending3")


def read_choice(path: str | Path) -> list[ChoiceExample]:
    """Read .tsv as CODAH, .csv as SWAG, .jsonl and .json as objects. Raises DataError with all bad rows."""
    problems = Problems(path)
    read = {".tsv": _codah, ".csv": _swag}.get(ending(path), _objects)
    return choice_examples(read(path, problems), problems)


def choice_examples(rows: Iterable[Raw], problems: Problems) -> list[ChoiceExample]:
    """Check rows, wherever they came from. Raises DataError with all bad ones."""
    examples = []
    for place, prompt, choices, label in rows:
        if (reason := _fault(prompt, choices, label)) is None:
            examples.append(ChoiceExample(prompt, tuple(choices), int(label), str(place)))
        else:
            problems.add(place, reason)
    if not examples and not len(problems):
        problems.add(None, "has no rows")
    problems.raise_if_any()
    return examples


def _codah(path: str | Path, problems: Problems) -> Iterator[Raw]:
    """Yield rows of category, prompt, endings and the index of the right one; there is no header."""
    for line, fields in split_records(path, "\t", quoted=False):
        if len(fields) < 5:
            problems.add(line, f"has {len(fields)} columns; needed: category, prompt, endings, index")
        else:
            yield line, fields[1], fields[2:-1], fields[-1]


def _swag(path: str | Path, problems: Problems) -> Iterator[Raw]:
    """Yield rows of a sentence, the start of the next one, and four ways in which that goes on."""
    for line, row in read_rows(path, ("sent1", "sent2", "label", *SWAG_ENDINGS), problems):
        start = str(row["sent2"]).strip()
        # An empty ending must stay empty, to be seen as a fault.
        choices = [f"{start} {row[name]}".strip() if row[name] else "" for name in SWAG_ENDINGS]
        yield line, str(row["sent1"]), choices, str(row["label"])


def _objects(path: str | Path, problems: Problems) -> Iterator[Raw]:
    if ending(path) not in (".jsonl", ".ndjson", ".json"):
        raise DataError(path, None, "is not .tsv (CODAH), .csv (SWAG), .jsonl, .ndjson or .json")
    for place, row in read_rows(path, ("prompt", "choices", "label"), problems):
        prompt, choices = row["prompt"], row["choices"]
        if not isinstance(prompt, str):
            problems.add(place, f"'prompt' is {prompt!r}, which is not text")
        elif not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
            problems.add(place, "'choices' is not a list of texts")
        else:
            yield place, prompt, choices, str(row["label"])


def _fault(prompt: str, choices: Sequence[str], label: str) -> str | None:
    if not prompt.strip():
        return "the prompt is empty"
    if not holds_unicode(prompt):
        return f"the prompt {NOT_UNICODE}"
    if len(choices) < 2:
        return f"has {len(choices)} choices; two or more are needed"
    empty = [number for number, choice in enumerate(choices) if not choice.strip()]
    if empty:
        return f"choice {empty[0]} is empty"
    if broken := [number for number, choice in enumerate(choices) if not holds_unicode(choice)]:
        return f"choice {broken[0]} {NOT_UNICODE}"
    if not label.strip().isdecimal() or int(label) >= len(choices):
        return f"the label is {label!r}; it must be the index of a choice, 0 to {len(choices) - 1}"
    return None
