"""Names of tensors that several modules read, and the shapes of layers. Names are those of BERT's files."""

from collections.abc import Iterator

Shape = tuple[str, tuple[int, ...]]
"""A tensor's name and shape."""

EMBEDDING = "bert.embeddings.word_embeddings.weight"
SEGMENTS = "bert.embeddings.token_type_embeddings.weight"
POSITIONS = "bert.embeddings.position_embeddings.weight"
WIDENING = "bert.embeddings.embed_proj.weight"
"""Matrix that makes narrow embeddings as wide as the layers before their norm."""
EMBEDDINGS_NORM = "bert.embeddings.LayerNorm"
MLM_HEAD = "cls.predictions"


def layer_shapes(name: str, shape: tuple[int, ...], *, bias: bool = True) -> Iterator[Shape]:
    """Yield the tensors of a linear layer (out, in), as torch has it, or of a norm (width,)."""
    yield f"{name}.weight", shape
    if bias:
        yield f"{name}.bias", shape[:1]
