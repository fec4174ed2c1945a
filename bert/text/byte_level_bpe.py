"""Byte-level BPE from `vocab.json` and `merges.txt`, as RoBERTa is published."""

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bert.errors import CheckpointError
from bert.text.stated import StatedTokens, special_pieces

_SPECIAL = special_pieces("<s>", "</s>", "<pad>", "<unk>", "<mask>")


def from_merges(folder: Path, stated: StatedTokens) -> tokenizers.Tokenizer:
    """Build the tokenizer of a folder's `vocab.json` and `merges.txt`. Raises CheckpointError."""
    files = folder / "vocab.json", folder / "merges.txt"
    try:
        backend = tokenizers.Tokenizer(models.BPE.from_file(*map(str, files)))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{files[0]} and {files[1].name} cannot be read as BPE: {error}") from None
    add_prefix_space = stated.flag("add_prefix_space", default=False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    special = stated.add_to(backend, _SPECIAL)
    backend.post_processor = processors.RobertaProcessing(
        special["sep"], special["cls"], add_prefix_space=add_prefix_space
    )
    return backend
