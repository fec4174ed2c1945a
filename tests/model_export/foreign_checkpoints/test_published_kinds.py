"""Published embedders in small: their family, a tokenizer of their kind and their modules, against both libraries."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from bert.checkpoint.weights import read_checkpoint
from model_export.verify.precision import Fp32
from model_export.verify.texts import make_text
from tests.support.checkpoints import SPECS
from tests.support.families import relative, their_outputs
from tests.support.odd_texts import ODD_TEXTS
from tests.support.published import CLS, MEAN, write_dense
from tests.support.tokenizers import TRAINING_TEXTS, write_tokenizer

KINDS: dict[str, tuple[str, str, list[str], dict[str, Any]]] = {
    "MiniLMv2-L6-H384-distilled-from-RoBERTa-Large": ("roberta", "bpe", ["Pooling"], MEAN),
    "Multilingual-MiniLM-L12-H384": ("bert", "unigram", ["Pooling"], MEAN),
    "LaBSE": ("bert", "wordpiece", ["Pooling", "Dense", "Normalize"], CLS),
    "ettin-encoder-150m": ("modernbert", "bpe_modern", ["Pooling"], MEAN),
    "mmBERT-base": ("modernbert", "gemma", ["Pooling"], MEAN),
    "camembertv2-base": ("roberta", "wordpiece", ["Pooling"], MEAN),
    "snowflake-arctic-embed-l-v2.0": ("xlm-roberta", "unigram", ["Pooling", "Normalize"], CLS),
    "nomic-embed-text-v1.5": ("nomic_bert", "wordpiece", ["Pooling"], MEAN),
    "gte-multilingual-base": ("gte", "unigram", ["Pooling", "Normalize"], CLS),
}
"""Name of a published model → family, tokenizer, modules and pooling."""
PROMPTS = {"query": "query: ", "document": ""}


def write(folder: Path, model_type: str, kind: str, modules: list[str], pooling: dict[str, Any]) -> Any:
    """Write a random one of a kind; return the model of transformers and the dense layer, None without."""
    folder.mkdir()
    size = write_tokenizer(folder, kind)
    pad = int(kind in ("bpe", "unigram"))
    shape = {"vocab_size": size, "pad_token_id": pad, "max_position_embeddings": 514}
    model = relative(model_type, SPECS["similarity"], **shape)
    model.save_pretrained(folder)
    names = ["Transformer", *modules]
    listed = [
        {"idx": n, "path": f"{n}_{name}" if n else "", "type": f"sentence_transformers.models.{name}"}
        for n, name in enumerate(names)
    ]
    contents = {
        "modules": listed,
        "config_sentence_transformers": {"prompts": PROMPTS},
        "1_Pooling/config": pooling,
    }
    (folder / "1_Pooling").mkdir()
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    dense = write_dense(folder / "2_Dense", 32, 32) if "Dense" in modules else None
    return model, dense


@pytest.mark.parametrize("name", KINDS)
def test_pieces_and_vectors_are_those_of_the_libraries(name: str, tmp_path: Path) -> None:
    model_type, kind, modules, pooling = KINDS[name]
    model, dense = write(tmp_path / "m", model_type, kind, modules, pooling)
    checkpoint = read_checkpoint(tmp_path / "m")
    spec, tokenizer = checkpoint.spec, checkpoint.tokenizer
    assert spec.prompts == PROMPTS
    backend = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "m" / "tokenizer.json"))
    texts = [f"query: {text}" for text in (*TRAINING_TEXTS, *ODD_TEXTS) if text.strip()]
    encodings = [tokenizer.single(pieces) for pieces in tokenizer.pieces(texts)]
    assert [encoding.ids.tolist() for encoding in encodings] == backend(texts)["input_ids"]
    found = Fp32(checkpoint, ()).packed([make_text(encoding, spec.task) for encoding in encodings[:12]])
    for encoding, vector in zip(encodings, found, strict=False):
        ids, segments = (torch.tensor(x)[None].long() for x in (encoding.ids, encoding.segment_ids))
        with torch.no_grad():
            states = their_outputs(model, ids, torch.ones_like(ids), segments)[0]
            expected = states[0] if pooling is CLS else states.mean(dim=0)
            expected = expected if dense is None else torch.tanh(dense(expected))
        if "Normalize" in modules:
            expected = torch.nn.functional.normalize(expected, dim=0)
        np.testing.assert_allclose(vector.reshape(-1), expected.numpy(), atol=2e-5)
