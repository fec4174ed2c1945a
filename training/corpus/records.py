"""Records of a preparation, in the folder `.prepare` of its output: its plan, its finished blocks and parts.

Part i of n makes the blocks i - 1, i - 1 + n, ..., on any machine, and reads all text for it.
"""

import json
from pathlib import Path
from typing import Any

from bert.errors import ConfigError, DataError
from bert.files import file_sha256, read_object
from bert.tokenizer import Tokenizer
from training.corpus.documents import BlockStart
from training.corpus.shards import SPLITS, Shard, write_json
from training.corpus.worker import LOG_FOLDER, Note, token_bytes


def keep_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Write the plan in the first run, compare it in later ones. Raises ConfigError where they differ."""
    file = folder / LOG_FOLDER / "plan.json"
    if not file.is_file():
        write_json(file, plan)
        return
    _check_plan(json.loads(file.read_text(encoding="utf-8")), plan, f"{folder} was begun")


def _check_plan(begun: dict[str, Any], plan: dict[str, Any], what: str) -> None:
    for key in sorted({*plan, *begun}):
        if plan.get(key) != begun.get(key):
            raise ConfigError(
                f"{what} with {key} {_short(begun.get(key))} and is now given {_short(plan.get(key))}: "
                "an output_dir has one of them; take another, or remove what is there"
            )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + " ..."


def finished_blocks(folder: Path, id_bytes: int, index: int = 0, parts: int = 1) -> dict[int, Note]:
    """Return the notes of earlier runs on a part's blocks, without those whose files are not whole any more."""
    files = [file for file in (folder / LOG_FOLDER).glob("[0-9]*.json") if int(file.stem) % parts == index]
    notes = {int(file.stem): json.loads(file.read_text(encoding="utf-8")) for file in sorted(files)}
    return {block: note for block, note in notes.items() if _is_whole(folder, note, id_bytes)}


def _is_whole(folder: Path, note: Note, id_bytes: int) -> bool:
    """Return True where all bytes of a note's shards are there."""
    try:
        for entry in (note[split] for split in SPLITS if note[split]):
            Shard(folder, entry, id_bytes)
    except DataError:
        return False
    return True


def part_file(folder: Path, part: str) -> Path:
    """Return the record of a finished part such as "2/4"."""
    return folder / LOG_FOLDER / f"part-{part.replace('/', '-of-')}.json"


def part_record(folder: Path, part: str, plan: dict[str, Any], end: BlockStart) -> dict[str, Any]:
    """Return how a part was made: all but its name is the same for all parts."""
    tokenizer = file_sha256(folder / "tokenizer.json")
    return {"part": part, **plan, "tokenizer_json": tokenizer, "text_read": [*end]}


def merged_blocks(folder: Path, plan: dict[str, Any]) -> tuple[list[Note], BlockStart]:
    """Return the notes on the blocks of all parts in order, and the end of the text.

    Raises ConfigError for a part that is missing or unfinished, or made with other settings, vocabulary or text.
    """
    found = [read_object(file) for file in sorted((folder / LOG_FOLDER).glob("part-*.json"))]
    divisions = [int(each["part"].split("/")[1]) for each in found]
    parts = max(divisions, key=divisions.count, default=1)
    names = [f"{number + 1}/{parts}" for number in range(parts)]
    for name in names:
        if not part_file(folder, name).is_file():
            raise ConfigError(f"part {name} is missing in {folder}, or not finished: --part {name} makes it")
    end = BlockStart(*found[0]["text_read"])
    for each in found:
        part = each["part"]
        _check_plan(each, part_record(folder, part, plan, end), f"part {part} in {folder} was made")
    notes = finished_blocks(folder, token_bytes(Tokenizer.load(folder / "tokenizer.json")))
    for block in range(end.block):
        if block not in notes:
            part = names[block % parts]
            raise ConfigError(f"part {part} lacks shard {block} in {folder}: --part {part} makes it")
    return [notes[block] for block in range(end.block)], end
