"""The graph of a checkpoint in each precision, and a session that runs it as the service will."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import MappingProxyType
from typing import Any
from weakref import finalize

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from bert.checkpoint.weights import Checkpoint, release_pages
from bert.config import BertConfig
from bert.encoding import Encoding
from bert.errors import BertError, ExportError
from bert.graph_inputs import Packer
from bert.manifest import CUDA, PROVIDER_OF_LAYOUT
from bert.packing import CostModel, PackingRules
from bert.processor import allowed_threads
from bert.runtime import open_session, session_options
from model_export.graph.bert.cpu_ops import product_block
from model_export.graph.bodies import attention_cost, graph_body, max_pairs
from model_export.graph.build import build_graph
from model_export.graph.calibration import Calibration
from model_export.graph.graph_checks import (
    check_attention,
    check_form,
    check_types,
    fused_operators,
    output_of,
)
from model_export.graph.tables import separate_tables
from model_export.reference import Floats
from model_export.verify import fp16_reference
from model_export.verify.texts import EncodedText

BATCH_TOKENS = 1024


def packer_for(config: BertConfig, precision: str) -> Packer:
    """Return the packer of a precision's graphs.

    In 8 bits a difference in the last bit of float32 can move a value over a rounding edge and grows from there. ONNX
    Runtime's attention on CPU gives the same bits wherever a text lies if it starts at a multiple of 4 (softmax sums
    lane by lane) and crosses no block of the product with the values (`product_block`).
    """
    cost = CostModel.for_model(config.hidden_size, config.num_hidden_layers, attention_cost(config))
    if precision == "fp16":
        return Packer("flat", PackingRules(max_pairs=max_pairs(config)), cost)
    if precision == "fp32":
        return Packer("rows", cost=cost)
    return Packer("rows", PackingRules(align_tokens=4, block_tokens=product_block(config.head_size)), cost)


class GraphSession:
    """A session over one graph. A run has one thread, as by default in the service; on the CPU each core has a run."""

    _runs = 1
    label_vectors: Mapping[int, Floats] = MappingProxyType({})
    """Vectors that take the place of those of texts' labels, by their ids, where labels have an encoder of their own."""

    def __init__(self, graph: Path | onnx.ModelProto, packer: Packer, threads: int = 1) -> None:
        """Open a written graph, or one in memory."""
        provider = PROVIDER_OF_LAYOUT[packer.layout]
        source = graph if isinstance(graph, Path) else graph.SerializeToString()
        self._opened = partial(open_session, source, provider, session_options(threads, packer.layout))
        if packer.layout == "rows" and threads == 1:
            self._runs = allowed_threads()
        self._names = [tensor.name for tensor in self._session.get_inputs()]
        self._packer = replace(packer, reads_chunks="chunk_ids" in self._names)

    @cached_property
    def _session(self) -> ort.InferenceSession:
        return self._opened()

    def close(self) -> None:
        """Free the session's memory until the next run."""
        vars(self).pop("_session", None)

    def run(self, texts: Sequence[EncodedText]) -> list[Floats]:
        """Return each text's rows of the output, all texts in one batch."""
        encodings, heads = [self._read(text) for text in texts], [text.positions for text in texts]
        rows = [len(text.positions) if text.rows is None else text.rows for text in texts]
        return self._packer.run(encodings, heads, self._compute, rows)[0]

    def _read(self, text: EncodedText) -> Encoding:
        own = self.label_vectors.get(id(text.encoding.label_vectors))
        if own is None:
            return text.encoding
        encoding = copy(text.encoding)
        encoding.label_vectors = own
        return encoding

    def _compute(self, inputs: Mapping[str, NDArray[Any]]) -> Floats:
        output: Floats = self._session.run(None, {name: inputs[name] for name in self._names})[0]
        return output

    def alone(self, texts: Sequence[EncodedText]) -> list[Floats]:
        """Return the same, one text a batch."""
        return self._run_each([text] for text in texts)

    def packed(self, texts: Sequence[EncodedText]) -> list[Floats]:
        """Return the same, in batches of about BATCH_TOKENS in the order given."""
        return self._run_each(_batches(texts))

    def _run_each(self, batches: Iterable[list[EncodedText]]) -> list[Floats]:
        with ThreadPoolExecutor(self._runs) as pool:
            return [output for outputs in pool.map(self.run, batches) for output in outputs]


def _batches(texts: Sequence[EncodedText]) -> Iterator[list[EncodedText]]:
    batch: list[EncodedText] = []
    for text in texts:
        if batch and sum(map(len, batch)) + len(text) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


class Exporter(GraphSession, ABC):
    """A checkpoint's graph in one precision. By default the graph that is written is the graph that is run."""

    precision: str
    how = "the written graph was run on CPU"
    """Description of the check, for the manifest."""
    separates_tables = True
    """The embedding tables are files of their own, which graphs can share."""

    def __init__(
        self, checkpoint: Checkpoint, texts: Sequence[EncodedText], folder: Path | None = None
    ) -> None:
        """Build the graph, write it to a folder, by default one of its own, and open it; 8 bits are fitted to `texts`.

        Only the session keeps the weights. Raises ExportError for a graph that is not as it should be.
        """
        config = checkpoint.config
        self.packer = packer_for(config, self.precision)
        if (prompt := checkpoint.spec.label_prompt) is not None and prompt.has_encoder:
            self.packer = replace(self.packer, label_width=prompt.width)
        if (
            self.precision == "fp16"
            and (tokens := checkpoint.spec.token_vectors)
            and tokens.hidden_id is not None
        ):
            raise ExportError(
                "fp16 is not built for queries that are filled with tokens to which no token attends (attend is false): "
                "export with --precision int8 or fp32"
            )
        if folder is None:
            folder = Path(mkdtemp(prefix="bert-export-"))
            finalize(self, rmtree, folder, ignore_errors=True)
        self.file = folder / f"{self.precision}.onnx"
        model = self._build(checkpoint, texts)
        release_pages(checkpoint.weights)
        check_attention(model, len(config.layer_order))
        self.fused_operators, self.output = fused_operators(model), output_of(model)
        if self.packer.layout == "rows" and self.separates_tables:
            for name, parts in separate_tables(model).items():
                with open(self.file.with_name(name), "wb") as file:
                    file.writelines(parts)
        self.file.write_bytes(model.SerializeToString())
        del model
        check_form(self.file)
        self._open(checkpoint)

    @property
    def model(self) -> onnx.ModelProto:
        """The written graph."""
        return onnx.load(self.file)

    @abstractmethod
    def _build(self, checkpoint: Checkpoint, texts: Sequence[EncodedText]) -> onnx.ModelProto: ...

    def _open(self, checkpoint: Checkpoint) -> None:
        GraphSession.__init__(self, self.file, self.packer)

    def in_numpy(self, texts: Sequence[EncodedText]) -> list[Floats] | None:
        """Run the texts where this machine has no kernels for the graph; None where it has."""
        return None


class Fp32(Exporter):
    """Float32 for the CPU."""

    precision = "fp32"

    def _build(self, checkpoint: Checkpoint, texts: Sequence[EncodedText]) -> onnx.ModelProto:
        config = checkpoint.config
        return build_graph(config, checkpoint.spec, checkpoint.weights, graph_body(config).cpu)


class LabelsFp32(Fp32):
    """Float32 of the encoder of a model's labels, in one file."""

    separates_tables = False


class Int8(Exporter):
    """8-bit products for the CPU."""

    precision = "int8"

    def _build(self, checkpoint: Checkpoint, texts: Sequence[EncodedText]) -> onnx.ModelProto:
        config, spec, weights = checkpoint.config, checkpoint.spec, checkpoint.weights
        calibration = Calibration(config, spec, weights, [text.encoding for text in texts])
        return build_graph(config, spec, weights, partial(graph_body(config).int8, calibration=calibration))


class LabelsInt8(Int8):
    """8 bits of the encoder of a model's labels, in one file."""

    separates_tables = False


class Fp16(Exporter):
    """Float16 for CUDA.

    Without a GPU the written graph is evaluated in numpy, and what runs on the CPU is its likeness: the same weights,
    rounded to float16, in the CPU's graph. ExportError is raised where float16 cannot hold the weights, or where a GPU
    cannot run the graph.
    """

    precision = "fp16"
    how = (
        "not run on a GPU: the written graph was evaluated in numpy, operator by operator, with every result rounded "
        "to float16, and its rounded weights were run in the CPU's float32 graph"
    )
    _on_gpu = False

    def _build(self, checkpoint: Checkpoint, texts: Sequence[EncodedText]) -> onnx.ModelProto:
        config = checkpoint.config
        return build_graph(config, checkpoint.spec, checkpoint.weights, graph_body(config).cuda)

    def _open(self, checkpoint: Checkpoint) -> None:
        if CUDA in ort.get_available_providers():
            self._on_gpu, self.how = True, "the written graph was run on a GPU"
            with _explained():
                super()._open(checkpoint)
            return
        check_types(self.model)
        config, spec, weights = checkpoint.config, checkpoint.spec, checkpoint.weights
        rounded = {name: value.astype(np.float16).astype(np.float32) for name, value in weights.items()}
        likeness = build_graph(config, spec, rounded, graph_body(config).cpu)
        GraphSession.__init__(self, likeness, packer_for(config, "fp32"))

    def run(self, texts: Sequence[EncodedText]) -> list[Floats]:
        """Return each text's rows of the output, all texts in one batch."""
        with _explained() if self._on_gpu else nullcontext():
            return super().run(texts)

    def in_numpy(self, texts: Sequence[EncodedText]) -> list[Floats] | None:
        """Run the texts in the written graph; None where a GPU runs it anyway."""
        return None if self._on_gpu else fp16_reference.run_flat(self.model, texts)


@contextmanager
def _explained() -> Iterator[None]:
    """Say of what onnxruntime cannot do inside that it is not for this machine: it has CUDA, and perhaps no GPU."""
    try:
        yield
    except BertError:
        raise
    except Exception as error:  # the package's own are not public
        raise ExportError(f"a GPU's graph cannot be run here: {str(error).partition(chr(10))[0]}") from error


EXPORTERS: dict[str, type[Exporter]] = {"fp32": Fp32, "fp16": Fp16, "int8": Int8}
