"""From a checkpoint folder to a bundle, step by step."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bert.bundle import MODEL, TOKENIZER, Bundle, Manifest, check_target, write_bundle
from bert.tokenizer import Tokenizer
from bert.weights import Checkpoint, read_checkpoint
from model_export.batch import Text
from model_export.dev_score import read_dev
from model_export.precision import LAYOUT, MAKERS, Fp32
from model_export.progress import step
from model_export.reference import Reference
from model_export.session import recipe
from model_export.structure import check_structure, output_of
from model_export.texts import shipped_texts
from model_export.tolerance import Tolerance
from model_export.verify import check_parity, check_score, references


def export(
    checkpoint_folder: Path,
    out: Path,
    precision: str,
    *,
    tolerance: Tolerance,
    base: Path | None = None,
    dev: Path | None = None,
    dev_limit: int | None = None,
    name: str = "",
    version: str = "1",
    made_by: str = "",
    overwrite: bool = False,
) -> Bundle:
    """Read, build, verify, write. Nothing is left behind where a step fails.

    Raises CheckpointError, ExportError, ParityError, DataError or BundleError.
    """
    check_target(out, overwrite=overwrite)
    with step(f"reading {checkpoint_folder}"):
        checkpoint = read_checkpoint(checkpoint_folder, base)
        texts = shipped_texts(checkpoint.tokenizer, checkpoint.spec)
    with step(f"building the {precision} graph"):
        exported = MAKERS[precision](checkpoint, texts)
        fused = check_structure(exported.model, checkpoint.config.num_hidden_layers)
    parity = {"check": exported.how, "on": "texts shipped with bert-export"}
    parity |= _parity(checkpoint, exported, texts, tolerance)
    manifest = Manifest(
        name=name or out.name,
        version=version,
        parity=parity,
        dev_score=_score(checkpoint, exported, dev, dev_limit, tolerance) if dev else {},
        fused_operators=fused,
        made_by=made_by,
        **_description(checkpoint, exported),
    )
    manifest.check_output(*output_of(exported.model))
    with step(f"writing {out}"):
        files = {MODEL: exported.model.SerializeToString(), TOKENIZER: _tokenizer_json(checkpoint.tokenizer)}
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


def _score(
    checkpoint: Checkpoint, exported: Fp32, file: Path, limit: int | None, tolerance: Tolerance
) -> dict[str, Any]:
    with step(f"scoring on {file}"):
        data = read_dev(file, checkpoint.spec, checkpoint.tokenizer, limit)
        before = None if exported.precision == "fp32" else Fp32(checkpoint, []).packed
        scores = check_score(exported.precision, checkpoint.spec, data, before, exported.packed, tolerance)
        return {"data": file.name, **scores}


def _parity(
    checkpoint: Checkpoint, exported: Fp32, texts: Sequence[Text], tolerance: Tolerance
) -> dict[str, Any]:
    with step(f"comparing {len(texts)} texts with the checkpoint"):
        reference = Reference(checkpoint.config, checkpoint.spec, checkpoint.weights)
        return check_parity(
            exported.precision,
            checkpoint.spec,
            references(reference, texts),
            exported.alone(texts),
            exported.packed(texts),
            tolerance,
            exported.in_numpy(texts),
        )


def _tokenizer_json(tokenizer: Tokenizer) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        return (Path(folder) / TOKENIZER).read_bytes()
