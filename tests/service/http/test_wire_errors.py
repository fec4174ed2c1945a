"""Every refusal over a real socket: its status, that it is problem+json, that it names what is wrong."""

import json
import re

import pytest

from tests.support.live import Live
from tests.support.problems import fields, is_problem

PATHS = ("/classify", "/ner", "/similarity", "/qa", "/embed", "/multiple-choice", "/tokenize")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"no json", b'{"text": "a"', b'{"text": "\xff"}', b"[" * 100_000]
)
def test_what_is_no_json_is_malformed(live: Live, path: str, body: bytes) -> None:
    is_problem(live.post(path, body), 400)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "json"])
def test_a_body_must_be_declared_as_json(live: Live, kind: str) -> None:
    is_problem(live.post("/ner", {"text": "a"}, content_type=kind), 415)


def test_json_by_any_of_its_names_is_taken(live: Live) -> None:
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/problem+json"):
        assert live.post("/ner", {"text": "a"}, content_type=kind).status == 200


@pytest.mark.parametrize("path", PATHS)
def test_unknown_fields_are_refused_by_name(live: Live, path: str) -> None:
    assert "txet" in fields(live.post(path, {"txet": "a"}))


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/classify", {}, "text"),
        ("/classify", {"text": None}, "text"),
        ("/classify", {"text": 5}, "text"),
        ("/classify", {"text": ["a", 5]}, "text[1]"),
        ("/classify", {"text": [["a"]]}, "text[0]"),
        ("/classify", {"text": []}, "text"),
        ("/classify", {"text": "a", "top_k": 0}, "top_k"),
        ("/classify", {"text": "a", "top_k": "1"}, "top_k"),
        ("/classify", {"text": "a", "top_k": True}, "top_k"),
        ("/classify", {"text": "a", "top_k": 1.5}, "top_k"),
        ("/classify", {"text": "a", "truncate": "yes"}, "truncate"),
        ("/classify", {"text": "a", "model": 3}, "model"),
        ("/classify", {"text": "a", "text_pair": "b"}, "text_pair"),
        ("/classify", {"text": "a", "model": "entailment"}, "text_pair"),
        ("/similarity", {"text": "a"}, "candidates"),
        ("/similarity", {"text": "a", "candidates": []}, "candidates"),
        ("/qa", {"question": "who"}, "context"),
        ("/qa", {"question": "", "context": "a"}, "question"),
        ("/qa", {"question": "who", "context": [" ", "a"]}, "context[0]"),
        ("/qa", {"question": "\u200b", "context": "a"}, "question"),
        ("/qa", {"question": "who " * 30, "context": "a"}, "question"),
        ("/qa", {"question": "who", "context": "a", "max_answer_tokens": 0}, "max_answer_tokens"),
        ("/multiple-choice", {"prompt": "a"}, "choices"),
        ("/multiple-choice", {"choices": ["a", "b"]}, "prompt"),
        ("/multiple-choice", {"prompt": [], "choices": ["a", "b"]}, "prompt"),
        ("/multiple-choice", {"prompt": "a", "choices": None}, "choices"),
        ("/multiple-choice", {"prompt": "a", "choices": "b"}, "choices"),
        ("/multiple-choice", {"prompt": "a", "choices": ["b"]}, "choices"),
        ("/multiple-choice", {"prompt": "a", "choices": []}, "choices"),
        ("/multiple-choice", {"prompt": "a", "choices": [[]]}, "choices[0]"),
        ("/multiple-choice", {"prompt": ["a", "b"], "choices": [["a", "b"], ["b"]]}, "choices[1]"),
        ("/multiple-choice", {"prompt": ["a", "b", "c"], "choices": [["a", "b"], ["a", "b"]]}, "choices"),
        ("/multiple-choice", {"prompt": "a", "choices": ["b", 5]}, "choices[1]"),
        ("/multiple-choice", {"prompt": "a", "choices": [["b", "c"], "d"]}, "choices[1]"),
        ("/multiple-choice", {"prompt": "a", "choices": ["b", ["c"]]}, "choices[0]"),
        ("/multiple-choice", {"prompt": "a", "choices": [["b", "c"], ["d", None]]}, "choices[1][1]"),
        ("/multiple-choice", {"prompt": "a", "choices": [["b", ["c"]]]}, "choices[0][1]"),
        ("/multiple-choice", {"prompt": "a", "choices": ["b", " "]}, "choices[1]"),
        ("/multiple-choice", {"prompt": ["a", ""], "choices": ["b", "c"]}, "prompt[1]"),
        ("/multiple-choice", {"prompt": "a", "choices": ["b", "c"], "top_k": 0}, "top_k"),
        ("/multiple-choice", {"prompt": "a", "choices": ["b", "c"], "model": "mood"}, "model"),
        ("/multiple-choice", {"prompt": "a", "choices": ["b", "c " * 40]}, "prompt with choices[1]"),
        ("/fill-mask", {"text": ["[MASK]", "a film"]}, "text[1]"),
        ("/fill-mask", {"text": "[MASK]" * 40}, "text"),
        ("/fill-mask", {"text": "[MASK]", "top_k": 101}, "top_k"),
        ("/fill-mask", {"text": "[MASK]", "truncate": True}, "truncate"),
        ("/fill-mask", {"text": "[MASK]", "model": "mood"}, "model"),
        ("/ner", [], "body"),
        ("/ner", "text", "body"),
    ],
)
def test_a_field_at_fault_is_named(live: Live, path: str, body: object, field: str) -> None:
    assert field in fields(live.post(path, body))


@pytest.mark.parametrize(
    ("path", "body", "field", "message"),
    [
        ("/classify", {"text": "a"}, "top_k", "must be a whole number of at least 1, not "),
        (
            "/similarity",
            {"text": "a", "candidates": "b"},
            "top_k",
            "must be a whole number of at least 1, not ",
        ),
        ("/rerank", {"query": "a", "candidates": "b"}, "top_k", "must be a whole number of at least 1, not "),
        (
            "/multiple-choice",
            {"prompt": "a", "choices": ["b", "c"]},
            "top_k",
            "must be a whole number of at least 1, not ",
        ),
        ("/qa", {"question": "a", "context": "b"}, "top_k", "must be a whole number from 1 to 100, not "),
        (
            "/qa",
            {"question": "a", "context": "b"},
            "max_answer_tokens",
            "must be a whole number from 1 to 512, not ",
        ),
        ("/fill-mask", {"text": "[MASK]"}, "top_k", "must be a whole number from 1 to 100, not "),
    ],
)
def test_a_wrong_number_is_named_with_its_rule(
    live: Live, path: str, body: dict[str, object], field: str, message: str
) -> None:
    shown = {
        "0": "0",
        "-1": "-1",
        "1.5": "1.5",
        "true": "true",
        '"1"': "a string",
        "[1]": "a list",
        "NaN": "nan",
    }
    for sent, named in shown.items():
        raw = json.dumps(body | {field: 0}).replace(f'"{field}": 0', f'"{field}": {sent}').encode()
        assert fields(live.post(path, raw)) == {field: message + named}
    reply = live.post(path, body | {field: 2.0})
    assert reply.status == 200 and reply.json["results"] == live.post(path, body | {field: 2}).json["results"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truncate": "yes"}, "must be true or false, not a string"),
        ({"truncate": 1}, "must be true or false, not 1"),
        ({"model": 3}, "must be a string, not 3"),
        ({"windows": ["max"]}, "must be 'max' or 'mean', not a list"),
    ],
)
def test_a_wrong_type_is_named_with_the_right_one(
    live: Live, options: dict[str, object], message: str
) -> None:
    assert fields(live.post("/classify", {"text": "a"} | options)) == dict.fromkeys(options, message)


def test_unequal_lists_are_refused_with_both_lengths(live: Live) -> None:
    reply = live.post("/qa", {"question": ["who", "where"], "context": ["a", "b", "c"]})
    assert fields(reply) == {
        "context": "has 3 texts and question has 2; send lists of one length, or one string"
    }


def test_half_a_surrogate_pair_is_no_text(live: Live) -> None:
    assert fields(live.post("/classify", b'{"text": "\\ud800"}')).keys() == {"text"}
    assert fields(live.post("/ner", b'{"text": ["a", "x\\udc00y"]}')).keys() == {"text[1]"}
    assert fields(live.post("/ner", b'{"text": "a", "\\ud800": 1}'))
    assert live.post("/ner", b'{"text": "\\ud83d\\ude42"}').status == 200
    nested = b'{"prompt": "a", "choices": [["a", "b"], ["c", "\\ud800"]]}'
    assert fields(live.post("/multiple-choice", nested)).keys() == {"choices[1][1]"}


def test_a_value_is_never_echoed(live: Live) -> None:
    reply = live.post("/classify", {"text": {"secret": "hunter2"}})
    assert b"hunter2" not in reply.body
    is_problem(reply, 422)


def test_an_unknown_model_lists_the_known(live: Live) -> None:
    problem = is_problem(live.post("/classify", {"text": "a", "model": "nope"}), 404)
    assert problem["type"] == "urn:bert-serve:unknown-model"
    assert "mood" in problem["detail"] and "reader" in problem["detail"]


def test_a_model_of_another_task_is_refused_with_those_that_fit(live: Live) -> None:
    message = fields(live.post("/ner", {"text": "a", "model": "mood"}))["model"]
    assert "classification" in message and "names" in message


def test_paths_and_methods_that_are_not_there(live: Live) -> None:
    is_problem(live.get("/nothing"), 404)
    reply = live.get("/classify")
    is_problem(reply, 405)
    assert reply.headers["allow"] == "POST"
    is_problem(live.request("DELETE", "/models"), 405)


@pytest.mark.parametrize("path", ["/classify/", "/models/", "/health/live/", "//classify"])
def test_a_path_with_a_slash_too_many_is_not_redirected_to_what_the_host_header_says(
    live: Live, path: str
) -> None:
    for method in ("GET", "POST"):
        reply = live.request(method, path, headers={"host": "elsewhere.example"})
        is_problem(reply, 404)
        assert "location" not in reply.headers


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/models", "/docs", "/"])
def test_head_is_answered_as_get_without_a_body(live: Live, path: str) -> None:
    reply = live.request("HEAD", path)
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["content-type"] == live.get(path).headers["content-type"]
    assert live.request("HEAD", "/classify").status == 405


def test_every_answer_has_the_clients_id_if_it_is_sane(live: Live) -> None:
    assert live.get("/health/live", x_request_id="job-7.a:b").headers["x-request-id"] == "job-7.a:b"
    for insane in ("", "a b", "x" * 129, 'a"b', "caf\u00e9"):
        made = live.get("/health/live", x_request_id=insane).headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{16}", made)
    assert live.post("/ner", {"text": 1}, x_request_id="abc").json["request_id"] == "abc"


def test_an_answer_says_where_its_time_went(live: Live) -> None:
    timing = live.post("/ner", {"text": "a film in munich"}).headers["server-timing"]
    names = re.findall(r"(\w+);dur=(\d+\.\d+)", timing)
    assert [name for name, _ in names] == ["tokenize", "queue", "inference", "decode", "total"]
    *parts, total = (float(duration) for _, duration in names)
    assert 0 < sum(parts) <= total + 0.1


@pytest.mark.parametrize("sent", ["0", "-1", "soon", "1.5", "", "\u0661"])
def test_a_deadline_must_be_a_number(live: Live, sent: str) -> None:
    reply = live.post("/ner", {"text": "a"}, x_timeout_ms=sent.encode().decode("latin-1"))
    assert "X-Timeout-Ms" in fields(reply)


def test_errors_are_json_that_a_strict_parser_reads(live: Live) -> None:
    json.loads(live.post("/ner", {"text": 1}).body, parse_constant=pytest.fail)


def test_after_a_refusal_the_connection_goes_on(live: Live) -> None:
    connection = live.connect()
    good = (b'{"text": "a"}', "application/json", 200)
    for data, kind, status in (
        good,
        (b"x" * 100_000, "text/plain", 415),
        (b"{", "application/json", 400),
        good,
    ):
        connection.request("POST", "/ner", data, {"content-type": kind})
        response = connection.getresponse()
        assert response.status == status
        response.read()
    connection.close()
