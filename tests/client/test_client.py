"""What the client's calls return, against what the service answers to the request itself."""

import dataclasses
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.tasks.spec import TaskSpec
from bert_client import (
    AsyncClient,
    CallInfo,
    Classification,
    Client,
    InvalidRequestError,
    LabelScore,
    ProblemError,
    Result,
    TooLargeError,
    UnknownModelError,
    results,
)
from bert_client.options import (
    ClassifyOptions,
    EmbedOptions,
    FillMaskOptions,
    MultipleChoiceOptions,
    NerOptions,
    QaOptions,
    RerankOptions,
    SimilarityOptions,
    SparseOptions,
)
from service.http.operations import ModelInfo as WireModel
from service.tasks.schema import Schema
from tests.client.conftest import MakeClient
from tests.support.live import Live, serving
from tests.support.open_ner import write_wide_bundle
from tests.support.scripted import Scripted, scripted
from tests.support.tiny import write_tiny_bundle

TEXTS = [f"angela met merkel in {place}" for place in ("munich", "paris", "a film", "it")] * 6
ONE_EACH: dict[str, list[tuple[Any, ...]]] = {
    "classify": [(text,) for text in TEXTS],
    "ner": [(text,) for text in TEXTS],
    "qa": [(f"where is {i}", text) for i, text in enumerate(TEXTS)],
    "embed": [(text,) for text in TEXTS],
    "tokenize": [(text,) for text in TEXTS],
    "fill_mask": [(f"{text} [MASK]",) for text in TEXTS],
    "multiple_choice": [(text, ["who", "a long film"]) for text in TEXTS],
}
"""Task → the arguments of calls with one result each."""


def plain(value: Any) -> Any:
    """Return results as the JSON that they were read from, which `to_dict` gives."""
    if isinstance(value, Result):
        found = value.to_dict()
        assert json.loads(json.dumps(found)) == found
        return found
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def wire(live: Live, path: str, **body: Any) -> list[dict[str, Any]]:
    reply = live.post(path, body)
    assert reply.status == 200, reply.body
    results: list[dict[str, Any]] = reply.json["results"]
    return results


def alike(ours: Any, theirs: Any) -> None:
    """Assert that numbers agree to float32 and everything else exactly."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            alike(ours[name], theirs[name])
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            alike(one, other)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=1e-5)
    else:
        assert ours == theirs


@pytest.mark.parametrize(
    ("method", "path", "fields", "inner"),
    [
        ("classify", "/classify", ("text",), None),
        ("ner", "/ner", ("text",), "entities"),
        ("qa", "/qa", ("question", "context"), None),
        ("embed", "/embed", ("text",), "embedding"),
        ("tokenize", "/tokenize", ("text",), "tokens"),
        ("fill_mask", "/fill-mask", ("text",), "masks"),
        ("multiple_choice", "/multiple-choice", ("prompt", "choices"), None),
    ],
)
def test_a_string_gives_one_result_and_a_list_one_for_each_text(
    client: Any, live: Live, method: str, path: str, fields: tuple[str, ...], inner: str | None
) -> None:
    lists = [list(column) for column in zip(*ONE_EACH[method], strict=True)]
    theirs = wire(live, path, **dict(zip(fields, lists, strict=True))) if method != "multiple_choice" else []
    if not theirs:
        for prompt, choices in ONE_EACH[method]:
            theirs += wire(live, path, prompt=prompt, choices=choices)
    expected = [each[inner] for each in theirs] if inner else theirs
    alike(plain(getattr(client, method)(*lists)), expected)
    alike(plain(getattr(client, method)(*ONE_EACH[method][0])), expected[0])
    alike(plain(list(client.stream(method, items(method)))), expected)
    assert plain(getattr(client, method)(*([] for _ in lists))) == []


def items(method: str) -> Iterator[Any]:
    return (each if len(each) > 1 else each[0] for each in ONE_EACH[method])


def test_vectors_are_float32_arrays(client: Any) -> None:
    one, many = client.embed(TEXTS[0]), client.embed(TEXTS)
    assert (one.shape, many.shape, one.dtype, many.dtype) == ((32,), (24, 32), np.float32, np.float32)
    assert np.linalg.norm(many, axis=1) == pytest.approx(1, abs=1e-5)
    assert client.embed([]).shape == (0, 0)


def test_options_are_those_of_the_wire(client: Any, live: Live) -> None:
    long = "a warm film and a dull film " * 20
    scoring = {"windows": "mean", "temperature": 2.0, "threshold": 0.3}
    alike([plain(client.classify(long, **scoring))], wire(live, "/classify", text=long, **scoring))
    assert client.classify("a film", top_k=None, model="topics") == client.classify("a film", model="topics")
    names = {"labels": ["LOC"], "min_score": 0.1, "aggregation": "simple"}
    theirs = wire(live, "/ner", text=TEXTS, **names)
    alike(plain(client.ner(TEXTS, **names)), [each["entities"] for each in theirs])
    assert client.embed(TEXTS, dimensions=8).shape == (24, 8)
    assert client.qa("who is it", "angela merkel", no_answer_threshold=0.0).answer is None


@pytest.mark.parametrize("top_k", [None, 3])
def test_candidates_of_several_requests_are_ranked_as_those_of_one(
    client: Any, live: Live, top_k: int | None
) -> None:
    candidates = [
        f"the {word} {place}" for word in ("funny", "dull", "long", "warm") for place in ("film", "paris")
    ]
    texts, options = [f"{text} {i}" for i, text in enumerate(TEXTS[:9])], {"top_k": top_k}
    theirs = wire(live, "/similarity", text=texts, candidates=candidates, top_k=top_k)
    ours = client.similarity(texts, candidates, **options)
    named = [{**each, "text": candidates[each["index"]]} for each in theirs]
    alike(
        [{"text_index": row, **plain(match)} for row, matches in enumerate(ours) for match in matches], named
    )
    alike(plain(client.similarity(texts[0], candidates, **options)), plain(ours[0]))
    alike(plain(client.rerank(texts[0], candidates, **options)), plain(ours[0]))
    assert client.similarity([], candidates) == [] and client.rerank("a", []) == []


def test_a_string_goes_with_each_text_of_a_list(client: Any) -> None:
    contexts = [*TEXTS, "who is it"]
    both = client.qa(["who is it"] * len(contexts), contexts)
    alike(plain(client.qa("who is it", contexts)), plain(both))
    pairs = client.classify(TEXTS, "a film", model="entailment")
    alike(plain(pairs), plain(client.classify(TEXTS, ["a film"] * len(TEXTS), model="entailment")))
    assert len(client.multiple_choice("who is it", [["a", "it"], ["the", "film"]])) == 2


def test_lists_of_two_lengths_are_refused_before_anything_is_sent(client: Any) -> None:
    with pytest.raises(ValueError, match="question has 2, context has 3"):
        client.qa(["a", "b"], ["a", "b", "c"])
    with pytest.raises(TypeError, match="candidates must be a list"):
        client.rerank("a", "b")
    for choices in ("bcd", [["a", "b"], "cd"]):
        with pytest.raises(TypeError, match=r"choices(\[1\])? must be a list"):
            client.multiple_choice(["a", "b"], choices)
    with pytest.raises(TypeError, match=r"items\[0\] must be \(prompt, list of choices\)"):
        list(client.stream("multiple_choice", [("a", "bcd")]))


def test_no_request_has_more_texts_than_batch_size(make: MakeClient, live: Live) -> None:
    client, texts = make(live.url, batch_size=64), TEXTS * 4
    assert len(client.qa(texts, texts)) == len(client.qa("who is it", texts)) == 96
    assert len(client.similarity(texts, texts[:80], top_k=1)) == 96
    assert len(client.rerank("who is it", texts)) == 96


def test_choices_count_as_often_as_they_are_read(client: Any, make: MakeClient, live: Live) -> None:
    choices = [["a", "it", "the", "film", "who"]] * 20  # 120 texts with the prompts; the service takes 64
    assert (
        len(
            make(live.url, batch_size=64).multiple_choice([f"it is {i}" for i in range(20)], choices, top_k=1)
        )
        == 20
    )


def test_labels_of_each_text_are_sent_with_it(make: MakeClient, tmp_path: Path) -> None:
    write_wide_bundle(tmp_path / "open", "open")
    inference = TaskSpec(
        "classification", ("entailment", "contradiction", "neutral"), pair=True, max_tokens=64
    )
    write_tiny_bundle(tmp_path / "nli", "nli", inference, 7)
    texts = [f"{text} {i}" for i, text in enumerate(TEXTS)]
    sets = [["person", f"city {i}", "a film"] for i in range(len(texts))]
    with serving(bundles=[tmp_path], max_texts_per_request=16) as live:
        client = make(live.url, batch_size=16)  # five texts a request
        for ask in (client.ner, client.classify):
            together = ask(texts, labels=sets)
            alike(
                plain(together),
                plain([ask(text, labels=[labels]) for text, labels in zip(texts, sets, strict=True)]),
            )
            with pytest.raises(ValueError, match="text has 24, labels has 2"):
                ask(texts, labels=sets[:2])
            with pytest.raises(TypeError, match=r"labels\[1\] must be a list of strings"):
                ask(texts[:2], labels=[["a"], "b"])
            with pytest.raises(InvalidRequestError, match=r"labels\[21\]\[1\]: is 'a', which is there"):
                ask(texts, labels=[*sets[:21], ["a", "a"], *sets[22:]])
        assert any(client.ner(texts, labels=sets))


def test_info_adds_up_what_the_calls_cost(client: Any, live: Live) -> None:
    info = CallInfo()
    client.embed([*TEXTS, "film " * 50, "who"], truncate=True, info=info)
    reply = live.post("/embed", {"text": [*TEXTS, "film " * 50, "who"], "truncate": True}).json
    assert (info.model, info.tokens) == (reply["model"], reply["usage"]["tokens"]) == ("meaning", info.tokens)
    assert (len(set(info.request_ids)), info.truncated) == (4, [24])
    client.embed("who", info=info)
    assert len(info.request_ids) == 5
    for method in ("similarity", "rerank"):
        info = CallInfo()
        matches = getattr(client, method)("who", [*TEXTS, "film " * 50], truncate=True, info=info)
        assert info.truncated == [match.index for match in matches if match.truncated] == [24]


def test_an_error_names_the_text_in_the_list_that_was_given(client: Any) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        client.classify([*TEXTS[:17], "film " * 50, *TEXTS])
    error = refused.value
    assert str(error) == (
        "text[17]: the text has 52 tokens and the model reads at most 32 "
        f"(422, request id {error.request_id})"
    )
    assert (error.status, error.type) == (422, "urn:bert-serve:invalid-request")
    assert [(each.field, each.message[:12]) for each in error.errors] == [("text[17]", "the text has")]
    assert error.items == range(14, 21)
    assert error.results and len(error.results) == 42
    assert [result.label for result in error.results[:14]] and error.results[14:21] == [None] * 7


def test_an_error_of_one_string_names_no_place(client: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^text: the text has 52 tokens") as refused:
        client.classify("film " * 50)
    assert refused.value.items is None
    with pytest.raises(InvalidRequestError, match="tpo: is not a field of this request"):
        client.classify("film", tpo=1)
    with pytest.raises(UnknownModelError, match="no model 'nope'; loaded are"):
        client.classify("film", model="nope")
    with pytest.raises(InvalidRequestError, match=r"text\[1\]: is not valid Unicode"):
        client.ner(["film", "\ud800"])


def test_a_stream_gives_each_refused_item_to_on_error(client: Any) -> None:
    texts = ["film " * (50 if i in (3, 9, 10, 29) else 1) for i in range(31)]
    seen = list(
        client.stream("classify", iter(texts), on_error=lambda place, error: (place, str(error)[:24]))
    )
    assert [each for each in seen if isinstance(each, tuple)] == [
        (i, f"text[{i}]: the text has 52 "[:24]) for i in (3, 9, 10, 29)
    ]
    assert len(seen) == 31
    with pytest.raises(InvalidRequestError) as refused:
        list(client.stream("classify", iter(texts[4:])))
    assert refused.value.items == range(0, 7)
    with pytest.raises(UnknownModelError):
        list(client.stream("classify", iter(texts), on_error=lambda place, error: None, model="nope"))
    with pytest.raises(ValueError, match="task must be one of classify"):
        list(client.stream("similarity", ["a"]))


def test_a_stream_reads_no_further_than_it_has_to(client: Any) -> None:
    texts = iter(["a film"] * 10_000)
    results = client.stream("classify", texts)
    for _ in range(10):
        next(results)
    results.close()
    assert len(list(texts)) >= 10_000 - 7 * 6  # four requests at once, one that is made and one that is read


def test_a_part_over_the_service_s_limits_is_sent_in_halves(make: MakeClient, live: Live) -> None:
    texts = [f"{'film ' * 300}{i}" for i in range(20)]  # 20 times 450 tokens in windows; 4096 may wait
    client = make(live.url)
    assert [found[-1].end for found in client.ner(texts)] == [len(text) for text in texts]
    with pytest.raises(TooLargeError) as refused:
        client.ner([*texts[:3], "film " * 4000])
    assert refused.value.items == range(3, 4)
    done = refused.value.results or []
    assert [found[-1].end for found in done[:2]] == [len(text) for text in texts[:2]]


def test_a_stream_sends_what_is_done_once(make: MakeClient, live: Live) -> None:
    info, texts = CallInfo(), ["film"] * 8
    texts[2] = texts[5] = "film " * 4000
    own = list(
        make(live.url).stream("ner", texts, info=info, on_error=lambda place, error: (place, error.status))
    )
    assert [each for each in own if isinstance(each, tuple)] == [(2, 413), (5, 413)]
    assert info.tokens == 6 * 3


def test_an_error_of_a_ranking_holds_no_part_of_one(make: MakeClient) -> None:
    wires = [
        {"text_index": row, "index": i, "score": 0.5, "truncated": False}
        for row in range(2)
        for i in range(2)
    ]
    part = Scripted(body={"model": "meaning", "results": wires, "usage": {"tokens": 3}})
    with scripted(part, part, part, Scripted(500, "")) as script:
        client = make(script.url, batch_size=4, max_concurrency=1)
        with pytest.raises(ProblemError) as failed:
            client.similarity(["a", "b", "c", "d"], ["a", "b", "c", "d"])
    done = [each and [match.index for match in each] for each in failed.value.results or []]
    assert done == [[0, 1, 2, 3], [0, 1, 2, 3], None, None]  # of the last two, half of the candidates came


def test_health_and_models(client: Any, make: MakeClient) -> None:
    assert client.ready() and client.ready("mood") and client.live()
    with pytest.raises(UnknownModelError):
        client.ready("no/such model&")
    models = {model.name: model for model in client.models()}
    assert models["mood"].labels == ["negative", "positive"] and models["entailment"].pair
    away = make("http://127.0.0.1:9")
    assert not away.ready() and not away.live()


def test_both_clients_have_the_same_methods() -> None:
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if not name.startswith("_") and name not in ("close", "stream"):
            other = getattr(AsyncClient, name)
            assert inspect.signature(method) == inspect.signature(other), name
            assert method.__doc__ == other.__doc__, name


@pytest.mark.parametrize(
    ("options", "fields", "schema"),
    [
        (ClassifyOptions, {"text", "text_pair"}, "ClassifyRequest"),
        (NerOptions, {"text"}, "NerRequest"),
        (QaOptions, {"question", "context"}, "QaRequest"),
        (EmbedOptions, {"text"}, "EmbedRequest"),
        (SimilarityOptions, {"text", "candidates"}, "SimilarityRequest"),
        (RerankOptions, {"query", "candidates"}, "RerankRequest"),
        (MultipleChoiceOptions, {"prompt", "choices"}, "MultipleChoiceRequest"),
        (FillMaskOptions, {"text"}, "FillMaskRequest"),
    ],
)
def test_the_client_knows_every_field_of_the_wire(options: Any, fields: set[str], schema: str) -> None:
    (request,) = (each for each in requests(Schema) if each.__name__ == schema)
    known = options.__annotations__.keys() - {"timeout", "info"} | fields
    if schema == "EmbedRequest":
        known |= {"encoding_format", "late_chunking"}  # the client's own choice, and what it may not split
        known |= {"vectors"} | SparseOptions.__annotations__.keys() - {"timeout", "info"}
    assert known == request.model_fields.keys()


def requests(parent: type[Schema]) -> Iterator[type[Schema]]:
    for each in parent.__subclasses__():
        yield each
        yield from requests(each)


def test_the_client_knows_every_field_of_a_model(client: Any) -> None:
    (model, *_) = client.models()
    assert {field.name for field in dataclasses.fields(model)} == WireModel.model_fields.keys()


def test_a_match_has_the_text_of_its_candidate(client: Any) -> None:
    candidates = [f"a {word} film" for word in ("warm", "dull", "long", "funny")] * 3
    for matches in (*client.similarity(["who", "a film"], candidates), client.rerank("who", candidates)):
        assert [match.text for match in matches] == [candidates[match.index] for match in matches]


def test_every_result_can_be_written_as_json() -> None:
    own = [kind for kind in vars(results).values() if getattr(kind, "__module__", "") == results.__name__]
    kinds = [kind for kind in own if dataclasses.is_dataclass(kind)]
    assert len(kinds) > 10 and all(issubclass(kind, Result) for kind in kinds if isinstance(kind, type))
    scores = (LabelScore("a", 0.5), LabelScore("b", 0.25))
    expected = {"label": "a", "score": 0.5, "truncated": False}
    expected["scores"] = [{"label": "a", "score": 0.5}, {"label": "b", "score": 0.25}]
    assert json.loads(json.dumps(Classification("a", 0.5, scores).to_dict())) == expected


def test_info_has_the_warnings_at_their_places_in_the_list(client: Any) -> None:
    unknown, info = "🦜 ꙮ film", CallInfo()
    client.ner([*TEXTS[:9], unknown], info=info)
    client.similarity("a film", [*TEXTS[:20], unknown], info=info)
    client.qa(unknown, TEXTS[:9], info=info)  # the question goes with both requests
    assert [each.field for each in info.warnings] == ["text[9]", "candidates[20]", "question"]
    assert "does not know 2 of 3 pieces ([UNK])" in info.warnings[0].message
