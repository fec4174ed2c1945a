"""From a checkpoint folder to a bundle, step by step."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from shutil import move
from typing import Any

from bert.bundle import (
    FALLBACK,
    LABELS_FALLBACK,
    LABELS_MODEL,
    LABELS_TOKENIZER,
    MODEL,
    QUERY_WEIGHTS,
    TOKENIZER,
    Bundle,
    creation_time,
    finish_bundle,
    new_bundle,
)
from bert.checkpoint import tensor_names
from bert.checkpoint.description import Stated
from bert.checkpoint.weight_files import find_checkpoint
from bert.checkpoint.weights import Checkpoint, check_unchanged, read_checkpoint
from bert.data.examples import LabelledFile
from bert.manifest import LABELS_KEYS, Manifest
from bert.processor import instructions
from bert.runtime import check_output, session_recipe
from bert.self_test import SELF_TEST, Floats, SelfTest, encode
from bert.tasks.registry import TASKS
from bert.tasks.task import Reads
from model_export import progress
from model_export.graph.bodies import attention_cost
from model_export.graph.embedding import pools_chunks
from model_export.progress import say, step
from model_export.verify.auto_precision import Choice, choose, tried
from model_export.verify.embedding_ranges import embedding_ranges
from model_export.verify.label_encoder import LabelEncoder
from model_export.verify.parity import AUTO, Tolerance
from model_export.verify.precision import Exporter
from model_export.verify.texts import make_text, texts_file
from model_export.verify.verified_graph import ExportContext, VerifiedGraph, build, prove

TEXTS = (4, 5, 12, 18, 28, 46, 47)
"""Indices of the self-test's texts among the shipped ones: short, long, and one with a line break and a tab."""
QUESTIONS = 2
"""Number of shipped questions in the self-test, with their paragraphs."""
SELF_TEST_TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "int8": 5e-3}
"""Largest relative error by precision. In 8 bits the last bit of a float32 sum can move a value over a rounding edge: there
a graph is allowed half of its distance from the checkpoint, where that is more."""


def export(
    checkpoint_folder: Path,
    out: Path,
    precision: str,
    *,
    tolerance_of: Callable[[str], Tolerance],
    base: Path | str | None = None,
    stated: Stated | None = None,
    dev: LabelledFile | Path | None = None,
    dev_limit: int | None = None,
    name: str = "",
    version: str = "1",
    made_by: str = "",
    fallback: bool = True,
    few_texts: bool = False,
    overwrite: bool = False,
) -> Bundle:
    """Read, build, verify, write. Nothing is left behind where a step fails.

    `checkpoint_folder` may be that of a run, with `best/` in it.
    `precision` is one of PRECISIONS, or AUTO; `tolerance_of` gives the tolerances of one. Where AUTO takes int8, `fallback`
    puts the float32 graph beside it. `few_texts` compares with the checkpoint on a few of the shipped texts.
    Raises CheckpointError, ExportError, ParityError, DataError or BundleError.
    """
    with new_bundle(out, overwrite=overwrite) as aside:
        checkpoint = _read(checkpoint_folder, base, stated)
        labels = LabelEncoder(checkpoint.labels, tolerance_of) if checkpoint.labels is not None else None
        vectors_of = labels.vectors if labels is not None else None
        context = ExportContext(
            checkpoint, dev, dev_limit, few_texts=few_texts, folder=aside, vectors_of=vectors_of
        )
        choice = _choose(context, precision, tolerance_of)
        graphs, of_labels = {MODEL: choice.taken}, dict[str, VerifiedGraph]()
        if labels is not None:
            of_labels[LABELS_MODEL] = labels.graph(choice.taken.exported.precision)
        if fallback and choice.float32 is not None:
            graphs[FALLBACK] = choice.float32
            if labels is not None:
                of_labels[LABELS_FALLBACK] = labels.graph("fp32")
        manifest = Manifest(
            name=name or out.name,
            version=version,
            **_of_choice(choice),
            fallback=_fallback(graphs[FALLBACK]) if FALLBACK in graphs else {},
            embedding_ranges={} if few_texts else embedding_ranges(context, choice.taken),
            labels_encoder=_labels_encoder(checkpoint.labels, of_labels),
            created=creation_time(out) if out.exists() else datetime.now(UTC).isoformat(),
            made_by=made_by,
            **_description(checkpoint, choice.taken.exported),
        )
        check_output(manifest, *choice.taken.exported.output)
        with step(f"writing {out}", context.costs.writing):
            _write_files(checkpoint, graphs, of_labels, aside)
            manifest = finish_bundle(aside, manifest)
    return Bundle(out, manifest)


def _read(checkpoint_folder: Path, base: Path | str | None, stated: Stated | None) -> Checkpoint:
    """Read a checkpoint, or that of a run's folder, and say what is remarkable of it."""
    folder = find_checkpoint(checkpoint_folder)
    if folder != checkpoint_folder:
        say(f"{checkpoint_folder} is the folder of a run; {folder} is exported")
    with step(f"reading {folder}"):
        checkpoint = read_checkpoint(folder, base, stated)
    for remark in checkpoint.remarks:
        say(f"  {remark}")
    return checkpoint


def _write_files(
    checkpoint: Checkpoint,
    graphs: Mapping[str, VerifiedGraph],
    of_labels: Mapping[str, VerifiedGraph],
    folder: Path,
) -> None:
    (folder / TOKENIZER).write_bytes(checkpoint.tokenizer.to_json().encode())
    if checkpoint.labels is not None:
        (folder / LABELS_TOKENIZER).write_bytes(checkpoint.labels.tokenizer.to_json().encode())
    if checkpoint.spec.query_weights:
        (folder / QUERY_WEIGHTS).write_bytes(checkpoint.weights[tensor_names.QUERY_WEIGHTS].tobytes())
    (folder / SELF_TEST).write_bytes(_self_test(checkpoint, graphs, of_labels).to_json())
    for file, graph in (*graphs.items(), *of_labels.items()):
        move(graph.exported.file, folder / file)
    for other in set(folder.glob("*.onnx")) - {folder / file for file in (*graphs, *of_labels)}:
        other.unlink()  # a graph that was refused


def _choose(context: ExportContext, precision: str, tolerance_of: Callable[[str], Tolerance]) -> Choice:
    """Build and verify the graph of a precision, or of the best one for AUTO."""
    if context.dev_file is not None:
        with step(f"reading {context.dev_file}"):
            _ = context.dev  # an unreadable file is refused before a minute of work
    elif precision in (AUTO, "int8"):
        context.take_recorded_dev()
    progress.current.expect(context.costs_of(tried(precision)))
    try:
        if precision == AUTO:
            return choose(context, tolerance_of)
        return Choice(prove(context, build(context, precision), tolerance_of(precision)), {})
    finally:
        check_unchanged(context.checkpoint.weights)  # then this is the reason why a graph was refused


def _labels_encoder(labels: Checkpoint | None, graphs: Mapping[str, VerifiedGraph]) -> dict[str, Any]:
    """Return the manifest's `labels_encoder`."""
    if labels is None:
        return {}
    graph, float32 = graphs[LABELS_MODEL], graphs.get(LABELS_FALLBACK)
    found = {**_description(labels, graph.exported), "parity": graph.parity}
    found["fallback"] = {} if float32 is None else _fallback(float32)
    return {**{key: found[key] for key in LABELS_KEYS}, "task": found["task"].to_dict()}


def _fallback(float32: VerifiedGraph) -> dict[str, Any]:
    """Return the manifest's `fallback`."""
    return {**_of_graph(float32.exported), "parity": float32.parity}


def _of_choice(choice: Choice) -> dict[str, Any]:
    taken = choice.taken
    return {"parity": taken.parity, "dev_score": taken.dev_score, "choice": choice.record}


def _of_graph(exported: Exporter) -> dict[str, Any]:
    """Return what the manifest says of a graph."""
    layout = exported.packer.layout
    return {
        "precision": exported.precision,
        "layout": layout,
        "session": session_recipe(layout),
        "packing": asdict(exported.packer.rules),
        "fused_operators": exported.fused_operators,
    }


def _description(checkpoint: Checkpoint, exported: Exporter) -> dict[str, Any]:
    """Return the manifest's part that follows from checkpoint and precision alone."""
    config = checkpoint.config
    return {
        **_of_graph(exported),
        "task": replace(checkpoint.spec, data={}, command=""),  # paths of the machine that trained it
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "max_position_embeddings": config.max_position_embeddings,
        "attention": attention_cost(config),
        "reads_chunks": exported.packer.layout == "rows" and pools_chunks(checkpoint.spec),
        "source": checkpoint.sources,
    }


def _self_test(
    checkpoint: Checkpoint, graphs: Mapping[str, VerifiedGraph], of_labels: Mapping[str, VerifiedGraph]
) -> SelfTest:
    """Run the graphs, given by the names of their files, and return texts and answers."""
    spec, content = checkpoint.spec, texts_file()
    task = TASKS[spec.task]
    chosen = [content["texts"][n] for n in TEXTS]
    asked = [(row["question"], row["context"]) for row in content["questions"][:QUESTIONS]]
    texts: list[tuple[str, ...]]
    if task.reads(spec) is Reads.QUESTION:
        texts = [*asked, *((asked[0][0], text) for text in chosen)]
    elif task.reads(spec) is Reads.TEXT:
        texts = [(text,) for text in [*chosen, *(context for _, context in asked)]]
    else:
        texts = [*asked, *itertools.pairwise(chosen)]
    answers, tolerances = {}, {}
    for of, proved in ((checkpoint, graphs), (checkpoint.labels, of_labels)):
        for file, candidate in proved.items():
            assert of is not None
            answers[file] = _answers(of, candidate.exported, texts)
            tolerances[file] = SELF_TEST_TOLERANCE[candidate.exported.precision]
            if candidate.exported.precision == "int8":
                tolerances[file] = max(tolerances[file], candidate.parity["relative_error"] / 2)
    return SelfTest(tuple(texts), answers, tolerances, instructions())


def _answers(checkpoint: Checkpoint, exported: Exporter, texts: Sequence[tuple[str, ...]]) -> list[Floats]:
    spec, task = checkpoint.spec, TASKS[checkpoint.spec.task]
    encoded = [make_text(encoding, spec.task) for encoding in encode(texts, checkpoint.tokenizer, spec)]
    return task.self_test_scores([task.shorten(scores) for scores in exported.alone(encoded)])
