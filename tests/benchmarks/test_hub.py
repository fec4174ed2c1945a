"""Checkpoints compared with transformers as `benchmarks.hub` does it, here on tiny random ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hub import __main__ as command
from benchmarks.hub.answers import Answer, Comparison, compare
from benchmarks.hub.published import HEAD, read_list, table
from benchmarks.hub.texts import items
from bert.tasks.registry import TASKS
from tests.support.checkpoints import SPECS
from tests.support.documents import ROOT, text_of
from tests.support.families import relative
from tests.support.hub_process import hub_variables
from tests.support.local_hub import local_hub
from tests.support.open_ner import write_gliner
from tests.support.tokenizers import write_tokenizer

PAGE = ROOT / "docs/models.md"
TEXTS = 12
MODELS = [
    ("classification", "modernbert", "bpe_modern"),
    ("multi_label", "roberta", "bpe"),
    ("regression", "xlm-roberta", "unigram"),
    ("ner", "electra", "wordpiece"),
    ("ner", "roberta", "bpe"),
    ("ner", "deberta-v2", "unigram_deberta"),
    ("qa", "mpnet", "wordpiece_mpnet"),
    ("qa", "camembert", "unigram"),
    ("qa", "modernbert", "bpe_modern"),
    ("similarity", "mpnet", "bpe"),
    ("multiple_choice", "ernie", "wordpiece"),
    ("fill_mask", "albert", "unigram_albert"),
    ("regression", "gte", "unigram"),
    ("ner", "modernbert", "gemma"),
    pytest.param(*("ner", "xlm-roberta", "unigram"), marks=pytest.mark.soak),
    pytest.param(*("ner", "albert", "unigram_albert"), marks=pytest.mark.soak),
    pytest.param(*("ner", "modernbert", "bpe_modern"), marks=pytest.mark.soak),
    pytest.param(*("qa", "roberta", "bpe"), marks=pytest.mark.soak),
    pytest.param(*("qa", "albert", "unigram_albert"), marks=pytest.mark.soak),
    pytest.param(*("qa", "deberta", "bpe"), marks=pytest.mark.soak),
    pytest.param(*("fill_mask", "modernbert", "bpe_modern"), marks=pytest.mark.soak),
    pytest.param(*("fill_mask", "nomic_bert", "wordpiece"), marks=pytest.mark.soak),
]
"""Task, family and tokenizer: each of these at least once, and offsets with every tokenizer."""


def write(folder: Path, name: str, model_type: str, kind: str) -> Path:
    """Write a random checkpoint with a tokenizer of its own."""
    folder.mkdir()
    size, is_roberta = write_tokenizer(folder, kind), kind in ("bpe", "unigram", "wordpiece_mpnet")
    shape = {"vocab_size": size, "pad_token_id": int(is_roberta), "max_position_embeddings": 514}
    relative(model_type, SPECS[name], **shape).save_pretrained(folder)
    return folder


def test_the_page_has_the_table_of_the_list() -> None:
    assert HEAD in text_of(PAGE)
    assert text_of(PAGE).partition(HEAD)[2].strip() == table(read_list()).partition(HEAD)[2].strip()


def test_the_list_is_of_known_kinds_and_names_each_model_once() -> None:
    models = read_list()
    assert len({model.name for model in models}) == len(models) >= 45
    assert {model.status for model in models} <= {"read", "not yet", "refused"}
    assert {model.files for model in models} == {"safetensors", "pickle", "not seen"}
    assert {model.task for model in models} <= TASKS.keys()


def test_a_model_that_transformers_lacks_is_exported_and_not_compared(tmp_path: Path) -> None:
    write_gliner(tmp_path)
    outcome = command.check(str(tmp_path), None, "fp32", 1)
    assert outcome.expected and (outcome.task, outcome.texts) == ("open_ner", 0), outcome
    assert outcome.verdict == "exported; transformers has no such model"


@pytest.mark.parametrize("name", SPECS)
def test_there_are_200_different_texts_for_each_task(name: str) -> None:
    found = [json.dumps(item) for item in items(SPECS[name])]
    assert len(set(found)) == len(found) >= 200


def test_another_answer_counts_and_one_on_the_edge_does_not() -> None:
    asked = [{"text": "a"}, {"text": "b"}, {"text": "c"}]
    ours = [Answer("yes", (0.9, 0.1)), Answer("no", (0.4, 0.6)), Answer("no", (0.5, 0.5))]
    theirs = [
        Answer("yes", (0.8995, 0.1005)),
        Answer("yes", (0.7, 0.3), 0.4),
        Answer("yes", (0.5, 0.5), 1e-6),
    ]
    found = compare(asked, ours, theirs)
    assert (found.texts, found.different, found.example) == (3, 1, "{'text': 'b'}: no, transformers yes")
    assert found.largest_difference == pytest.approx(5e-4)
    assert not found.is_close() and found.is_close(different=0.4)
    assert not Comparison(1, 0, float("inf")).is_close()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model_type", "kind"), MODELS)
def test_a_checkpoint_of_each_task_answers_as_transformers(
    tmp_path: Path, name: str, model_type: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "bert", name, model_type, kind)
    assert (
        command.main(
            [str(tmp_path / "bert"), "--precision", "fp32", "--texts", str(TEXTS), "--out", str(tmp_path)]
        )
        == 0
    )
    (outcome,) = json.loads((tmp_path / "hub_models.json").read_text(encoding="utf-8"))
    assert (outcome["verdict"], outcome["texts"], outcome["different"]) == ("same", TEXTS, 0)
    assert outcome["largest_difference"] < 1e-3
    assert (
        (tmp_path / "hub_models.md")
        .read_text(encoding="utf-8")
        .endswith(capsys.readouterr().out.splitlines()[-1] + "\n")
    )


@pytest.mark.slow
def test_names_of_a_hub_are_downloaded_and_the_refused_stand_there_with_their_sentence(
    tmp_path: Path,
) -> None:
    write(tmp_path / "good", "classification", "roberta", "bpe")
    other = write(tmp_path / "other", "classification", "bert", "wordpiece")
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    (other / "config.json").write_text(json.dumps({**config, "model_type": "luke"}), encoding="utf-8")
    command_line = [sys.executable, "-m", "benchmarks.hub", "org/good", "org/other", "org/none"]
    with local_hub() as hub:
        hub.add("org/good", tmp_path / "good")
        hub.add("org/other", other)
        run = subprocess.run(
            [*command_line, "--texts", str(TEXTS), "--out", str(tmp_path)],
            env=hub_variables(hub, tmp_path / "home"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    good, refused, unknown = json.loads((tmp_path / "hub_models.json").read_text(encoding="utf-8"))
    assert (good["name"], good["verdict"], good["texts"]) == ("org/good", "same", TEXTS)
    assert good["precision"] in ("fp32", "int8")
    assert refused["verdict"].startswith("refused: ") and "luke" in refused["verdict"]
    assert "no model org/none" in unknown["verdict"]
