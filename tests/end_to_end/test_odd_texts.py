"""Texts that break things elsewhere, on all endpoints: never a 5xx, and offsets always give back the text."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bert.tasks.aggregation import Aggregation
from tests.support.client import Client, check_offsets
from tests.support.live import PATIENT, serving
from tests.support.tiny import write_tiny_bundles
from tests.support.workshop import DEMO, Workshop, has_adapter

ODD = {
    "chinese": "北京大学的李明去了上海，见到了王教授。",
    "emoji": "🙂 Zoë 👩‍👩‍👧 flew to 🇫🇷 Paris 👍🏽 with ☀️ and 1️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "combining marks": "Ame\u0301lie Dvor\u030ca\u0301k met Zoe\u0308 in Malmo\u0308, cafe\u0301",
    "marks alone": "\u0301\u0308 \u0301a",
    "right to left": "ذهب أحمد إلى القاهرة؛ משה גר בירושלים",
    "both directions": "Ahmed \u202eأحمد\u202c went to القاهرة in 2019",
    "double spaces": "  Angela  Merkel   met  Siemens  in  Munich.  ",
    "tab and new lines": "Angela\tMerkel\r\nmet\u00a0Siemens\u2028in\u3000Munich",
    "empty": "",
    "spaces only": " \t\n\u00a0\u3000",
    "no words": "\u200b\u200d\x00\x07",
    "controls": "Ang\u00adela\x00 Mer\u200bkel\ufeff",
    "special pieces": "[CLS] Angela [SEP] Merkel [MASK] [PAD] [UNK] ##s",
    "beyond the first plane": "𝔄𝔫𝔤𝔢𝔩𝔞 𠀀𠀁 Angela",
    "cases that change length": "İstanbul Straße ǅ ﬁn ΣΊΣΥΦΟΣ",
    "one long word": "a" * 300,
}
LENGTH = 6_000
"""Characters: of most of these texts as many tokens, so that a model reads them in a dozen windows or more."""
LONG = {
    "prose": ("Angela Merkel met Zoë in München, 北京! " * 1000)[:LENGTH],
    "one word": "a" * LENGTH,
    "marks": "e\u0301" * (LENGTH // 2),
    "emoji": "🙂" * LENGTH,
    "chinese": "李明去了上海。" * (LENGTH // 7),
    "spaces": " " * LENGTH,
}
QUESTION = "Where did she go?"


@pytest.fixture(scope="module")
def random_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models: what they say is random, so there are entities and answers in any text."""
    folder = tmp_path_factory.mktemp("random")
    write_tiny_bundles(folder)
    return folder


@pytest.fixture(scope="module", params=["random", pytest.param("demo", marks=pytest.mark.slow)])
def client(request: pytest.FixtureRequest, random_weights: Path) -> Iterator[Client]:
    """A service with random models, and one with the demo models in whose place random ones stand while they wait."""
    bundles, defaults = [random_weights], {"classification": "mood"}
    if request.param == "demo":
        workshop: Workshop = request.getfixturevalue("workshop")
        demo = [name for name in DEMO if has_adapter(name)]
        bundles = [*(workshop.demo_bundle(name) for name in demo), random_weights]
        tasks = {"sentiment": "classification", "ner": "ner", "qa": "qa", "similarity": "similarity"}
        defaults |= {tasks[name]: name for name in demo}
    with serving(bundles=bundles, default_models=defaults, **PATIENT) as live:
        yield Client(live.url)


@pytest.mark.parametrize("text", [*ODD.values(), *LONG.values()], ids=[*ODD, *(f"long {x}" for x in LONG)])
def test_every_endpoint_answers_and_positions_give_back_the_text(client: Client, text: str) -> None:
    for aggregation in Aggregation:
        (result,) = client.ask("/ner", text=text, aggregation=aggregation)
        check_offsets("/ner", text, result)
    check_answer(client, text)
    check_tokens(client, text)
    check_whole_texts(client, text)


def check_answer(client: Client, text: str) -> None:
    reply = client.post("/qa", question=QUESTION, context=text, top_k=10)
    if not text.strip():
        assert reply.status == 422
        return
    assert reply.status == 200, reply.body
    check_offsets("/qa", text, reply.json["results"][0])
    as_question = client.post("/qa", question=text, context="Angela Merkel went to Munich.")
    assert as_question.status in (200, 422)
    if as_question.status == 422:
        assert "question" in as_question.json["detail"]


def check_tokens(client: Client, text: str) -> None:
    """Tokens come in order, never overlap, and miss nothing that can be seen."""
    (result,) = client.ask("/tokenize", text=text)
    first, *tokens, last = result["tokens"]
    assert (first["text"], last["text"]) == ("[CLS]", "[SEP]")
    assert not any(token["special"] for token in tokens)
    covered = bytearray(len(text))
    end = 0
    for token in tokens:
        assert end <= token["start"] < token["end"] <= len(text)
        end = token["end"]
        covered[token["start"] : end] = b"\1" * (end - token["start"])
    missed = {character for character, seen in zip(text, covered, strict=True) if not seen}
    assert not any(character.isalnum() for character in missed), missed


def check_whole_texts(client: Client, text: str) -> None:
    """The endpoints that read a text whole cut it on request, and else say how long it is."""
    for path, body in (
        ("/classify", {"text": text}),
        ("/embed", {"text": text}),
        ("/similarity", {"text": text, "candidates": ["Munich", text]}),
    ):
        refused = client.post(path, **body)
        assert refused.status in (200, 422), refused.body
        if refused.status == 422:
            assert "tokens" in refused.json["detail"]
        results = client.ask(path, **body, truncate=True)
        assert any(result["truncated"] for result in results) == (refused.status == 422)


def test_odd_texts_in_one_request_answer_as_they_do_alone(client: Client) -> None:
    texts = list(ODD.values())
    together = client.ask("/ner", text=texts)
    for text, result in zip(texts, together, strict=True):
        (alone,) = client.ask("/ner", text=text)
        assert [(e["text"], e["start"], e["label"]) for e in alone["entities"]] == [
            (e["text"], e["start"], e["label"]) for e in result["entities"]
        ]


def test_models_with_random_weights_find_something_in_most_of_these_texts(random_weights: Path) -> None:
    """Else the offsets above would prove nothing."""
    with serving(bundles=[random_weights / "names"], **PATIENT) as live:
        found = [len(result["entities"]) for result in Client(live.url).ask("/ner", text=list(ODD.values()))]
    assert sum(map(bool, found)) >= len(ODD) // 2
