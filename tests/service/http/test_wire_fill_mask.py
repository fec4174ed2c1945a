"""/fill-mask over a real socket: its forms, its positions, what it refuses."""

import pytest

from service.tasks.table import BY_PATH
from tests.support.live import Live

TEXTS = [
    "the [MASK] was warm",
    "🙂 [MASK] é\u0301 [MASK][MASK]!",
    "munich[MASK]  \t[MASK]",
    "北京 [MASK]。",
    "[SEP] [MASK] [CLS]",
]


def test_each_mask_of_each_text_is_answered(live: Live) -> None:
    reply = live.post("/fill-mask", {"text": TEXTS})
    assert reply.status == 200, reply.body
    BY_PATH["/fill-mask"].response.model_validate_json(reply.body, strict=True)
    assert reply.json["model"] == "gaps"
    for text, result in zip(TEXTS, reply.json["results"], strict=True):
        assert len(result["masks"]) == text.count("[MASK]")
        for mask in result["masks"]:
            assert text[mask["start"] : mask["end"]] == "[MASK]"
            scores = [candidate["score"] for candidate in mask["candidates"]]
            assert len(scores) == 5 and scores == sorted(scores, reverse=True)


def test_a_sequence_is_the_users_text_with_the_piece_in_the_masks_place(live: Live) -> None:
    text = "  The [MASK] and\tthe [MASK]!"
    first, second = live.post("/fill-mask", {"text": text, "top_k": 100}).json["results"][0]["masks"]
    for mask in (first, second):
        joined = 0
        for candidate in mask["candidates"]:
            before, token = text[: mask["start"]], candidate["token"]
            if token.startswith("##") and token != "##":
                before, token, joined = before.rstrip(), token[2:], joined + 1
            assert candidate["sequence"] == before + token + text[mask["end"] :]
        assert joined


def test_the_best_do_not_depend_on_how_many_are_asked_for(live: Live) -> None:
    ask = {"text": "a [MASK] film"}
    few, many = (
        live.post("/fill-mask", ask | {"top_k": k}).json["results"][0]["masks"][0]["candidates"]
        for k in (2, 40)
    )
    assert (len(few), len(many)) == (2, 40)
    assert many[:2] == few


def test_a_text_gets_the_same_pieces_in_company(live: Live) -> None:
    alone = [live.post("/fill-mask", {"text": text}).json["results"][0] for text in TEXTS]
    together = live.post("/fill-mask", {"text": TEXTS}).json["results"]
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one["masks"], other["masks"], strict=True):
            assert [c["id"] for c in a["candidates"]] == [c["id"] for c in b["candidates"]]
            scores = [c["score"] for c in b["candidates"]]
            assert [c["score"] for c in a["candidates"]] == pytest.approx(scores, abs=1e-5)


def test_a_text_without_a_mask_is_told_how_to_write_one(live: Live) -> None:
    reply = live.post("/fill-mask", {"text": ["a [MASK]", "a <mask>", "[mask]"]})
    assert reply.status == 422
    errors = {error["field"]: error["message"] for error in reply.json["errors"]}
    assert set(errors) == {"text[1]", "text[2]"}
    assert "has no [MASK]" in errors["text[1]"]


def test_a_text_over_the_models_length_is_refused_with_its_length(live: Live) -> None:
    reply = live.post("/fill-mask", {"text": "[MASK]" * 31})
    assert "33 tokens and the model reads at most 32" in reply.json["detail"]


def test_it_is_counted_by_its_own_name(live: Live) -> None:
    labels = {"endpoint": "/fill-mask", "model": "gaps", "status": "200"}
    before = live.settled_metric("bert_request_duration_seconds_count", **labels)
    reply = live.post("/fill-mask", {"text": "a [MASK]"})
    assert {"tokenize", "queue", "inference", "decode"} <= {
        part.partition(";")[0].strip() for part in reply.headers["server-timing"].split(",")
    }
    assert live.settled_metric("bert_request_duration_seconds_count", **labels) == before + 1
