"""BERT's body: learned positions, norms after each half of a layer."""

from collections.abc import Iterator
from dataclasses import dataclass

from bert.bodies.body import (
    EMBEDDING,
    EMBEDDINGS_NORM,
    MLM_HEAD,
    POSITIONS,
    SEGMENTS,
    WIDENING,
    Body,
    Shape,
    layer_shapes,
)  # fmt: skip
from bert.bodies.sizes import Sizes


@dataclass(frozen=True, slots=True)
class BertBody(Body):
    """The body of Devlin et al. 2018 (arXiv 1810.04805), and of all whose layers are its own."""

    def shapes(self, sizes: Sizes, *, projects: bool) -> Iterator[Shape]:
        """Yield the tensors of embeddings and layers, and of a linear layer between them where embeddings are projected."""
        h, i, bias = sizes.hidden_size, sizes.intermediate_size, self.has_biases
        yield from self._embedding_shapes(sizes)
        if projects:
            yield from layer_shapes("bert.embeddings_project", (h, sizes.embedding_width))
        yield from self._additional_shapes(sizes)
        for layer in range(sizes.num_layer_weights):
            name = f"bert.encoder.layer.{layer}"
            for part in ("self.query", "self.key", "self.value", "output.dense"):
                yield from layer_shapes(f"{name}.attention.{part}", (h, h), bias=bias)
            yield from layer_shapes(f"{name}.attention.output.LayerNorm", (h,))
            yield from self._intermediate_shapes(f"{name}.intermediate", sizes)
            yield from layer_shapes(f"{name}.output.dense", (h, i), bias=bias)
            yield from layer_shapes(f"{name}.output.LayerNorm", (h,))

    def _embedding_shapes(self, sizes: Sizes) -> Iterator[Shape]:
        """Yield the tensors of the embeddings up to their norm."""
        e = sizes.embedding_width
        width = sizes.hidden_size if self.projects_before_norm else e
        yield EMBEDDING, (sizes.vocab_size, e)
        if self.has_positions:
            yield POSITIONS, (sizes.max_position_embeddings, e)
        yield SEGMENTS, (sizes.type_vocab_size, e)
        if width != e:
            yield WIDENING, (width, e)
        yield from layer_shapes(EMBEDDINGS_NORM, (width,))

    def _intermediate_shapes(self, name: str, sizes: Sizes) -> Iterator[Shape]:
        """Yield the tensors of a layer's widening half."""
        yield from layer_shapes(f"{name}.dense", (sizes.intermediate_size, sizes.hidden_size))

    def _additional_shapes(self, sizes: Sizes) -> Iterator[Shape]:
        """Yield the tensors that a body made from BERT's has more."""
        return iter(())

    def pooler_shapes(self, sizes: Sizes) -> Iterator[Shape]:
        """Yield the tensors of the pooler."""
        yield from layer_shapes("bert.pooler.dense", (sizes.hidden_size, sizes.hidden_size))

    def vocabulary_shapes(self, sizes: Sizes) -> Iterator[Shape]:
        """Yield the tensors of the masked language model's head."""
        e = sizes.embedding_width
        yield from layer_shapes(f"{MLM_HEAD}.transform.dense", (e, sizes.hidden_size))
        yield from layer_shapes(f"{MLM_HEAD}.transform.LayerNorm", (e,))
        yield f"{MLM_HEAD}.bias", (sizes.vocab_size,)
