"""Models of real shapes with random weights, as torch has them and as the service does.

Speed does not depend on what the weights are; whether both sides compute the same is looked at all the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import BERT_SHAPES
from benchmarks.engine.texts import LONGEST
from bert.bundle import MODEL, TOKENIZER, Bundle, write_bundle
from bert.config import BertConfig
from bert.encoding import Encoding
from bert.manifest import Manifest
from bert.nn.heads import BertForQuestionAnswering
from bert.runtime import session_recipe
from bert.tasks.spec import TaskSpec
from model_export.graph.bert.cpu_ops import CpuOps
from model_export.graph.bert.cuda_ops import CudaOps
from model_export.graph.build import build_graph


def random_model(name: str) -> BertForQuestionAnswering:
    """Return a model of one of BERT_SHAPES, always with the same weights.

    Its head looks at every token, so that none may be left out.
    """
    torch.manual_seed(0)
    return BertForQuestionAnswering(replace(BertConfig(), **BERT_SHAPES[name])).eval()


def write_random_bundle(model: BertForQuestionAnswering, folder: Path, layout: str) -> Bundle:
    """Write the graph of a model for a CPU ("rows", float32) or a GPU ("flat", float16); it is not verified."""
    config, spec = model.bert.config, TaskSpec("qa", max_tokens=LONGEST)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    graph = build_graph(config, spec, weights, CudaOps if layout == "flat" else CpuOps)
    manifest = Manifest(
        folder.name,
        "1",
        spec,
        "fp16" if layout == "flat" else "fp32",
        layout,
        config.vocab_size,
        config.hidden_size,
        config.num_hidden_layers,
        config.max_position_embeddings,
        session=session_recipe(layout),
    )
    return write_bundle(
        folder, manifest, {MODEL: graph.SerializeToString(), TOKENIZER: b"{}"}, overwrite=True
    )


def flops(config: BertConfig, texts: Sequence[Encoding]) -> float:
    """Return the operations of the layers' products for these texts, two for a multiplication and its addition.

    T tokens: 2 T (4 H^2 + 2 H I) in the projections, 4 T^2 H in attention, for each layer.
    """
    width, inner = config.hidden_size, config.intermediate_size
    lengths = np.array([len(text) for text in texts], float)
    each = 2 * lengths * (4 * width**2 + 2 * width * inner) + 4 * lengths**2 * width
    return float(config.num_hidden_layers * each.sum())
