"""Tiny random models of transformers, exported and served, against transformers itself: masks, pairs and choices."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bert.bundle import read_bundle
from bert.tasks.spec import TaskSpec
from bert.text.wordpiece import SPECIAL_PIECES
from tests.support.checkpoints import vocabulary
from tests.support.client import Client
from tests.support.live import PATIENT, serving
from tests.support.tiny import write_tiny_bundles
from tests.support.workshop import export

pytestmark = pytest.mark.slow

Filled = Callable[[str, int], list[list[dict[str, Any]]]]
CLOSE = 1e-4
CHINESE = "北京的秋天气很好上海是一个大城市我爱吃饭。，"
PIECES = list(dict.fromkeys([*vocabulary(), "##ing", "##er", *CHINESE]))
ONE_MASK = [
    "Where is the [MASK]?",
    "[MASK]",
    "The soup was cold and the [MASK] did not care.",
    "北京的[MASK]天天气很好。",
    "我爱[MASK]，a small town",
    "  I would [MASK]\trecommend this hotel!!",
    "Ame\u0301lie et [MASK] 🙂",
]
TWO_MASKS = ["The [MASK] makes no [MASK] but who cares", "上[MASK]是一个[MASK]城市", "[MASK][MASK]"]
PAIRS = [
    ("Who wrote the first dictionary?", "The dictionary was written in 1632."),
    ("北京的秋天", "天气很好。"),
    ("", "Not again!"),
    ("Yes.", "The parliament passed the budget by a single vote, and the cat sleeps on."),
]
"""None with an empty second text: transformers reads it as no pair, here it is an empty text."""


def write(folder: Path, architecture: str, **settings: Any) -> Path:
    """Write a checkpoint as the hub has them: no task.json, the vocabulary as vocab.txt."""
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(PIECES),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.2,
        **settings,
    )
    model = getattr(transformers, architecture)(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES), encoding="utf-8")
    tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("masked"), "BertForMaskedLM")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    labels = {"id2label": {0: "no", 1: "yes", 2: "maybe"}, "label2id": {"no": 0, "yes": 1, "maybe": 2}}
    folder = write(tmp_path_factory.mktemp("pairs"), "BertForSequenceClassification", **labels)
    TaskSpec("classification", ("no", "yes", "maybe"), pair=True, max_tokens=64).write(folder)
    return folder


@pytest.fixture(scope="module")
def choices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("choices"), "BertForMultipleChoice")


@pytest.fixture(scope="module")
def client(
    masked: Path, pairs: Path, choices: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """One service with a bundle of each kind, as the demo has them, and these beside them."""
    out = tmp_path_factory.mktemp("bundles")
    write_tiny_bundles(out / "others")
    for name, folder in (("masked", masked), ("pairs", pairs), ("choices", choices)):
        export(folder, out / name, "--name", name, "--precision", "fp32")
    export(masked, out / "masked-int8", "--precision", "int8")
    with serving(
        bundles=[out / "others", *(out / n for n in ("masked", "masked-int8", "pairs", "choices"))], **PATIENT
    ) as live:
        yield Client(live.url)


@pytest.fixture(scope="module")
def theirs_of(masked: Path) -> Filled:
    """Text and top_k → transformers' candidates for each mask."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(masked)
    model = transformers.AutoModelForMaskedLM.from_pretrained(masked).eval()
    pipeline = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer)

    def fill(text: str, top_k: int) -> list[list[dict[str, Any]]]:
        found = pipeline(text, top_k=top_k)
        return found if isinstance(found[0], list) else [found]

    return fill


@pytest.mark.parametrize("text", [*ONE_MASK, *TWO_MASKS])
def test_masks_are_filled_as_transformers_fills_them(client: Client, theirs_of: Filled, text: str) -> None:
    expected = theirs_of(text, 7)
    (result,) = client.ask("/fill-mask", text=text, top_k=7, model="masked")
    assert len(result["masks"]) == len(expected) == text.count("[MASK]")
    for ours, theirs in zip(result["masks"], expected, strict=True):
        assert text[ours["start"] : ours["end"]] == "[MASK]"
        for candidate, other in zip(ours["candidates"], theirs, strict=True):
            assert (candidate["id"], candidate["token"]) == (other["token"], other["token_str"])
            assert candidate["score"] == pytest.approx(other["score"], abs=CLOSE)


def test_sequences_say_what_those_of_transformers_say(client: Client, theirs_of: Filled) -> None:
    """The same letters, but the user's own: theirs are lower case, and rebuilt with spaces of their own."""

    def letters(text: str) -> str:
        return "".join(text.lower().split())

    texts = ["where is the [MASK]?", "play [MASK] in a small town", "北京的[MASK]天天气很好。"]
    for text, result in zip(
        texts, client.ask("/fill-mask", text=texts, top_k=100, model="masked"), strict=True
    ):
        (theirs,) = theirs_of(text, 100)
        ours = [(c["id"], letters(c["sequence"])) for c in result["masks"][0]["candidates"]]
        special = {PIECES.index(piece) for piece in SPECIAL_PIECES}  # they leave these out of the text
        expected = [(other["token"], letters(other["sequence"])) for other in theirs]
        kept = [pair for pair in zip(ours, expected, strict=True) if pair[0][0] not in special]
        assert [one for one, _ in kept] == [other for _, other in kept]


def test_in_eight_bits_the_best_piece_stays_among_the_best(client: Client) -> None:
    exact, coarse = (
        client.ask("/fill-mask", text=[*ONE_MASK, *TWO_MASKS], top_k=10, model=name)
        for name in ("masked", "masked-int8")
    )
    for one, other in zip(exact, coarse, strict=True):
        for a, b in zip(one["masks"], other["masks"], strict=True):
            assert a["candidates"][0]["id"] in [candidate["id"] for candidate in b["candidates"]]


def test_pairs_are_classified_as_transformers_classifies_them(client: Client, pairs: Path) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(pairs).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(pairs)
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)
    first, second = ([pair[side] for pair in PAIRS] for side in (0, 1))
    results = client.ask("/classify", text=first, text_pair=second, model="pairs")
    for (text, text_pair), result in zip(PAIRS, results, strict=True):
        (expected,) = pipeline([{"text": text, "text_pair": text_pair}])
        by_label = {score["label"]: score["score"] for score in expected}
        assert {s["label"]: s["score"] for s in result["scores"]} == pytest.approx(by_label, abs=CLOSE)
        assert result["label"] == expected[0]["label"]


def test_choices_have_the_probabilities_of_transformers(client: Client, choices: Path) -> None:
    model = transformers.BertForMultipleChoice.from_pretrained(choices).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(choices)
    texts = [second for _, second in PAIRS]
    prompts = [*(first for first, _ in PAIRS if first), *ONE_MASK]
    results = client.ask("/multiple-choice", prompt=prompts, choices=texts, model="choices")
    for prompt, result in zip(prompts, results, strict=True):
        read = tokenizer(
            [prompt] * len(texts), texts, padding=True, return_tensors="pt", split_special_tokens=True
        )
        with torch.no_grad():
            scores = model(**{name: value[None] for name, value in read.items()}).logits[0]
        expected = dict(enumerate(scores.softmax(0).tolist()))
        assert {s["index"]: s["score"] for s in result["scores"]} == pytest.approx(expected, abs=CLOSE)
        assert result["index"] == int(scores.argmax()) and result["choice"] == texts[result["index"]]


def test_a_model_with_both_pretraining_heads_is_exported_as_one_that_fills_masks(tmp_path: Path) -> None:
    folder = write(tmp_path / "both", "BertForPreTraining")
    for precision in ("fp32", "fp16"):
        manifest = read_bundle(export(folder, tmp_path / precision, "--precision", precision)).manifest
        assert manifest.task == TaskSpec("fill_mask", max_tokens=64)
        assert manifest.parity["texts"] > 50
