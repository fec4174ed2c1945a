"""What each baseline is sent, and the batches that the tuned ones make by hand."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serve.baselines.padded import MOST_IN_GROUP, SLACK_TOKENS, STRETCH, groups
from benchmarks.serve.baselines.registry import CONTENDERS, CoreSplit, Place, shapes
from benchmarks.serve.compare import chosen, parse, planned
from benchmarks.serve.load.answers import Prediction
from benchmarks.serve.load.texts import made_up_texts, read_documents
from benchmarks.serve.load.workloads import LIST, LIST_TEXTS, NAMES, TEXT, workload

URL = "http://127.0.0.1:1"
SERVERS = {name: each for name, each in CONTENDERS.items() if each.serves}


def body(message: bytes) -> object:
    return json.loads(message.partition(b"\r\n\r\n")[2])


@given(st.lists(st.integers(2, 256), max_size=80))
def test_groups_hold_every_text_once_and_like_lengths_together(lengths: list[int]) -> None:
    found = groups(lengths)
    assert sorted(number for group in found for number in group) == list(range(len(lengths)))
    for group in found:
        inside = [lengths[number] for number in group]
        assert len(group) <= MOST_IN_GROUP and inside == sorted(inside)
        assert inside[-1] <= STRETCH * inside[0] + SLACK_TOKENS


def test_whoever_has_a_form_for_lists_gets_one_message() -> None:
    job = tuple(f"text {number}" for number in range(LIST_TEXTS))
    for name, baseline in SERVERS.items():
        if baseline.takes(LIST):
            (request,) = baseline.requests(URL, LIST, [job])
            assert len(request) == (1 if LIST in baseline.forms else LIST_TEXTS), name


def test_a_text_is_sent_and_read_in_the_form_of_each() -> None:
    assert body(CONTENDERS["ours"].requests(URL, TEXT, [("hi",)])[0][0]) == {"text": "hi", "truncate": True}
    assert body(CONTENDERS["infinity"].requests(URL, TEXT, [("hi",)])[0][0]) == {
        "model": "model",
        "input": ["hi"],
    }
    answer = {"label": "good", "score": 0.75}
    scores = [{"label": "bad", "score": 0.25}, answer]
    for name, found in {
        "mosec": answer,
        "litserve": answer,
        "pipeline": [answer],
        "ours": {"results": [answer]},
        "infinity": {"data": [scores]},
        "vllm": {"data": [{"label": "good", "probs": [0.25, 0.75]}]},
    }.items():
        assert CONTENDERS[name].read(TEXT, [found]) == [Prediction("good", 0.75)], name


def test_commands_say_port_and_shape() -> None:
    place = Place(Path("/m"), Path("/b"), Path("/8"), "python", "infinity-python", ("--batch-tokens", "256"))
    for name, baseline in SERVERS.items():
        command = baseline.command(place, CoreSplit(2, 1), 1234)
        assert "1234" in command, name
        assert ("/8" in command) == baseline.needs_int8, name
    assert CONTENDERS["ours"].command(place, CoreSplit(1, 2), 1)[-1] == "256"
    assert "2" in CONTENDERS["mosec-tuned"].command(place, CoreSplit(2, 1), 1)


def test_only_the_tuned_ones_try_both_shapes() -> None:
    tried = {name for name, each in CONTENDERS.items() if len(shapes(each, 2)) == 2}
    assert tried == {"mosec-unbatched", "mosec-tuned", "litserve-tuned"}
    assert all(len(shapes(each, 1)) == 1 for each in CONTENDERS.values())


def test_all_who_can_take_part_and_the_rest_are_named() -> None:
    names, sentences = chosen("all", workload("mixed", None), has_int8=False)
    assert "ours" in names and "ours-int8" not in names and "reader" not in names
    assert any("int8-bundle" in sentence and "ours-int8" in sentence for sentence in sentences)
    assert "No --vllm-python was given for vllm, vllm-bf16." in sentences and "vllm" not in names
    assert "vllm" in chosen("all", workload("mixed", None), has_int8=False, has_vllm=True)[0]
    names, sentences = chosen("all", workload("documents", None, documents=2), has_int8=True)
    assert set(names) == {"engine", "engine-int8", "reader", "ours", "ours-int8"}
    _, sentences = chosen("mosec,ours", workload("lists", None), has_int8=True)
    assert sentences == ["No form for lists, so each text is a request, all of a list at once: mosec."]
    with pytest.raises(SystemExit, match="no such baseline: nobody"):
        chosen("nobody", workload("mixed", None), has_int8=True)


def test_workloads_are_the_same_each_time() -> None:
    for name in NAMES:
        assert workload(name, None, 130, 2).jobs == workload(name, None, 130, 2).jobs
    assert [len(job) for job in workload("lists", None, 130).jobs] == [LIST_TEXTS, LIST_TEXTS]


def test_mixed_texts_are_longer_than_sentences() -> None:
    words = [len(text.split()) for text in made_up_texts(2000)]
    assert max(len(job[0].split()) for job in workload("sentences", None).jobs) <= 28 < max(words)


def test_texts_of_a_file_are_all_taken(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("one\n\n two\n", encoding="utf-8")
    assert list(workload("mixed", tmp_path / "texts").jobs) == [("one",), ("two",)]
    with pytest.raises(ValueError, match="at least 64 texts"):
        workload("lists", tmp_path / "texts")


def test_a_squad_file_gives_whole_articles(tmp_path: Path) -> None:
    asked = {"context": "It rained.", "qas": [{"question": "Did it rain?"}]}
    article = {"paragraphs": [{"context": "Before.", "qas": []}, asked]}
    (tmp_path / "squad.json").write_text(json.dumps({"data": [article, {"paragraphs": []}]}))
    assert read_documents(tmp_path / "squad.json") == [("Did it rain?", "Before.\nIt rained.")]


def test_the_plan_takes_the_workloads_connections_where_none_are_given() -> None:
    work = workload("lists", None)
    assert planned(parse([]), work).connections == (1, 8)
    assert planned(parse(["--connections", "2,4"]), work).connections == (2, 4)


def test_every_contender_is_described() -> None:
    assert all(re.fullmatch(r"[a-z0-9-]+", name) and each.title for name, each in CONTENDERS.items())
