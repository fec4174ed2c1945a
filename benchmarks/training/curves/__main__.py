"""Each recipe of bert-pretrain beside the same recipe written with transformers' modules, at a small scale.

    python -m benchmarks.training.curves --sources ../shared/data/corpus/wiki-en-000.jsonl.xz --out runs/curves

Ours is `bert-pretrain`'s own trainer. The other side is a plain loop around transformers' classes with losses, optimisers
and learning rates of its own, written from the papers. Both start from the same weights and read the same examples; each
draws its own dropout, and pads or packs in its own way. Each recipe runs with several seeds on both sides. The sides are
the same where the means over seeds differ by at most two standard errors. The held-out loss is that of masked words, on
the same examples with the same plain masking; the training loss is the mean over the last tenth of the steps.

A finished run is kept in OUT and not repeated. Exits with 1 where two sides differ.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

import torch
import transformers

from benchmarks.common.machine import machine_line
from benchmarks.training.curves import corpora, page
from benchmarks.training.curves.recipes import BASE, OWN_VOCABULARY, corpus_of, settings_of
from benchmarks.training.curves.runs import Curve, run_ours, run_theirs
from benchmarks.training.curves.theirs import PAPERS
from bert.errors import BertError
from training.corpus.shards import INDEX
from training.pretrain import pretrain

BASE_SEED = 1000
BYTES = 256
"""Pieces of every byte-level vocabulary, beside those of the options."""


def main() -> int:
    """Run what is missing, then write table and figure; returns 1 where two sides differ."""
    options = read_options()
    if options.threads:
        torch.set_num_threads(options.threads)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    prepare(options)
    recipes = {
        recipe: [run(recipe, options, seed) for seed in range(1, options.seeds + 1)]
        for recipe in options.recipes
    }
    text = page.table(recipes)
    heading = f"{machine_line('torch', 'transformers')}\nCommand: {shlex.join(command())}\n\n"
    print(f"{heading}{text}")
    (out / "table.md").write_text(f"{heading}{text}\n", encoding="utf-8")
    numbers = {
        recipe: {name: vars(each) for name, each in page.comparisons(sides).items()}
        for recipe, sides in recipes.items()
    }
    (out / "curves.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    page.draw(recipes, out / "curves.svg")
    return (
        0
        if all(each.is_noise for sides in recipes.values() for each in page.comparisons(sides).values())
        else 1
    )


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", nargs="+", required=True, help="texts, as bert-prepare reads them")
    parser.add_argument("--max-documents", type=int, default=0, help="read no more documents; 0 reads all")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the runs, the table and the figure"
    )
    parser.add_argument("--recipes", nargs="+", choices=PAPERS, default=list(PAPERS), metavar="RECIPE")
    parser.add_argument(
        "--seeds", type=int, default=3, help="at least 2: without a spread there is no verdict"
    )
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--vocab-size", type=int, default=300, help="small: runs are short")
    parser.add_argument("--threads", type=int, default=1, help="of torch; 0 leaves torch's own choice")
    return parser.parse_args()


def prepare(options: argparse.Namespace) -> None:
    """Write what all runs read, and train the base where a recipe wants it."""
    out: Path = options.out
    for recipe in options.recipes:
        folder = corpus_of(recipe, out)
        if not (folder / INDEX).is_file():
            family = OWN_VOCABULARY.get(recipe, "bert")
            size = options.vocab_size + (BYTES if recipe in OWN_VOCABULARY else 0)
            corpora.prepare_corpus(options.sources, folder, size, options.max_documents, family)
    if "ernie" in options.recipes and not (out / "phrases.txt").is_file():
        corpora.write_phrases(options.sources, out / "phrases.txt", options.max_documents)
    if {"macbert", "distilbert"} & set(options.recipes) and not (out / "base" / "model").is_dir():
        pretrain(settings_of("bert", out, out / "base", options.steps, BASE_SEED, model=BASE))


def run(recipe: str, options: argparse.Namespace, seed: int) -> tuple[Curve, Curve]:
    """Run both sides of a recipe with a seed, or read what is kept of them."""
    folder: Path = options.out / recipe / f"seed-{seed}"
    settings = settings_of(recipe, options.out, folder / "run", options.steps, seed)
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "ours.json", folder / "theirs.json"
    if not files[0].is_file():
        run_ours(settings).write(files[0])
    if not files[1].is_file():
        run_theirs(recipe, settings, folder / "start").write(files[1])
    return Curve.read(files[0]), Curve.read(files[1])


def command() -> list[str]:
    """Return the command line that runs this again."""
    return ["python", "-m", "benchmarks.training.curves", *sys.argv[1:]]


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    try:
        sys.exit(main())
    except BertError as error:
        sys.exit(f"error: {error}")
