"""What a request may ask of /qa and /ner beside texts, over a real socket."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from bert.config import BertConfig
from bert.tasks.aggregation import Aggregation, EntityOptions
from bert.tasks.ner import word_heads
from tests.support.live import Live, serving
from tests.support.problems import fields
from tests.support.tiny import SPECS, tiny_tokenizer, tiny_weights, vocabulary, write_tiny_bundle

PASSAGE = "the film was in munich and it was warm and angela merkel met it " * 3
ASKED = {"question": "where was it", "context": PASSAGE, "top_k": 4}
NAMES_SEED = 4
SHORT_TEXTS = (
    "angela merkel met a funny film in munich",
    "Paris: who isn't there?",
    "the filmmakers were dull, and München was not",
    "is it how long it was",
)
WRONG_SHARES = ["NaN", "Infinity", "-Infinity", "1e999", "-0.01", "1.01", "true", '"0.5"', "[]", "{}"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service with a model for questions that knows of no answer, one that does not, and one for entities."""
    folder: Path = tmp_path_factory.mktemp("options")
    write_tiny_bundle(folder / "reader", "reader", SPECS["reader"], 5)
    write_tiny_bundle(folder / "sure", "sure", replace(SPECS["reader"], allows_no_answer=False), 5)
    write_tiny_bundle(folder / "names", "names", SPECS["names"], NAMES_SEED)
    with serving(bundles=[folder], default_models={"qa": "reader"}) as running:
        yield running


def answer(live: Live, **options: object) -> dict[str, Any]:
    reply = live.post("/qa", ASKED | options)
    assert reply.status == 200, reply.body
    result: dict[str, Any] = reply.json["results"][0]
    return result


def test_the_answer_is_null_where_its_score_passes_the_threshold(live: Live) -> None:
    own = answer(live, top_k=20)
    spans = [] if own["answer"] is None else [{k: own[k] for k in ("answer", "score", "start", "end")}]
    spans += own["alternatives"]
    best, rest = spans[0], spans[1:]
    none = score = own["no_answer_score"]
    assert 0 < none < 1
    for threshold in (0, score * 0.99):
        found = answer(live, no_answer_threshold=threshold)
        assert found["answer"] is found["start"] is found["end"] is None
        assert found["score"] == found["no_answer_score"] == none
        assert found["alternatives"] == [best, *rest][:3]
    for threshold in (score, 1):
        found = answer(live, no_answer_threshold=threshold)
        assert {k: found[k] for k in best} == best
        assert (found["no_answer_score"], found["alternatives"]) == (none, rest[:3])


def test_without_a_threshold_the_models_own_rule_stands(live: Live) -> None:
    assert live.post("/qa", ASKED).body == live.post("/qa", ASKED | {"no_answer_threshold": None}).body


def test_a_model_that_always_answers_takes_no_threshold(live: Live) -> None:
    reply = live.post("/qa", ASKED | {"model": "sure", "no_answer_threshold": 0.5})
    assert fields(reply) == {
        "no_answer_threshold": "is 0.5, but model 'sure' was not trained on questions without an answer and always gives "
        "one: leave it out"
    }
    assert live.post("/qa", ASKED | {"model": "sure"}).json["results"][0]["no_answer_score"] == 0


@pytest.mark.parametrize("context", ["\u200b", "\u0000", "\u00ad", "\u0301"])
def test_a_context_without_a_token_has_no_answer_whatever_is_asked(live: Live, context: str) -> None:
    for options in ({"no_answer_threshold": 1}, {"model": "sure"}):
        reply = live.post("/qa", {"question": "who", "context": context} | options)
        (result,) = reply.json["results"]
        assert (result["answer"], result["start"], result["end"], result["alternatives"]) == (
            None,
            None,
            None,
            [],
        )


@pytest.mark.parametrize("value", WRONG_SHARES)
def test_a_threshold_is_a_number_from_0_to_1(live: Live, value: str) -> None:
    body = b'{"question": "a", "context": "b", "no_answer_threshold": %s}' % value.encode()
    message = fields(live.post("/qa", body))["no_answer_threshold"]
    assert message.startswith("must be a number from 0 to 1, not ")


def entities(live: Live, text: str, **options: object) -> list[dict[str, Any]]:
    reply = live.post("/ner", {"text": text, **options})
    assert reply.status == 200, reply.body
    found: list[dict[str, Any]] = reply.json["results"][0]["entities"]
    return found


@pytest.fixture(scope="module")
def pipeline() -> Any:
    """The same weights in a pipeline of transformers."""
    config = BertConfig(len(vocabulary()), 32, 2, 4, 64, max_position_embeddings=64)
    labels = dict(enumerate(SPECS["names"].labels))
    theirs = transformers.BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        id2label=labels,
    )
    model = transformers.BertForTokenClassification(theirs)
    weights = tiny_weights(config, SPECS["names"], NAMES_SEED)
    missing, unexpected = model.load_state_dict(
        {name: torch.tensor(weight) for name, weight in weights.items()}, strict=False
    )
    assert not missing and not unexpected
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(tiny_tokenizer().to_json()),
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
    return transformers.pipeline("token-classification", model=model.eval(), tokenizer=tokenizer)


@pytest.mark.parametrize("strategy", Aggregation)
def test_each_aggregation_is_the_pipelines(live: Live, pipeline: Any, strategy: str) -> None:
    count = 0
    for text in SHORT_TEXTS:
        found = entities(live, text, aggregation=strategy)
        theirs = pipeline(text, aggregation_strategy=strategy)
        label = "entity" if strategy == "none" else "entity_group"
        assert [(e["label"], e["start"], e["end"]) for e in found] == [
            (e[label], e["start"], e["end"]) for e in theirs
        ]
        assert [e["score"] for e in found] == pytest.approx([float(e["score"]) for e in theirs], abs=1e-5)
        assert all(text[e["start"] : e["end"]] == e["text"] for e in found)
        count += len(found)
    assert count > 5


@pytest.mark.parametrize("strategy", Aggregation)
def test_each_aggregation_reads_a_long_text_in_windows(live: Live, pipeline: Any, strategy: str) -> None:
    text, spec, tokenizer = " ".join(SHORT_TEXTS * 4), SPECS["names"], tiny_tokenizer()
    (pieces,) = tokenizer.pieces([text])
    rows, most = np.zeros((len(pieces), len(spec.labels)), np.float32), np.full(len(pieces), -1.0)
    for window in tokenizer.windows(pieces, spec.max_tokens, spec.stride):
        with torch.no_grad():
            logits = pipeline.model(torch.tensor(window.encoding.ids)[None].long()).logits[0, 1:-1]
        for row, at in zip(logits.numpy(), range(window.start, window.stop), strict=True):
            around = min(at - window.start, window.stop - 1 - at) + 0.01 * (window.stop - window.start)
            if around > most[at]:
                rows[at], most[at] = row, around
    options = EntityOptions(Aggregation(strategy))
    logits = rows if options.by_piece else rows[word_heads(pieces)]
    expected = options.decode(text, pieces, logits, spec)
    found = entities(live, text, aggregation=strategy)
    assert [(e["label"], e["start"], e["end"]) for e in found] == [
        (e.label, e.start, e.end) for e in expected
    ]
    assert [e["score"] for e in found] == pytest.approx([e.score for e in expected], abs=1e-5)
    assert found[-1]["end"] > 0.8 * len(text)


@pytest.mark.parametrize("strategy", Aggregation)
def test_types_and_scores_choose_among_the_entities(live: Live, strategy: str) -> None:
    text = " ".join(SHORT_TEXTS)
    every = entities(live, text, aggregation=strategy)
    for types in (["PER"], ["LOC"], ["LOC", "PER", "LOC"]):
        kept = entities(live, text, aggregation=strategy, labels=types)
        assert kept == [entity for entity in every if entity["label"][-3:] in types]
    middle = sorted(entity["score"] for entity in every)[len(every) // 2]
    kept = entities(live, text, aggregation=strategy, min_score=middle)
    assert kept == [entity for entity in every if entity["score"] >= middle] != every
    assert entities(live, text, aggregation=strategy, min_score=0) == every


def test_what_is_the_default_changes_no_byte(live: Live) -> None:
    body = {"text": [*SHORT_TEXTS, "", " "]}
    plain = live.post("/ner", body).body
    assert live.post("/ner", body | {"aggregation": "first"}).body == plain
    assert live.post("/ner", body | {"min_score": None, "labels": None}).body == plain
    assert live.post("/ner", body | {"min_score": 0, "labels": ["PER", "LOC"]}).body == plain


@pytest.mark.parametrize("strategy", Aggregation)
def test_texts_without_words_have_no_entities(live: Live, strategy: str) -> None:
    reply = live.post("/ner", {"text": ["", "  ", "\u200b"], "aggregation": strategy})
    assert [result["entities"] for result in reply.json["results"]] == [[], [], []]


def test_models_say_which_types_there_are(live: Live) -> None:
    types = {model["name"]: model["entity_types"] for model in live.get("/models").json["models"]}
    assert types == {"names": ["LOC", "PER"], "reader": [], "sure": []}


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"labels": []}, "labels", "is empty; name one of LOC, PER, or leave it out"),
        ({"labels": "PER"}, "labels", "must be a list, not a string"),
        ({"labels": ["PER", 1]}, "labels[1]", "must be a string"),
        ({"min_score": [0.5]}, "min_score", "must be a number from 0 to 1, not a list"),
        ({"labels": ["PER"] * 513}, "labels", "has 513 names and may have 512"),
        (
            {"labels": ["PER", "B-PER"]},
            "labels[1]",
            "model 'names' has no entities of type 'B-PER'; known are LOC, PER",
        ),
        (
            {"labels": ["x" * 99]},
            "labels[0]",
            f"model 'names' has no entities of type '{'x' * 61}...'; known are LOC, PER",
        ),
        (
            {"aggregation": "mean"},
            "aggregation",
            "must be 'first', 'average', 'max', 'simple' or 'none', not 'mean'",
        ),
        (
            {"aggregation": None},
            "aggregation",
            "must be 'first', 'average', 'max', 'simple' or 'none', not null",
        ),
        (
            {"aggregation": True},
            "aggregation",
            "must be 'first', 'average', 'max', 'simple' or 'none', not true",
        ),
        ({"min_score": 2}, "min_score", "must be a number from 0 to 1, not 2"),
        (
            {"left_out": []},
            "left_out",
            "is empty; name one of symbols, handles, punctuation, or leave it out",
        ),
        (
            {"left_out": ["emoji"]},
            "left_out[0]",
            "'emoji' is no kind of word to leave out; known are symbols, handles, punctuation",
        ),
        ({"left_out": "symbols"}, "left_out", "must be a list, not a string"),
    ],
)
def test_a_wrong_option_is_named_with_its_rule(
    live: Live, options: dict[str, object], field: str, message: str
) -> None:
    assert fields(live.post("/ner", {"text": "a", **options})) == {field: message}


@pytest.mark.parametrize("value", WRONG_SHARES)
def test_the_lowest_score_is_a_number_from_0_to_1(live: Live, value: str) -> None:
    message = fields(live.post("/ner", b'{"text": "a", "min_score": %s}' % value.encode()))["min_score"]
    assert message.startswith("must be a number from 0 to 1, not ")


def test_handles_are_left_out_where_the_request_says_so(live: Live) -> None:
    text = "@paris met @ada in Paris"
    plain = entities(live, text)
    assert {e["text"] for e in entities(live, text, left_out=["handles"])} <= {
        "met",
        "in",
        "Paris",
        "met in Paris",
    }
    assert entities(live, text, left_out=["symbols"]) == plain
