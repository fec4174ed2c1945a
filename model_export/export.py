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
    scores: dict[str, Any] = {}
    if dev:
        with step(f"scoring on {dev}"):
            data = read_dev(dev, checkpoint.spec, checkpoint.tokenizer, dev_limit)
            before = None if precision == "fp32" else Fp32(checkpoint, []).packed
            scores = {"data": dev.name}
            scores |= check_score(precision, checkpoint.spec, data, before, exported.packed, tolerance)
    manifest = Manifest(
        name=name or out.name,
        version=version,
        task=checkpoint.spec,
        precision=precision,
        layout=LAYOUT[precision],
        vocab_size=checkpoint.config.vocab_size,
        hidden_size=checkpoint.config.hidden_size,
        num_hidden_layers=checkpoint.config.num_hidden_layers,
        max_position_embeddings=checkpoint.config.max_position_embeddings,
        session=recipe(LAYOUT[precision]),
        packing=asdict(exported.packing),
        parity=parity,
        dev_score=scores,
        fused_operators=fused,
        source=checkpoint.sources,
        made_by=made_by,
    )
    manifest.check_output(*output_of(exported.model))
    with step(f"writing {out}"):
        files = {MODEL: exported.model.SerializeToString(), TOKENIZER: _tokenizer_json(checkpoint.tokenizer)}
        return write_bundle(out, manifest, files, overwrite=overwrite)


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
