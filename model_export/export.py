"""From a checkpoint folder to a bundle, step by step."""

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bert.bundle import MODEL, TOKENIZER, Bundle, Manifest, check_target, write_bundle
from bert.tokenizer import Tokenizer
from bert.weights import Checkpoint, read_checkpoint
from model_export.candidate import Subject, build, prove
from model_export.choice import choose
from model_export.precision import LAYOUT, Fp32
from model_export.progress import step
from model_export.session import recipe
from model_export.structure import fused_operators, output_of
from model_export.tolerance import AUTO, Tolerance


def export(
    checkpoint_folder: Path,
    out: Path,
    precision: str,
    *,
    tolerance_of: Callable[[str], Tolerance],
    base: Path | None = None,
    dev: Path | None = None,
    dev_limit: int | None = None,
    name: str = "",
    version: str = "1",
    made_by: str = "",
    overwrite: bool = False,
) -> Bundle:
    """Read, build, verify, write. Nothing is left behind where a step fails.

    `precision` is one of PRECISIONS, or AUTO; `tolerance_of` gives the tolerances of one.
    Raises CheckpointError, ExportError, ParityError, DataError or BundleError.
    """
    check_target(out, overwrite=overwrite)
    with step(f"reading {checkpoint_folder}"):
        checkpoint = read_checkpoint(checkpoint_folder, base)
        subject = Subject(checkpoint, dev, dev_limit)
    if precision == AUTO:
        chosen, choice = choose(subject, tolerance_of)
    else:
        chosen, choice = prove(subject, build(subject, precision), tolerance_of(precision)), {}
    model = chosen.exported.model
    manifest = Manifest(
        name=name or out.name,
        version=version,
        parity=chosen.parity,
        dev_score=chosen.dev_score,
        choice=choice,
        fused_operators=fused_operators(model),
        made_by=made_by,
        **_description(checkpoint, chosen.exported),
    )
    manifest.check_output(*output_of(model))
    with step(f"writing {out}"):
        files = {MODEL: model.SerializeToString(), TOKENIZER: _tokenizer_json(checkpoint.tokenizer)}
        return write_bundle(out, manifest, files, overwrite=overwrite)


def _description(checkpoint: Checkpoint, exported: Fp32) -> dict[str, Any]:
    """Return the manifest's part that follows from checkpoint and precision alone."""
    config, layout = checkpoint.config, LAYOUT[exported.precision]
    return {
        "task": checkpoint.spec,
        "precision": exported.precision,
        "layout": layout,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "max_position_embeddings": config.max_position_embeddings,
        "session": recipe(layout),
        "packing": asdict(exported.packing),
        "source": checkpoint.sources,
    }


def _tokenizer_json(tokenizer: Tokenizer) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        return (Path(folder) / TOKENIZER).read_bytes()
