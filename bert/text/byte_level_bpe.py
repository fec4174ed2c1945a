"""Byte-level BPE from `vocab.json` and `merges.txt`, as RoBERTa and the first DeBERTa are published."""

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bert.errors import CheckpointError
from bert.text.stated import StatedTokens, special_pieces

_SPECIAL = {
    "Roberta": special_pieces("<s>", "</s>", "<pad>", "<unk>", "<mask>"),
    "Deberta": special_pieces("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"),
}
CLASSES = tuple(_SPECIAL)
"""Classes of `transformers`, without "Tokenizer", whose files are read."""


def from_merges(folder: Path, name: str, stated: StatedTokens) -> tokenizers.Tokenizer:
    """Build the tokenizer of `vocab.json` and `merges.txt` as the class of that name does. Raises CheckpointError."""
    files = folder / "vocab.json", folder / "merges.txt"
    try:
        backend = tokenizers.Tokenizer(models.BPE.from_file(*map(str, files)))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{files[0]} and {files[1].name} cannot be read as BPE: {error}") from None
    add_prefix_space = stated.flag("add_prefix_space", default=False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    special = stated.add_to(backend, _SPECIAL[name])
    if name == "Roberta":
        backend.post_processor = processors.RobertaProcessing(
            special["sep"], special["cls"], add_prefix_space=add_prefix_space
        )
        return backend
    cls, sep = special["cls"][0], special["sep"][0]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[special["cls"], special["sep"]],
    )
    return backend
