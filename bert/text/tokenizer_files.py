"""Tokenizer of a folder without `tokenizer.json`: the file that holds it, by its class, and how it is built."""

from pathlib import Path

import tokenizers

from bert.errors import CheckpointError
from bert.files import read_object
from bert.text import byte_level_bpe, sentencepiece, wordpiece
from bert.text.stated import StatedTokens

MODEL_FILES = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "sentencepiece.model")
_CLASS_OF = {
    "bert": "Bert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "ernie": "Bert",
    "mpnet": "MPNet",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "albert": "Albert",
    "deberta": "Deberta",
    "deberta-v2": "DebertaV2",
}
"""`model_type` → class of the tokenizer, where no file names one."""


def refuse_code(folder: Path) -> None:
    """Raise CheckpointError for a tokenizer that is Python code of the checkpoint's own."""
    if "auto_map" in read_object(folder / "tokenizer_config.json"):
        raise CheckpointError(
            f"{folder / 'tokenizer_config.json'} has 'auto_map': its tokenizer is Python code that comes with the "
            "checkpoint, which is never run; delete the key if the folder's tokenizer files need none of it"
        )


def remarks_on(folder: Path) -> tuple[str, ...]:
    """Return what is assumed of a folder's tokenizer, a sentence each. Raises CheckpointError."""
    file = folder / "vocab.txt"
    if (folder / "tokenizer.json").is_file() or not file.is_file():
        return ()
    stated = StatedTokens.read(folder)
    is_assumed = _is_wordpiece(stated) and stated.config.get("do_lower_case") is None
    return (wordpiece.assumed_case(file),) if is_assumed else ()


def _is_wordpiece(stated: StatedTokens) -> bool:
    return stated.tokenizer_class in ("", *wordpiece.CLASSES)


def from_folder(folder: Path) -> tokenizers.Tokenizer:
    """Build the tokenizer of a folder without `tokenizer.json`.

    Raises CheckpointError where there is none, or its class is not known.
    """
    model = next((folder / name for name in MODEL_FILES if (folder / name).is_file()), None)
    has_vocabulary, has_merges = (folder / "vocab.txt").is_file(), (folder / "merges.txt").is_file()
    has_merges &= (folder / "vocab.json").is_file()
    if not (model or has_vocabulary or has_merges):
        raise CheckpointError(
            f"{folder} holds none of tokenizer.json, vocab.txt, vocab.json with merges.txt, and {', '.join(MODEL_FILES)}: "
            "no other tokenizer is read"
        )
    stated = StatedTokens.read(folder)
    if has_vocabulary and _is_wordpiece(stated):
        return wordpiece.from_vocabulary(folder / "vocab.txt")
    name = stated.tokenizer_class or _CLASS_OF.get(stated.model_type, "")
    if has_merges and name in byte_level_bpe.CLASSES:
        return byte_level_bpe.from_merges(folder, name, stated)
    if model and name in sentencepiece.CLASSES:
        return sentencepiece.from_model(model, name, stated)
    asked = f"tokenizer_class is {name}Tokenizer" if name else f"model_type is {stated.model_type!r}"
    raise CheckpointError(
        f"{folder} has no tokenizer.json, and none can be made of its other files ({asked}): save one with "
        "`transformers`, or take the file of another revision"
    )
