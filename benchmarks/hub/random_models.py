"""Random classifiers of published shapes, and a GLiNER over BERT-base, each with a tokenizer of as many pieces."""

import itertools
import json
import shutil
import string
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers, processors

from benchmarks.serve.baselines.encoder_shapes import MAX_TOKENS, SHAPES, SPECIAL_PIECES, write_encoder
from bert.checkpoint.base_models import MINILM, resolve_base
from bert.checkpoint.tensor_names import LABELS, SPANS, needed_shapes
from bert.config import BertConfig
from bert.tasks.spec import LabelPrompt, TaskSpec

NAMES = (
    "minilm-l6",
    "bert-base",
    "bert-large",
    "xlm-roberta-base",
    "deberta-v3-base",
    "modernbert-base",
    "gliner-bert-base",
    "tiny",
)
UNIGRAM = ("xlm-roberta-base", "deberta-v3-base")
"""Models with a tokenizer of Unigram pieces, which is made up; the others get the WordPiece of all-MiniLM-L6-v2."""
FLOOR_LOGIT = -8.0
"""Logit of the spans of a random GLiNER: of a trained one, too, few pass."""
SCORES = {"word": -10.0, "letter": -15.0, "other": -20.0}


def write_model(name: str, folder: Path) -> None:
    """Write one of NAMES as `transformers` does, or `gliner`."""
    if name.startswith("gliner-"):
        write_gliner(name.removeprefix("gliner-"), folder)
        return
    write_encoder(name, folder)
    if name in UNIGRAM:
        unigram(SHAPES[name]["vocab_size"]).save(str(folder / "tokenizer.json"))
    elif name != "tiny":
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(resolve_base(MINILM) / file, folder)
        stated = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        stated["model_max_length"] = MAX_TOKENS
        (folder / "tokenizer_config.json").write_text(json.dumps(stated), encoding="utf-8")


def write_gliner(body: str, folder: Path, **changes: Any) -> None:
    """Write a random GLiNER that judges spans, over one of SHAPES that is a BERT; nearly all its scores are FLOOR_LOGIT."""
    folder.mkdir(parents=True)
    backend = tokenizers.Tokenizer.from_file(str(resolve_base(MINILM) / "tokenizer.json"))
    backend.add_special_tokens(["<<ENT>>", "<<SEP>>"])
    backend.no_padding()  # it is MiniLM's, to 128 pieces, which `fast-gliner` would give each word
    backend.no_truncation()
    backend.save(str(folder / "tokenizer.json"))
    pieces = backend.get_vocab_size()
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    loaded_by = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_TOKENS, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(loaded_by), encoding="utf-8")
    config = BertConfig.from_dict({**SHAPES[body], "vocab_size": pieces, **changes})
    spec = TaskSpec(
        "open_ner", label_prompt=LabelPrompt(pieces - 2, pieces - 1, "markerV0", config.hidden_size)
    )
    drawn = np.random.default_rng(0)
    weights = {
        name.replace("bert.", "token_rep_layer.bert_layer.model.", 1): drawn.normal(
            1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.02, shape
        ).astype(np.float32)
        for name, shape in needed_shapes(config, spec)
    }
    for name, sign in ((f"{SPANS}.out_project.3", -1), (f"{LABELS}.3", 1)):
        weights[f"{name}.weight"] *= 0.1
        weights[f"{name}.bias"][:] = sign * (-FLOOR_LOGIT / config.hidden_size) ** 0.5
    save_file(weights, folder / "model.safetensors")
    stated = {
        "model_name": "",
        "encoder_config": config.to_dict(),
        "hidden_size": config.hidden_size,
        "span_mode": "markerV0",
        "vocab_size": pieces,
        "class_token_index": pieces - 2,
    }
    (folder / "gliner_config.json").write_text(json.dumps(stated), encoding="utf-8")


def unigram(size: int) -> tokenizers.Tokenizer:
    """Return a tokenizer of so many pieces: special ones, the words of the shipped texts, their letters, made-up ones."""
    shipped = resources.files("model_export.verify")
    text = "".join(shipped.joinpath(file).read_text("utf-8") for file in ("sentences.txt", "texts.json"))
    scores = dict.fromkeys(SPECIAL_PIECES, 0.0)
    scores |= dict.fromkeys(sorted(f"\u2581{word}" for word in set(text.split())), SCORES["word"])
    scores |= dict.fromkeys(sorted({"\u2581", *text} - set(string.whitespace)), SCORES["letter"])
    for letters in itertools.product(string.ascii_lowercase, repeat=5):
        if len(scores) == size:
            break
        scores.setdefault("".join(letters), SCORES["other"])
    pieces = list(scores.items())[:size]
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=SPECIAL_PIECES.index("[UNK]")))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(list(SPECIAL_PIECES))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(piece, SPECIAL_PIECES.index(piece)) for piece in ("[CLS]", "[SEP]")],
    )
    return backend
