"""Published checkpoints by name: downloaded, exported, served, and compared with transformers on 200 real texts.

    python -m benchmarks.hub                         # the list, models.json
    python -m benchmarks.hub dslim/bert-base-NER ./my-checkpoint --precision fp32

Each is what a user does: `bert-export --checkpoint NAME`, then `bert-serve`. Prints a table in Markdown with machine, date
and command, and writes it with a JSON file beside it. Exits with 1 where a model gives other answers than it should.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.hub.answers import CLOSE, ask, compare
from benchmarks.hub.published import Published, read_list
from benchmarks.hub.texts import items
from benchmarks.serve.closed_loop import running_service
from bert.bundle import read_bundle
from bert.checkpoint.base_models import resolve_checkpoint
from bert.errors import BertError
from bert.tasks.registry import TASKS

COLUMNS = ("checkpoint", "task", "precision", "texts", "other answers", "largest difference", "verdict")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
DIFFERENCE = {"fp32": CLOSE, "fp16": 1e-2, "int8": float("inf")}
"""Largest difference of a score by precision; 8 bits are judged by labels, as at export."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of exporting, serving and comparing one checkpoint."""

    name: str
    verdict: str
    """same, DIFFERS, or refused with the reason."""
    expected: bool
    """The list says the same, or nothing."""
    task: str = ""
    precision: str = ""
    texts: int = 0
    different: int = 0
    largest_difference: float = 0.0
    example: str = ""

    def row(self) -> str:
        """Return its line in the table."""
        numbers = (str(self.texts), str(self.different), f"{self.largest_difference:.1e}")
        cells = (
            self.name,
            self.task,
            self.precision,
            *(numbers if self.texts else ("", "", "")),
            self.verdict,
        )
        return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the checkpoints."""
    args = parse(arguments)
    listed = {model.name: model for model in read_list()}
    names = args.names or list(listed)
    args.out.mkdir(parents=True, exist_ok=True)
    machine = machine_line("onnxruntime", "transformers", "tokenizers")
    head = [f"`{command_line('hub', arguments).strip()}`", machine, "", HEAD]
    print("\n".join(head), flush=True)
    outcomes = []
    for name in names:
        outcomes.append(check(name, listed.get(name), args.precision, args.texts))
        print(outcomes[-1].row(), flush=True)
    rows = [outcome.row() for outcome in outcomes]
    (args.out / "hub_models.md").write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")
    content = json.dumps([asdict(outcome) for outcome in outcomes], indent=2, ensure_ascii=False)
    (args.out / "hub_models.json").write_text(content + "\n", encoding="utf-8")
    for outcome in outcomes:
        if not outcome.expected:
            print(f"{outcome.name}: not as expected. {outcome.example or outcome.verdict}", file=sys.stderr)
    return int(not all(outcome.expected for outcome in outcomes))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of the hub, or folders")
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "fp16", "int8"))
    parser.add_argument("--texts", type=int, default=200, help="texts of each model")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the table")
    return parser.parse_args(arguments)


def check(name: str, listed: Published | None, precision: str, texts: int) -> Outcome:
    """Export, serve and compare one checkpoint; never raises what the checkpoint is to blame for."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bundle"
        command = [sys.executable, "-m", "model_export.cli", "--checkpoint", name, "--out", str(out)]
        if listed and listed.pair:
            command.append("--pair")
        run = subprocess.run(
            [*command, "--precision", precision], stderr=subprocess.PIPE, text=True, check=False
        )
        if run.returncode:
            said = (run.stderr.strip().splitlines() or ["no reason"])[-1].removeprefix("bert-export: ")
            return Outcome(name, f"refused: {said}", expected=listed is None or listed.status != "read")
        return _compared(name, listed, out, texts)


def _compared(name: str, listed: Published | None, out: Path, texts: int) -> Outcome:
    from benchmarks.hub.transformers_answers import CLASSES, Reference  # takes seconds to import

    manifest = read_bundle(out).manifest
    spec = manifest.task
    if spec.task not in CLASSES:
        verdict, expected = (
            "exported; transformers has no such model",
            listed is None or listed.status == "read",
        )
        return Outcome(name, verdict, expected, spec.task, manifest.precision)
    try:
        reference = Reference(resolve_checkpoint(name), spec)
    except (BertError, ValueError, OSError) as error:
        return Outcome(name, f"transformers fails: {error}", expected=False, task=spec.task)
    asked = reference.fitting(items(spec), texts)
    with running_service(out, ["--max-queue-tokens", "131072"]) as url:
        found = compare(asked, ask(url, spec.task, asked), reference.answers(asked))
    allowed = 1 - TASKS[spec.task].kept_share if manifest.precision == "int8" else 0.0
    is_same = found.is_close(allowed, DIFFERENCE[manifest.precision])
    return Outcome(
        name,
        "same" if is_same else "DIFFERS",
        is_same and (listed is None or listed.status == "read"),
        spec.task,
        manifest.precision,
        found.texts,
        found.different,
        found.largest_difference,
        found.example,
    )


if __name__ == "__main__":
    sys.exit(main())
