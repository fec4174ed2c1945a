"""The packaged weights against transformers, on real and odd texts: padded, in pairs, at length 512."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from bert.config import BertConfig
from bert.encoding import Encoding
from bert.nn import losses
from bert.nn.checkpoint import load_into
from bert.nn.heads import BertForSequenceClassification, BertForSimilarity
from bert.tokenizer import Tokenizer
from tests.support.bert_reference import assert_same

TEXTS = (
    "Ada Lovelace met Charles Babbage in London.",
    "",
    "Zoë 🙂 ordered 3 cafés in 北京.",
    "A man is playing a guitar on the street while two children listen to him and eat their ice cream.",
)


@pytest.fixture(scope="module")
def theirs(minilm: Path) -> Any:
    return transformers.AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def ours(minilm: Path) -> BertForSequenceClassification:
    model = BertForSequenceClassification(BertConfig.read(minilm), 2)
    assert load_into(model, minilm) == ["classifier.weight", "classifier.bias"]
    return model.eval()


def padded(encodings: list[Encoding]) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, segments and mask, (B, T) each."""
    width = max(len(encoding) for encoding in encodings)
    rows = np.zeros((3, len(encodings), width), np.int64)
    for row, encoding in enumerate(encodings):
        rows[0, row, : len(encoding)] = encoding.ids
        rows[1, row, : len(encoding)] = encoding.segment_ids
        rows[2, row, : len(encoding)] = 1
    ids, segments, mask = torch.from_numpy(rows)
    return ids, segments, mask


def run(model: Any, ids: Tensor, segments: Tensor, mask: Tensor) -> Any:
    return model(input_ids=ids, token_type_ids=segments, attention_mask=mask)


def test_padded_texts_and_pairs(
    packaged: Tokenizer, ours: BertForSequenceClassification, theirs: Any
) -> None:
    pieces = packaged.pieces(TEXTS)
    batch = padded([packaged.single(p) for p in pieces] + [packaged.pair(pieces[0], p) for p in pieces])
    with torch.no_grad():
        expected = run(theirs, *batch)
        hidden = ours.bert(*batch)
        tokens = batch[2].bool()  # what stands at padding is read by nobody
        assert_same(hidden[tokens], expected.last_hidden_state[tokens], "hidden")
        assert_same(ours.pooled(hidden), expected.pooler_output, "pooled")


def test_at_length_512(packaged: Tokenizer, ours: BertForSequenceClassification, theirs: Any) -> None:
    first, second = packaged.pieces([TEXTS[0] * 9, TEXTS[3] * 60])
    batch = padded([packaged.pair(first, second, 512, truncate=True)])
    assert batch[0].shape == (1, 512)
    with torch.no_grad():
        assert_same(ours.bert(*batch), run(theirs, *batch).last_hidden_state)


def test_loss_and_gradients(packaged: Tokenizer, ours: BertForSequenceClassification, minilm: Path) -> None:
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=2).eval()
    theirs.classifier.load_state_dict(ours.classifier.state_dict())
    pieces = packaged.pieces(TEXTS)
    batch, targets = padded([packaged.single(p) for p in pieces]), torch.tensor([0, 1, 1, 0])
    loss = losses.cross_entropy(ours(*batch), targets).mean
    ids, segments, mask = batch
    expected = theirs(input_ids=ids, token_type_ids=segments, attention_mask=mask, labels=targets).loss
    assert_same(loss, expected, "loss")
    names = [name for name, _ in ours.named_parameters()]
    gradients = torch.autograd.grad(loss, [ours.get_parameter(name) for name in names])
    wanted = torch.autograd.grad(expected, [theirs.get_parameter(name) for name in names])
    for name, gradient, other in zip(names, gradients, wanted, strict=True):
        assert_same(gradient, other, name)


def test_similarity_is_the_models_own_pooling(packaged: Tokenizer, minilm: Path, theirs: Any) -> None:
    model = BertForSimilarity(BertConfig.read(minilm)).eval()
    assert load_into(model, minilm) == []
    encodings = [packaged.single(p) for p in packaged.pieces(TEXTS)]
    batch = padded(encodings)
    with torch.no_grad():
        vectors = model(*batch)
        hidden = run(theirs, *batch).last_hidden_state
    for text, encoding in enumerate(encodings):
        mean = hidden[text, : len(encoding)].numpy().mean(0)
        np.testing.assert_allclose(vectors[text], mean / np.linalg.norm(mean), atol=1e-5)
    assert 0.99 < float(vectors[0].square().sum()) < 1.01
