"""The table of a query's weights in a SparseEncoder's folder: that of its module, or of an `idf.json`. V vocabulary."""

from pathlib import Path

import numpy as np

from bert.checkpoint.tensor_names import QUERY_WEIGHTS, Weights
from bert.errors import CheckpointError, displayed
from bert.files import read_object
from bert.tasks.task import Floats
from bert.tokenizer import Tokenizer

IDF = "idf.json"


def query_weights(module: Path, tensors: Weights, tokenizer: Tokenizer, vocab_size: int) -> Weights:
    """Return the weights (V,) of pieces: the module's only tensor, else those of its or the model's `idf.json`.

    Pieces that are not named weigh 0; names that are no pieces are passed over. Raises CheckpointError.
    """
    table = np.zeros(vocab_size, np.float32)
    if tensors:
        weight = tensors.get("weight")
        if weight is None or weight.ndim != 1 or len(tensors) != 1 or len(weight) > vocab_size:
            shapes = {name: tensor.shape for name, tensor in tensors.items()}
            raise CheckpointError(
                f"{module} has the tensors {shapes}; 'weight' of up to ({vocab_size},) is read"
            )
        table[: len(weight)] = weight
        return {QUERY_WEIGHTS: _not_negative(table, module)}
    file = next((place / IDF for place in (module, module.parent) if (place / IDF).is_file()), module / IDF)
    for piece, number in read_object(file, "it holds the weights of queries").items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise CheckpointError(f"{file}: the weight of {piece!r} is {number!r}, which is not a number")
        if not abs(number) <= float(np.finfo(np.float32).max):
            raise CheckpointError(
                f"{file}: the weight of {piece!r} is {displayed(str(number))}, which is not a finite float32"
            )
        if (place := tokenizer.token_to_id(piece)) is not None:
            table[place] = number
    return {QUERY_WEIGHTS: _not_negative(table, file)}


def _not_negative(table: Floats, source: Path) -> Floats:
    """Return the table; raises CheckpointError for weights under 0, which no sparse vector here has."""
    if len(below := np.flatnonzero(table < 0)):
        raise CheckpointError(
            f"{source}: the weight of the piece with id {below[0]} is {table[below[0]]:g}; "
            "weights of queries must be at least 0"
        )
    return table
