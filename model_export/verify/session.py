"""Run a graph on texts in the service's own packing and session."""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx

from bert.config import BertConfig
from bert.manifest import PROVIDER_OF_LAYOUT
from bert.packing import Packer, PackingRules, split
from bert.runtime import open_session, session_options
from model_export.reference import Floats
from model_export.verify.texts import Text

BATCH_TOKENS = 2048


def packer_for(config: BertConfig, precision: str) -> Packer:
    """Return the packer of a precision's graphs.

    In 8 bits a difference in the last bit of float32 can move a value over a rounding edge and grows from there. ONNX
    Runtime's attention on CPU gives the same bits wherever a text lies if it starts at a multiple of 4 (softmax sums
    lane by lane) and crosses no block of the product with the values (MLAS: 128 x 128 values, at least 16 wide).
    """
    if precision == "fp16":
        return Packer("flat", hidden_size=config.hidden_size)
    if precision == "fp32":
        return Packer("rows", hidden_size=config.hidden_size)
    width = 1 << (max(16, config.head_size) - 1).bit_length()
    rules = PackingRules(align_tokens=4, block_tokens=max(128 * 128 // width, 4))
    return Packer("rows", rules, config.hidden_size)


class GraphSession:
    """A session over one graph."""

    def __init__(self, model: onnx.ModelProto, packer: Packer, threads: int = 0) -> None:
        """Open the graph; 0 threads: one per core."""
        self._packer = packer
        options = session_options(threads, packer.layout)
        provider = PROVIDER_OF_LAYOUT[packer.layout]
        self._session = open_session(model.SerializeToString(), provider, options)
        self._names = [tensor.name for tensor in self._session.get_inputs()]

    def run(self, texts: Sequence[Text]) -> list[Floats]:
        """Return each text's rows of the output, all texts in one batch."""
        inputs, _ = self._packer.inputs([text.encoding for text in texts], [text.positions for text in texts])
        output = self._session.run(None, {name: inputs[name] for name in self._names})[0]
        return split(np.asarray(output), [len(text.positions) for text in texts])

    def alone(self, texts: Sequence[Text]) -> list[Floats]:
        """Return the same, one text a batch."""
        return [self.run([text])[0] for text in texts]

    def packed(self, texts: Sequence[Text]) -> list[Floats]:
        """Return the same, in batches of about BATCH_TOKENS in the order given."""
        return [output for batch in _batches(texts) for output in self.run(batch)]


def _batches(texts: Sequence[Text]) -> Iterator[list[Text]]:
    batch: list[Text] = []
    for text in texts:
        if batch and sum(map(len, batch)) + len(text) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch
