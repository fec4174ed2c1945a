"""Predict files on a Ray cluster or on one machine: `bert-predict` for more rows than one machine gets through.

    pip install "ray[data]"    # beside this project, on every node
    python examples/ray/predict_with_ray.py bundles/sentiment reviews/ predicted/ --format jsonl --ship-bundle

Each actor loads the bundle once. The output is parquet: the input's columns and the model's in predicted/rows=good/,
rows that could not be predicted, with the reason in the column `error`, in predicted/rows=bad/. docs/howto/ray.md says more.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.data

from service.bulk.predictor import Predictor

SCALARS = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


class Predict:
    """What an actor does: one loaded model, one batch of rows after the other."""

    def __init__(self, bundle: str, prefix: str, settings: Mapping[str, Any]) -> None:
        """Load the bundle."""
        self.predictor, self.prefix = Predictor(Path(bundle).resolve(), **settings), prefix

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the rows with the new columns, `error`, and `rows`, which is good or bad."""
        task = self.predictor.task_for(rows.column_names)
        needed = [self.predictor.column_of(name) for name in task.fields]
        if missing := [name for name in needed if name not in rows.column_names]:
            raise ValueError(f"the input has no column {missing[0]!r}; its columns are {rows.column_names}")
        predictions = self.predictor.predict(rows.select(needed).to_pylist())
        for name, kind in task.columns.items():
            values = [each.columns.get(name) for each in predictions]
            rows = self._appended(rows, name, pa.array(values, arrow_type(kind)))
        reasons = pa.array([each.reason or None for each in predictions], pa.string())
        rows = self._appended(rows, "error", reasons)
        return rows.append_column(
            "rows", pa.array(["bad" if each.is_bad else "good" for each in predictions])
        )

    def _appended(self, rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
        """Append a column. Raises ValueError if the input has one of that name."""
        name = f"{self.prefix}{name}"
        if name in rows.column_names:
            raise ValueError(f"the input has a column {name!r} already: give the new ones a --prefix")
        return rows.append_column(name, values)


def arrow_type(kind: Any) -> pa.DataType:
    """Return the arrow type of a new column, as `BulkTask.columns` states it."""
    if isinstance(kind, list):
        return pa.list_(arrow_type(kind[0]))
    if isinstance(kind, Mapping):
        return pa.struct([(name, arrow_type(each)) for name, each in kind.items()])
    return SCALARS.get(kind) or pa.list_(pa.float32())


def main() -> None:
    """Predict."""
    args = parse()
    # Every actor needs the folder. With --ship-bundle Ray packs it, and it is each worker's working directory.
    ray.init(runtime_env={"working_dir": args.bundle} if args.ship_bundle else None)
    bundle = "." if args.ship_bundle else str(Path(args.bundle).resolve())
    settings = {
        "columns": {"text": args.text_column} if args.text_column else {},
        "truncate": args.truncate or None,
        "top_k": args.top_k,
        # Ray counts the cores of an actor but does not bind it to them, so the engine is told.
        **({} if args.gpus else {"engine_slots": args.cpus, "engine_threads_per_slot": 1}),
    }
    read = ray.data.read_parquet if args.format == "parquet" else ray.data.read_json
    predicted = read(args.input).map_batches(
        Predict,
        fn_constructor_args=(bundle, args.prefix, settings),
        batch_size=args.batch_rows,
        batch_format="pyarrow",
        num_cpus=args.cpus,
        num_gpus=args.gpus,
        # From one actor, so that after the loss of a node those that are left go on.
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=args.actors),
    )
    predicted.write_parquet(args.output, partition_cols=["rows"], mode="error")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("bundle", help="folder of a bundle, on every node; with --ship-bundle on this machine")
    add("input", help="a file, a folder, or a URL such as s3://bucket/folder, which every node reads")
    add("output", help="a folder that every node writes to; it must not exist yet")
    add("--format", choices=["parquet", "jsonl"], default="parquet", help="of the input")
    add("--ship-bundle", action="store_true", help="let Ray bring the bundle to the nodes")
    add("--actors", type=int, default=64, help="most copies of the model; fewer where there is no room")
    add("--cpus", type=int, default=1, help="cores of a copy")
    add("--gpus", type=float, default=0, help="GPUs of a copy, for a bundle that was exported for GPUs")
    add("--batch-rows", type=int, default=1024, help="rows that a copy gets at once")
    add("--text-column", help="column of the text, if it is not called text")
    add("--prefix", default="", help="text before the names of the new columns")
    add(
        "--truncate",
        action="store_true",
        help="cut texts at the model's length; else a longer one is a bad row",
    )
    add("--top-k", type=int, help="labels or answers with their scores, best first")
    return parser.parse_args()


if __name__ == "__main__":
    main()
