"""Small SparseEncoders as sentence-transformers writes them, with or without a router to a table of queries' weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

from model_export.verify.texts import EncodedText
from tests.support.checkpoints import SPECS, vocabulary
from tests.support.families import their_outputs, write_relative

TASK = {
    "transformer_task": "fill-mask",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "token_embeddings",
}
SPLADE = ["Transformer", "SpladePooling"]
QUERY = ["SparseStaticEmbedding"]


def table() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return weights of queries; those of special pieces are 0."""
    weights = np.random.default_rng(1).uniform(0.1, 9, len(vocabulary())).astype(np.float32)
    weights[:5] = 0
    return weights


def write_sparse(
    folder: Path,
    model_type: str = "bert",
    *,
    modules: list[str] = SPLADE,
    queries: list[str] | None = None,
    nested: bool = False,
    idf: bool = False,
    **files: Any,
) -> transformers.PreTrainedModel:
    """Write a SparseEncoder; return its masked language model.

    With `queries` there is a router; `nested` puts the model into the document's folder, `idf` the table into `idf.json`.
    `files` are by name without ending, the pooling's as `pooling`.
    """
    body = folder / f"document_0_{modules[0]}" if nested else folder
    body.mkdir(parents=True, exist_ok=True)
    model = write_relative(body, model_type, SPECS["fill_mask"])
    pooling = f"document_1_{modules[1]}" if queries else f"1_{modules[1]}"
    kinds = {"": modules[0], f"1_{modules[1]}": modules[1]}
    if queries:
        kinds = {"": "Router"}
        names = {"" if not nested else body.name: modules[0], pooling: modules[1]}
        routed = {f"query_{n}_{kind}": kind for n, kind in enumerate(queries)}
        router = {
            "types": {name: f"sentence_transformers.m.{kind}" for name, kind in (names | routed).items()},
            "structure": {"query": [*routed], "document": [*names]},
            "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
        }
        files = {"router_config": router, **files}
        for name in routed:
            _write_table(folder / name, folder if idf else None)
    listed = [{"idx": n, "path": path, "type": f"s.{kind}"} for n, (path, kind) in enumerate(kinds.items())]
    (folder / pooling).mkdir()
    given = {"pooling_strategy": "max", "activation_function": "relu", "embedding_dimension": None}
    contents = {
        "modules": listed,
        "config_sentence_transformers": {"model_type": "SparseEncoder", "similarity_fn_name": "dot"},
        f"{pooling}/config": given | files.pop("pooling", {}),
        f"{body.relative_to(folder)}/sentence_bert_config": TASK,
        **files,
    }
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return model


def _write_table(module: Path, idf: Path | None) -> None:
    module.mkdir()
    (module / "config.json").write_text('{"frozen": true}')
    if idf is None:
        save_file({"weight": table()}, module / "model.safetensors")
    else:
        named = dict(zip(vocabulary(), table().tolist(), strict=True)) | {"no piece of it": 3.0}
        (idf / "idf.json").write_text(json.dumps(named), encoding="utf-8")


def largest(model: transformers.PreTrainedModel, text: EncodedText) -> torch.Tensor:
    """Return the largest positive logit of each piece at any token of a text, (1, V), by `transformers`."""
    ids = torch.tensor(text.encoding.ids)[None].long()
    with torch.no_grad():
        logits = their_outputs(model, ids, torch.ones_like(ids), torch.zeros_like(ids))
    return logits.relu().amax(dim=1)
