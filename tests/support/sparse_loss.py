"""Loss and gradients of sentence-transformers for a folder that bert-finetune wrote, in the Python of its environment.

    BERT_SENTENCE_TRANSFORMERS_PYTHON tests/support/sparse_loss.py FOLDER OUT < JSON

The JSON has `rows`, each an anchor, a positive and a negative, and the two prices. OUT gets `loss` and a gradient for each
parameter, as safetensors.
"""

import json
import sys

import torch
from safetensors.torch import save_file
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder import losses

given = json.load(sys.stdin)
model = SparseEncoder(sys.argv[1]).train()  # its dropout is 0
pairs = losses.SparseMultipleNegativesRankingLoss(model=model)
loss = losses.SpladeLoss(
    model, pairs, document_regularizer_weight=given["document"], query_regularizer_weight=given["query"]
)
columns = [list(column) for column in zip(*given["rows"], strict=True)]
with torch.enable_grad():
    found = sum(loss([model.preprocess(column) for column in columns], None).values())
    found.backward()
gradients = {
    name: p.grad.contiguous() for name, p in model[0].auto_model.named_parameters() if p.grad is not None
}
save_file({"loss": found.detach()[None], **gradients}, sys.argv[2])
