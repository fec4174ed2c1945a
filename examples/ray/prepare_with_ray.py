"""Prepare a corpus on a Ray cluster: the parts of `bert-prepare` as tasks, then their merge.

    pip install "ray[data]"    # beside this project, on every node
    python examples/ray/prepare_with_ray.py --parts 8 --cpus 4 \
        --sources 's3://bucket/books-*.jsonl.xz' --tokenizer vocab.txt --output-dir /shared/corpora/english

All nodes must reach sources, tokenizer and output folder under the same names. All other options are those of
`bert-prepare`, and the output is what that command makes on one machine, to the byte. docs/pretraining.md says more.
"""

import argparse

import ray

from bert.settings import read_settings
from training.corpus.prepare import prepare
from training.corpus.settings import PrepareSettings


def make_part(settings: PrepareSettings) -> str:
    """Make one part, or go on where a lost node left it; return its summary."""
    return f"part {settings.part}: {prepare(settings).summary()}"


def main() -> None:
    """Make the vocabulary here where there is none, the parts on the cluster, and join them here."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=int, required=True, help="tasks; a few for each node")
    parser.add_argument("--cpus", type=int, default=1, help="cores, and worker processes, of a task")
    args, others = parser.parse_known_args()
    settings = read_settings(PrepareSettings, [*others, "--processes", str(args.cpus)])
    ray.init()
    if settings.tokenizer is None:
        prepare(settings.model_copy(update={"vocab_only": True}))
    # Retried where a node is lost; an error of the part itself ends the job, and the same command goes on.
    task = ray.remote(num_cpus=args.cpus, max_retries=20)(make_part)
    parts = [f"{number}/{args.parts}" for number in range(1, args.parts + 1)]
    waiting = [task.remote(settings.model_copy(update={"part": part})) for part in parts]
    while waiting:
        done, waiting = ray.wait(waiting)
        print(ray.get(done[0]), flush=True)
    prepare(settings.model_copy(update={"merge": True}))
    print(f"corpus: {settings.output_dir}")


if __name__ == "__main__":
    main()
