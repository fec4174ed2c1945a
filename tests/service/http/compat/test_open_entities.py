"""Clients of GLiNER's servers: gliner.serve, NeMo Guardrails, and Hugging Face's form with labels.

Most requests are written by hand, with the fields that NeMo Guardrails 0.24.1 sends. With BERT_GLINER_PYTHON, the Python of
an environment that has gliner and nemoguardrails, their own clients ask as they are.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.http.compat.nemo import DEFAULT_LABELS
from tests.service.http.compat.conftest import KEY
from tests.support.live import Live, Reply, serving
from tests.support.open_ner import PIECES, SPEC, tokenizer_json, write_wide_bundle
from tests.support.tiny import write_tiny_bundle

TEXT = "Angela Merkel met 🙂 a funny film in Paris and Munich."
LABELS = ["person", "city", "a long film"]
PYTHON = os.environ.get("BERT_GLINER_PYTHON", "")
OF_GUARDRAILS = {"threshold": 0.3, "chunk_length": 384, "overlap": 128, "flat_ner": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models that take labels, of spans and of words; the first reads 1,000 tokens."""
    folder: Path = tmp_path_factory.mktemp("open")
    write_wide_bundle(folder / "spans", "spans")
    words, pieces = SPEC["token_level"], tokenizer_json()
    write_tiny_bundle(folder / "words", "words", words, 3, tokenizer_json=pieces, vocab_size=PIECES)
    return folder


@pytest.fixture(scope="module")
def opened(folder: Path, bundles: Path) -> Iterator[Live]:
    """They and a model of four types."""
    with serving(bundles=[bundles / "names", folder], default_models={"open_ner": "spans"}) as running:
        yield running


def own(live: Live, text: str = TEXT, labels: object = LABELS, **more: object) -> list[dict[str, Any]]:
    """Return the entities of /ner."""
    reply = live.post("/ner", {"text": text, "labels": labels, "model": "spans", **more})
    assert reply.status == 200, reply.body
    return list(reply.json["results"][0]["entities"])


def chat(live: Live, **more: object) -> Reply:
    """Ask as NeMo Guardrails asks NVIDIA's NIM."""
    messages = [{"role": "user", "content": TEXT}]
    body = {"model": "nvidia/gliner-pii", "messages": messages, **OF_GUARDRAILS, "labels": LABELS}
    return live.post("/v1/chat/completions", {**body, **more})


def extract(live: Live, **more: object) -> Reply:
    return live.post("/v1/extract", {"text": TEXT, **OF_GUARDRAILS, "labels": LABELS, **more})


def names(of: list[dict[str, Any]], form: dict[str, str]) -> list[dict[str, Any]]:
    return [{form[name]: value for name, value in each.items()} for each in of]


EXTRACTED = {
    "text": "value",
    "label": "suggested_label",
    "start": "start_position",
    "end": "end_position",
    "score": "score",
}


def test_gliner_serve(opened: Live) -> None:
    found = opened.post("/gliner", {"text": TEXT, "labels": LABELS}).json
    assert found == {"entities": own(opened)} and found["entities"]
    asked = {"text": TEXT, "labels": {"PER": "person", "LOC": "city"}, "threshold": 0.2, "flat_ner": False}
    nested = own(opened, labels=asked["labels"], threshold=0.2, flat=False, multi_label=True)
    assert opened.post("/gliner", {**asked, "multi_label": True, "more": 1}).json["entities"] == nested
    of_words = opened.post("/ner", {"text": TEXT, "labels": LABELS, "model": "words"}).json["results"][0]
    assert opened.post("/gliner/words", {"text": TEXT, "labels": LABELS}).json == of_words
    assert opened.post("/gliner", {"text": "", "labels": LABELS}).json == {"entities": []}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"labels": []}, "labels: has no label"),
        ({"labels": ["a", " "]}, "labels[1]: is empty"),
        ({"labels": ["a", "a"]}, "already"),
        ({"labels": ["a\0"]}, "labels[0]: holds NUL"),
        ({"labels": ["\ud800"]}, "labels[0]: is not valid Unicode"),
        ({"labels": [["a"], ["b"]]}, "labels: has 2 lists and text has 1 texts"),
        ({"labels": [str(n) for n in range(1_000)]}, "1000 names and may have 512"),
        ({"labels": "person"}, "labels: must be a list"),
        ({"labels": ["a long film " * 400]}, "of the 1000 tokens"),
        ({"text": [TEXT]}, "text: must be a string"),
        ({"threshold": 1}, "threshold: must be a number of at least 0.01 and below 1, not 1"),
        ({"relations": ["works for"]}, "relations: cannot be honoured: entities are found, and no relations"),
        ({"relation_threshold": 0.5}, "relation_threshold: cannot be honoured"),
        ({"adapter_id": "a"}, "adapter_id: cannot be honoured: models have no adapters"),
    ],
)
def test_gliner_serve_names_what_is_wrong(changed: dict[str, Any], said: str, opened: Live) -> None:
    reply = opened.post("/gliner", {"text": TEXT, "labels": LABELS, **changed})
    assert reply.status == 400 and said in reply.json["error"], reply.body


def test_a_model_of_gliner_serve_takes_labels(opened: Live) -> None:
    reply = opened.post("/gliner/names", {"text": TEXT, "labels": LABELS})
    assert reply.status == 400 and "is for ner, this endpoint needs one for open_ner" in reply.json["error"]
    assert opened.post("/gliner/none", {"text": TEXT, "labels": LABELS}).status == 404


def test_extract(opened: Live) -> None:
    found = extract(opened, flat_ner=True).json
    expected = own(opened, threshold=0.3)
    assert found["entities"] == names(expected, EXTRACTED) and expected
    assert found["total_entities"] == len(expected)
    tagged = TEXT
    for each in reversed(expected):
        tagged = f"{tagged[: each['start']]}[{each['text']}]({each['label']}){tagged[each['end'] :]}"
    assert found["tagged_text"] == tagged
    assert extract(opened, text="", labels=None).json == {
        "total_entities": 0,
        "entities": [],
        "tagged_text": "",
    }


def test_of_nested_entities_the_outer_one_is_extracted(opened: Live) -> None:
    text = " ".join(["angela merkel met in munich a warm and funny film"] * 6)
    nested = own(opened, text, threshold=0.05, flat=False)
    found = extract(opened, text=text, threshold=0.05).json["entities"]

    def is_within(one: dict[str, Any]) -> bool:
        return any(a["start"] <= one["start"] and one["end"] <= a["end"] and a is not one for a in nested)

    outer = [each for each in nested if not is_within(each)]
    assert len(outer) < len(nested)
    assert found == names(outer, EXTRACTED)


def test_without_labels_personal_data_is_looked_for(opened: Live) -> None:
    assert len(set(DEFAULT_LABELS)) == len(DEFAULT_LABELS) == 55
    found = extract(opened, labels=None, flat_ner=True).json["entities"]
    assert found == names(own(opened, labels=list(DEFAULT_LABELS), threshold=0.3), EXTRACTED) and found


def test_chat(opened: Live) -> None:
    reply = chat(opened, stream=False, temperature=0, tools=None, n=1).json
    (choice,) = reply["choices"]
    expected = extract(opened).json
    assert json.loads(choice["message"]["content"]) == {
        **expected,
        "entities": [{name: each[new] for name, new in EXTRACTED.items()} for each in expected["entities"]],
    }
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "stop"
    assert reply["object"] == "chat.completion" and reply["model"] == "spans"
    usage = reply["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] > 0 == usage["completion_tokens"]
    turns = [("system", "x"), ("user", "Angela"), ("assistant", "{}"), ("user", TEXT), ("assistant", "x")]
    messages = [{"role": role, "content": content} for role, content in turns]
    assert chat(opened, messages=messages, model="spans").json["choices"] == reply["choices"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"stream": True}, "stream: cannot be honoured: entities are answered, and no text is generated"),
        ({"n": 2}, "n: cannot be honoured"),
        ({"tools": [{"type": "function"}]}, "tools: cannot be honoured"),
        ({"response_format": {"type": "json_object"}}, "response_format: cannot be honoured"),
        ({"messages": []}, 'messages: must be a list with {"role": "user", "content": TEXT}'),
        ({"messages": [{"role": "system", "content": "a"}]}, "of which the last is read"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, "content"),
        ({"model": "names"}, "model 'names' is for ner, this endpoint needs one for open_ner: spans, words"),
        ({"threshold": 0}, "threshold: must be a number of at least 0.01"),
        ({"chunk_length": 0}, "chunk_length: must be a whole number of at least 1"),
        ({"labels": []}, "labels: has no label"),
    ],
)
def test_no_other_chat_is_answered(changed: dict[str, Any], said: str, opened: Live) -> None:
    reply = chat(opened, **changed)
    assert reply.status == 400 and said in reply.json["error"]["message"], reply.body


def test_another_model_of_a_chat_is_unknown(opened: Live) -> None:
    reply = chat(opened, model="gpt-4o")
    assert reply.status == 404 and reply.json["error"]["code"] == "model_not_found"


def test_a_client_of_openai_reads_the_chat(opened: Live) -> None:
    openai = pytest.importorskip("openai", reason="`make clients` installs the client `openai`")
    client = openai.OpenAI(base_url=f"{opened.url}/v1", api_key="k", max_retries=0)
    asked = {"model": "nvidia/gliner-pii", "messages": [{"role": "user", "content": TEXT}]}
    done = client.chat.completions.create(**asked, extra_body={"labels": LABELS, "threshold": 0.3})
    assert json.loads(done.choices[0].message.content)["entities"]
    with pytest.raises(openai.BadRequestError, match="no text is generated"):
        client.chat.completions.create(**asked, stream=True)


@pytest.mark.parametrize("path", ["/hf/spans", "/hf/spans/pipeline/token-classification"])
def test_token_classification_with_labels(path: str, opened: Live) -> None:
    options: dict[str, Any] = {"labels": LABELS, "threshold": 0.2, "flat_ner": False, "multi_label": True}
    found = opened.post(path, {"inputs": TEXT, "parameters": options}).json
    expected = own(opened, threshold=0.2, flat=False, multi_label=True)
    form = {"text": "word", "label": "entity_group", "start": "start", "end": "end", "score": "score"}
    assert found == names(expected, form) and found
    both = opened.post(path, {"inputs": [TEXT, ""], "parameters": {"labels": LABELS}}).json
    assert both == [names(own(opened), form), []]
    parameters = {"labels": [LABELS, ["person"]]}
    each = opened.post(path, {"inputs": [TEXT, TEXT], "parameters": parameters}).json
    assert each == [names(own(opened, labels=labels), form) for labels in parameters["labels"]]


def test_token_classification_names_what_is_wrong(opened: Live) -> None:
    def refusal(model: str, **parameters: object) -> str:
        reply = opened.post(f"/hf/{model}", {"inputs": TEXT, "parameters": parameters})
        assert reply.status == 422, reply.body
        return str(reply.json["error"])

    assert "send at least one" in refusal("spans")
    assert "no label" in refusal("spans", labels=[])
    assert "names and may have 512" in refusal("spans", labels=[str(n) for n in range(600)])
    assert "labels: has 2 lists and inputs has 1 texts" in refusal("spans", labels=[["a"], ["b"]])
    assert "labels[0][1]: is 'a', which is there already" in refusal("spans", labels=[["a", "a"]])
    assert "parameters.labels[0]: is not valid Unicode" in refusal("spans", labels=["\ud800"])
    assert "aggregation_strategy: is not an option" in refusal(
        "spans", labels=["a"], aggregation_strategy="max"
    )
    assert "labels: is not an option of ner" in refusal("names", labels=["PER"])


def test_a_key_is_asked_for(folder: Path) -> None:
    with serving(bundles=[folder], api_key=KEY, default_models={"open_ner": "spans"}) as keyed:
        assert [chat(keyed).status, extract(keyed).status] == [401, 401]
        assert keyed.post("/gliner", {"text": TEXT, "labels": LABELS}).status == 401
        body = {"text": TEXT, "labels": LABELS}
        assert keyed.post("/v1/extract", body, authorization=f"Bearer {KEY}").status == 200


def test_labels_count_to_the_size_of_an_answer(folder: Path) -> None:
    """A word that the tokenizer does not know is one piece, so that labels may be as long as texts."""
    labels = ["q" * 5_000, "z" * 5_000]
    text = "angela merkel met in munich a warm and funny film " * 8
    with serving(bundles=[folder], default_models={"open_ner": "spans"}, max_response_bytes=50_000) as small:
        for path in ("/ner", "/gliner", "/v1/extract"):
            reply = small.post(path, {"text": text, "labels": labels, "threshold": 0.01})
            assert reply.status in (400, 422) and "max_response_bytes" in reply.body.decode(), path


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="BERT_GLINER_PYTHON names no Python: `make clients` sets it")
def test_the_clients_of_gliner_and_guardrails(opened: Live, tmp_path: Path) -> None:
    asked = {"url": opened.url, "text": TEXT, "labels": LABELS, "threshold": 0.3}
    script = Path(__file__).parents[3] / "support/gliner_clients.py"
    done = subprocess.run(
        [PYTHON, "-P", str(script)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    flat = own(opened, threshold=0.3)
    assert found["gliner"] == [{"entities": flat}, {"entities": own(opened, "Munich", threshold=0.3)}]
    assert "HTTP Error 400" in found["relations"]
    extracted = extract(opened).json
    for name in ("extract", "chat"):
        assert found[name]["entities"] == extracted["entities"]
        assert found[name]["tagged_text"] == extracted["tagged_text"]
    masked = TEXT
    for each in reversed(extracted["entities"]):
        label = each["suggested_label"].upper()
        masked = f"{masked[: each['start_position']]}[{label}]{masked[each['end_position'] :]}"
    assert found["masked"] == masked
    assert "stream" not in found["refused"] and "status code 400" in found["refused"]
