"""One encoder of each kind of body in the depth and width that is published, with random weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.serve.baselines.encoder_shapes import write_encoder
from bert.checkpoint.weights import Checkpoint, read_checkpoint
from model_export.reference import Floats, Reference
from model_export.verify.precision import Fp32
from model_export.verify.texts import EncodedText, shipped_texts
from tests.support.families import farthest

pytestmark = pytest.mark.slow

MODELS = [
    # Six layers of the graph of which albert-base has twelve as wide.
    pytest.param("distilbert-base", marks=pytest.mark.soak),
    "electra-small",
    "albert-base",
    "mpnet-base",
    "deberta-base",
    "deberta-v3-small",
    "modernbert-base",
    pytest.param("nomic-base", marks=pytest.mark.soak),
    pytest.param("gte-base", marks=pytest.mark.soak),
]
FEW_LAYERS = {"deberta-v2-xlarge": 2}
"""Models of which some layers are enough: the others are alike."""
FEW_WORDS = {"vocab_size": 1000}  # the tokenizer has fewer; the table would be most of the file


def write(folder: Path, name: str, **changes: Any) -> torch.nn.Module:
    """Write a model with noise on all vectors, which are new: biases of 0 and norms of 1 hide what is left out."""
    model: torch.nn.Module = write_encoder(name, folder, **FEW_WORDS, **changes)
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.02 if parameter.dim() > 1 else 0.1
            parameter.add_(torch.empty_like(parameter).normal_(0.0, scale, generator=drawn))
    model.save_pretrained(folder)  # type: ignore[operator]
    return model


def texts_of(checkpoint: Checkpoint) -> list[EncodedText]:
    """Return short texts, and one as long as the model reads."""
    texts = sorted(shipped_texts(checkpoint.tokenizer, checkpoint.spec), key=len)
    return [*texts[:12:2], texts[-1]]


def logits(model: torch.nn.Module, text: EncodedText) -> Floats:
    with torch.no_grad():
        found: Floats = model(torch.tensor(text.encoding.ids)[None].long()).logits.numpy()
    return found


@pytest.mark.parametrize("name", [*MODELS, *FEW_LAYERS])
def test_float32_answers_as_transformers(name: str, tmp_path: Path) -> None:
    changes = {"num_hidden_layers": FEW_LAYERS[name]} if name in FEW_LAYERS else {}
    model = write(tmp_path, name, **changes)
    checkpoint = read_checkpoint(tmp_path)
    texts = texts_of(checkpoint)
    theirs = [logits(model, text) for text in texts]
    exported = Fp32(checkpoint, ())
    assert farthest(theirs, exported.packed(texts)) < 1e-4
    if checkpoint.config.shares_layers:
        assert (
            len(exported.model.SerializeToString()) < 40e6
        )  # a twelfth of its 86 million weights, and the pooler
    reference = Reference(checkpoint.config, checkpoint.spec, checkpoint.weights)
    few = texts[::3]
    found = reference.outputs_of([text.encoding for text in few], [text.positions for text in few])
    assert farthest(theirs[::3], found) < 1e-4
