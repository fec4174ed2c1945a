"""The answers of transformers to the same texts, from the checkpoint's own files.

Independent of this project's tokenizer, decoders and weights code. `AutoTokenizer` rebuilds some files otherwise than
they are, so pieces and offsets are those of the library `tokenizers`. Each text is read by itself.
"""

import inspect
import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.numpy import load_file
from torch import Tensor

from benchmarks.hub.answers import TOP_K, Answer
from benchmarks.hub.texts import Item
from bert.tasks.fill_mask import MASK
from bert.tasks.spec import TaskSpec

CLASSES = {
    "classification": transformers.AutoModelForSequenceClassification,
    "ner": transformers.AutoModelForTokenClassification,
    "qa": transformers.AutoModelForQuestionAnswering,
    "similarity": transformers.AutoModel,
    "multiple_choice": transformers.AutoModelForMultipleChoice,
    "fill_mask": transformers.AutoModelForMaskedLM,
}
CHINESE = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"


class Reference:
    """A checkpoint as transformers runs it."""

    def __init__(self, folder: Path, spec: TaskSpec) -> None:
        """Load it; `spec` says the task, pairs or not, and the limits of answers to questions."""
        self._folder, self._spec = folder, spec
        loaded = CLASSES[spec.task].from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        self._model, report = loaded
        missing = [name for name in report["missing_keys"] if "pooler" not in name]
        if missing:
            raise ValueError(f"transformers finds no {missing[0]} in {folder}")
        self._model.eval()
        self._backend = _backend(folder)
        self._takes = inspect.signature(self._model.forward).parameters
        self._lowers = bool(_json(folder / "sentence_bert_config.json").get("do_lower_case"))
        self._answer = {
            "classification": self._classify,
            "ner": self._entities,
            "qa": self._span,
            "similarity": self._vector,
            "multiple_choice": self._choose,
            "fill_mask": self._fill,
        }[spec.task]

    def fitting(self, items: Any, count: int) -> list[Item]:
        """Return the first `count` items that the model reads whole."""
        found = []
        for item in items:
            if max(len(self._encode(*pair).ids) for pair in self._pairs(item)) <= self._spec.max_tokens:
                found.append(item)
            if len(found) == count:
                break
        return found

    @torch.no_grad()
    def answers(self, items: Sequence[Item]) -> list[Answer]:
        """Answer each item."""
        return [self._answer(item) for item in items]

    def _pairs(self, item: Item) -> list[tuple[str, ...]]:
        if "choices" in item:
            return [(item["prompt"], choice) for choice in item["choices"]]
        if "question" in item:
            return [(item["question"], item["context"])]
        return [(item["text"], item["text_pair"]) if "text_pair" in item else (item["text"],)]

    def _encode(self, *texts: str) -> tokenizers.Encoding:
        # As in the service, "[SEP]" in a text is five characters; only where a mask is asked for it is special.
        self._backend.encode_special_tokens = MASK not in texts[0]
        read = [text.lower() if self._lowers else text for text in texts]
        if MASK in texts[0]:
            read[0] = texts[0].replace(MASK, _mask_token(self._backend))
        return self._backend.encode(read[0], read[1] if len(read) == 2 else None)

    def _run(self, encodings: Sequence[tokenizers.Encoding]) -> Any:
        longest = max(len(each.ids) for each in encodings)

        def laid(rows: Sequence[Sequence[int]], fill: int = 0) -> Tensor:
            return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])

        pad = getattr(self._model.config, "pad_token_id", 0) or 0
        inputs = {
            "input_ids": laid([each.ids for each in encodings], pad),
            "attention_mask": laid([each.attention_mask for each in encodings]),
        }
        if "token_type_ids" in self._takes:
            highest = max(getattr(self._model.config, "type_vocab_size", 1), 1) - 1
            inputs["token_type_ids"] = laid([each.type_ids for each in encodings]).clamp(max=highest)
        if self._spec.task == "multiple_choice":
            inputs = {name: value[None] for name, value in inputs.items()}
        return self._model(**inputs)

    def _classify(self, item: Item) -> Answer:
        logits = self._run([self._encode(*pair) for pair in self._pairs(item)]).logits[0]
        scores = {"sigmoid": logits.sigmoid(), "softmax": logits.softmax(-1), "identity": logits}[
            self._activation(len(logits))
        ]
        return _best_of(self._labels(len(logits)), scores)

    def _labels(self, count: int) -> list[str]:
        """Return the labels in the order of their numbers; `config.id2label` may be incomplete."""
        names = _json(self._folder / "config.json").get("id2label") or {}
        by_number = {int(number): str(name) for number, name in names.items()}
        return [by_number.get(number, f"LABEL_{number}") for number in range(count)]

    def _activation(self, outputs: int) -> str:
        """Return what sentence-transformers' CrossEncoder, or else the pipeline of transformers, does with logits."""
        config = _json(self._folder / "config.json")
        settings = _json(self._folder / "config_sentence_transformers.json")
        own = config.get("sentence_transformers") or {}
        named = (
            (settings if settings.get("model_type") == "CrossEncoder" else {}).get("activation_fn")
            or own.get("activation_fn")
            or config.get("sbert_ce_default_activation_function")
        )
        problem = config.get("problem_type")
        if outputs == 1:
            default = "Identity" if problem == "regression" else "Sigmoid"
            return str(named or default).rpartition(".")[2].lower()
        return "sigmoid" if problem == "multi_label_classification" or "Sigmoid" in str(named) else "softmax"

    def _entities(self, item: Item) -> Answer:
        text, encoding = item["text"], self._encode(item["text"])
        shares = self._run([encoding]).logits[0].softmax(-1)
        labels = self._labels(shares.shape[-1])
        tagged, margin, spans = [], float("inf"), _trimmed(text, encoding)
        for start, end in _words(text):
            inside = [n for n, (s, e) in enumerate(spans) if start <= s < end and e > s]
            if inside:
                head = _first_of_word(inside[0], spans, encoding)
                best, second = shares[head].topk(2).values.tolist()
                label = labels[int(shares[head].argmax())]
                reached = max(end, *(spans[n][1] for n in inside))  # one piece may be "'t", of two words
                tagged.append((start, reached, label, best))
                margin = min(margin, best - second)
        grouped = _grouped(tagged)
        places = [
            (group[0][0], _with_marks(text, group[-1][1]), _parted(group[0][2])[1]) for group in grouped
        ]
        return Answer(places, tuple(float(np.mean([word[3] for word in group])) for group in grouped), margin)

    def _span(self, item: Item) -> Answer:
        encoding, spec = self._encode(item["question"], item["context"]), self._spec
        output = self._run([encoding])
        starts, ends = output.start_logits[0].tolist(), output.end_logits[0].tolist()
        inside = [n for n, part in enumerate(encoding.sequence_ids) if part == 1]
        spans = _trimmed(item["context"], encoding)
        totals: dict[tuple[int, int], float] = {}
        for at, i in enumerate(inside):
            for j in inside[at : at + spec.max_answer_tokens]:
                written = [span for span in spans[i : j + 1] if span[1] > span[0]]
                if written:  # a blank alone is no answer
                    key = written[0][0], _with_marks(item["context"], written[-1][1])
                    totals[key] = max(totals.get(key, -np.inf), starts[i] + ends[j])
        best = sorted(totals.items(), key=lambda each: -each[1])[: spec.n_best]
        null = starts[0] + ends[0]
        weights = torch.tensor(
            [total for _, total in best] + ([null] if spec.allows_no_answer else [])
        ).softmax(0)
        none = float(weights[-1]) if spec.allows_no_answer else 0.0
        distance = null - best[0][1] - spec.null_threshold
        if spec.allows_no_answer and distance > 0:
            return Answer((None, None), (none, none), distance)
        margin = best[0][1] - best[1][1] if len(best) > 1 else float("inf")
        return Answer(
            best[0][0], (float(weights[0]), none), min(margin, -distance if spec.allows_no_answer else margin)
        )

    def _choose(self, item: Item) -> Answer:
        logits = self._run([self._encode(*pair) for pair in self._pairs(item)]).logits[0]
        return _best_of(range(len(logits)), logits.softmax(-1))

    def _fill(self, item: Item) -> Answer:
        encoding = self._encode(item["text"])
        mask = self._backend.token_to_id(_mask_token(self._backend))
        place = [token == mask for token in encoding.ids].index(True)
        best = self._run([encoding]).logits[0, place].softmax(-1).topk(TOP_K + 1)
        scores = best.values.tolist()
        margin = min(a - b for a, b in pairwise(scores))
        return Answer(best.indices.tolist()[:TOP_K], tuple(scores[:TOP_K]), margin)

    def _vector(self, item: Item) -> Answer:
        hidden = self._run([self._encode(item["text"])]).last_hidden_state[0]  # (T, H)
        modules = _json(self._folder / "modules.json") or []
        kinds = [(str(each["type"]).rpartition(".")[2], self._folder / each["path"]) for each in modules]
        vector = hidden.mean(0)
        for kind, folder in kinds:
            if kind == "Pooling":
                vector = _pooled(hidden, _json(folder / "config.json"))
            elif kind == "Dense":
                vector = _dense(vector, folder)
            elif kind == "Normalize":
                vector = torch.nn.functional.normalize(vector, dim=0)
        return Answer(None, tuple(vector.tolist()))


def _backend(folder: Path) -> tokenizers.Tokenizer:
    file = folder / "tokenizer.json"
    if file.is_file():
        backend = tokenizers.Tokenizer.from_file(str(file))
    else:  # made from vocab.txt and the like
        backend = transformers.AutoTokenizer.from_pretrained(folder).backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    return backend


def _mask_token(backend: tokenizers.Tokenizer) -> str:
    tokens = [token.content for token in backend.get_added_tokens_decoder().values()]
    return next((token for token in tokens if "mask" in token.lower()), MASK)


def _best_of(names: Sequence[Any], scores: Tensor) -> Answer:
    values = scores.tolist()
    ranked = sorted(values, reverse=True)
    by_name = dict(zip(names, values, strict=True))
    margin = ranked[0] - ranked[1] if len(ranked) > 1 else float("inf")
    return Answer(names[int(scores.argmax())], tuple(by_name[name] for name in sorted(by_name)), margin)


def _trimmed(text: str, encoding: tokenizers.Encoding) -> list[tuple[int, int]]:
    """Return each token's span without the space that may belong to it; special tokens have none."""
    spans = []
    for start, end in encoding.offsets:
        piece = text[start:end]
        spans.append((start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())))
    return [
        (0, 0) if special else span for span, special in zip(spans, encoding.special_tokens_mask, strict=True)
    ]


def _first_of_word(at: int, spans: Sequence[tuple[int, int]], encoding: tokenizers.Encoding) -> int:
    """Return the blank before piece `at` where the tokenizer writes the two as one word's, else `at`.

    It is the piece that `transformers`' training scripts label, and its pipeline calls the word's first.
    """
    words = encoding.word_ids
    while at and spans[at - 1][1] <= spans[at - 1][0] and words[at - 1] == words[at]:
        at -= 1
    return at


def _words(text: str) -> list[tuple[int, int]]:
    """Return BERT's words: runs between spaces, where each mark of punctuation and each Chinese character is one."""
    words = []
    for found in re.finditer(rf"[{CHINESE}]|[^\s{CHINESE}]+", text):
        start = found.start()
        for at in range(*found.span()):
            if _is_punctuation(text[at]):
                words += [(start, at), (at, at + 1)]
                start = at + 1
        words.append((start, found.end()))
    return [(start, end) for start, end in words if end > start]


def _is_punctuation(character: str) -> bool:
    is_sign = character.isascii() and not character.isalnum() and character.isprintable()
    return is_sign or unicodedata.category(character).startswith("P")


def _with_marks(text: str, end: int) -> int:
    """Return where a stretch ends with the combining marks after it."""
    while end < len(text) and unicodedata.category(text[end]) in ("Mn", "Me"):
        end += 1
    return end


def _parted(label: str) -> tuple[str, str]:
    """Return a tag's role and its type; one without a role is inside."""
    return (label[0], label[2:]) if re.match("[BIESLUM]-", label) else ("I", label)


def _grouped(tagged: Sequence[tuple[int, int, str, float]]) -> list[list[tuple[int, int, str, float]]]:
    """Return the words of each entity: it goes on while the type stays and no word begins or has ended one."""
    groups: list[list[tuple[int, int, str, float]]] = []
    before = ("", "")
    for word in tagged:
        if word[2] in ("O", "o"):
            before = ("", "")
            continue
        role, kind = _parted(word[2])
        if kind == before[1] and role not in "BSU" and before[0] not in ("E", "L", "S", "U"):
            groups[-1].append(word)
        else:
            groups.append([word])
        before = (role, kind)
    return groups


def _pooled(hidden: Tensor, config: dict[str, Any]) -> Tensor:
    """Pool (T, H) as sentence-transformers does; several poolings are joined in its order."""
    stated = config.get("pooling_mode")
    modes = [stated] if isinstance(stated, str) else list(stated or ())
    prefix = "pooling_mode_"
    modes += [
        name.removeprefix(prefix) for name, on in config.items() if name.startswith(prefix) and on is True
    ]
    weights = torch.arange(1, len(hidden) + 1)[:, None]
    known: dict[tuple[str, ...], Callable[[], Tensor]] = {
        ("cls", "cls_token"): lambda: hidden[0],
        ("max", "max_tokens"): lambda: hidden.max(0).values,
        ("mean", "mean_tokens"): lambda: hidden.mean(0),
        ("mean_sqrt_len_tokens",): lambda: hidden.sum(0) / len(hidden) ** 0.5,
        ("weightedmean", "weightedmean_tokens"): lambda: (hidden * weights).sum(0) / weights.sum(),
        ("lasttoken",): lambda: hidden[-1],
    }
    return torch.cat([pool() for names, pool in known.items() if set(names) & set(modes)])


def _dense(vector: Tensor, folder: Path) -> Tensor:
    """Apply a Dense module of sentence-transformers."""
    config, file = _json(folder / "config.json"), folder / "model.safetensors"
    if file.is_file():
        weights = {name: torch.from_numpy(value) for name, value in load_file(file).items()}
    else:
        weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    out = torch.nn.functional.linear(vector, weights["linear.weight"].float(), weights.get("linear.bias"))
    return out.tanh() if str(config.get("activation_function", "Tanh")).endswith("Tanh") else out


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
