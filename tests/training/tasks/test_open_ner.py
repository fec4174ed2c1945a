"""Entities of any labels: what a step asks, the loss of GLiNER, and folders that it and the service read.

Loss, gradients and entities are compared with those of `gliner` 0.2.29 where BERT_GLINER_PYTHON is the Python of an
environment that has it.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from bert.bundle import read_bundle
from bert.checkpoint.weights import read_checkpoint
from bert.data.examples import EntitiesExample
from bert.errors import ConfigError, UnsupportedModelError
from bert.nn.losses import focal
from bert.tasks.open_ner.decode import Choosing
from bert.tasks.open_ner.inputs import word_bounds
from bert.tasks.spec import TaskSpec
from model_export.cli import main
from model_export.verify.precision import Fp32
from model_export.verify.texts import make_text
from tests.support.finetuning import short_run
from tests.support.open_ner import find, write_gliner
from training.engine.device import StepNumbers
from training.engine.train_loop import StepData, TrainLoop
from training.finetune import finetune
from training.finetuning.model import of_checkpoint
from training.settings import FinetuneSettings
from training.tasks.base import collate
from training.tasks.open_ner import OpenNerFinetuning

PYTHON = os.environ.get("BERT_GLINER_PYTHON", "")
CPU = torch.device("cpu")
ROWS: list[dict[str, Any]] = [
    {
        "tokenized_text": ["angela", "met", "merkel", "in", "berlin"],
        "ner": [[0, 2, "person"], [2, 2, "name"], [4, 4, "city"]],
    },
    {"tokenized_text": ["the", "film", "is", "great"], "ner": [[1, 1, "work"]]},
    {"tokenized_text": ["nothing", "here"], "ner": []},
    {"tokenized_text": ["films", "about", "berlin", "and", "angela", "merkel"], "ner": [[2, 2, "city"], [4, 5, "person"]]},
]  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "open.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)), "utf-8")
    return file


def run(base: Path | str, folder: Path, data: Path, **changes: Any) -> FinetuneSettings:
    values = {"train": [data], "dev": [data], "batch_size": 2, "open_ner": {"width": 24, "max_width": 4}}
    return short_run("open_ner", Path(base), folder, **{**values, **changes})


class InOrder:
    """Draws what comes first, and as many negative labels as may be."""

    def permutation(self, count: int) -> Any:
        return np.arange(count)

    def integers(self, low: int, high: int, *, endpoint: bool) -> int:
        return high


def task_of(folder: Path, **options: Any) -> tuple[Any, OpenNerFinetuning]:
    model, task = of_checkpoint(read_checkpoint(folder))
    assert isinstance(task, OpenNerFinetuning)
    task.options = task.options.model_copy(update=options)
    return model, task


def example(row: dict[str, Any], **fields: Any) -> EntitiesExample:
    text = " ".join(row["tokenized_text"])
    return EntitiesExample(text, tuple(word_bounds(text)), tuple(map(tuple, row["ner"])), "1", **fields)


def labels_of(task: OpenNerFinetuning, encoding: Any) -> list[str]:
    ids = encoding.ids.tolist()
    before = ids[1 : ids.index(task.prompt.separator_id)]
    parts = " ".join(map(str, before)).split(str(task.prompt.label_id))[1:]
    return [task.tokenizer.decode([int(n) for n in part.split()]) for part in parts]


def test_a_step_asks_for_labels_of_the_text_and_others_of_the_batch(tmp_path: Path) -> None:
    write_gliner(tmp_path)
    _, task = task_of(tmp_path, negatives=1)
    features = task.features([example(row) for row in ROWS])
    first, second, third, _ = (labels_of(task, f.encodings[0]) for f in task.drawn(features, InOrder()))  # type: ignore[arg-type]
    assert first == ["person", "name", "city", "work"]
    assert second == ["work", "city"] and third == ["city"]
    drawn = [
        [labels_of(task, f.encodings[0]) for f in task.drawn(features, np.random.default_rng(n))]
        for n in range(8)
    ]
    assert len({str(labels) for labels in drawn}) > 4
    assert all({"person", "name", "city"} <= set(labels[0]) and len(labels[2]) == 1 for labels in drawn)


def test_given_labels_and_negatives_are_asked_and_limits_keep_what_is_the_texts_own(tmp_path: Path) -> None:
    write_gliner(tmp_path)
    _, task = task_of(tmp_path)
    rows = [example(ROWS[1], labels=("work", "date")), example(ROWS[1], negatives=("date", "law"))]
    asked = [labels_of(task, f.encodings[0]) for f in task.drawn(task.features(rows), InOrder())]  # type: ignore[arg-type]
    assert asked == [["work", "date"], ["work", "date", "law"]]
    task.options = task.options.model_copy(update={"max_labels": 2})
    many = task.drawn(task.features([example(ROWS[0], negatives=("date", "law"))]), InOrder())  # type: ignore[arg-type]
    assert labels_of(task, many[0].encodings[0]) == ["person", "name"] and len(many[0].target.places) == 2


def test_a_long_text_is_read_in_windows_that_leave_room_for_labels(tmp_path: Path) -> None:
    write_gliner(tmp_path)
    _, task = task_of(tmp_path)
    words = ["berlin", "angela"] * 60
    row = {"tokenized_text": words, "ner": [[n, n, "city"] for n in range(0, 120, 2)]}
    features = task.drawn(task.features([example(row)]), np.random.default_rng(1))
    assert len(features) > 2 and max(f.tokens for f in features) <= task.spec.max_tokens
    for feature in features:
        ids = [tuple(word) for word in feature.target.words]
        assert all(ids[a] == ids[feature.target.places[0][0]] for a, _, _ in feature.target.places)


def test_without_parameters_the_focal_loss_is_the_cross_entropy() -> None:
    logits, targets = torch.randn(4, 5) * 4, (torch.rand(4, 5) < 0.3).float()
    counted = torch.rand(4, 5) < 0.8
    plain = torch.nn.functional.binary_cross_entropy_with_logits(
        logits[counted], targets[counted], reduction="sum"
    )
    assert torch.allclose(focal(logits, targets, counted), plain)


@pytest.mark.parametrize("mode", ["markerV0", "marker", "token_level"])
def test_scores_in_torch_are_those_of_the_exported_graph(mode: str, tmp_path: Path) -> None:
    write_gliner(tmp_path, mode)
    model, task = task_of(tmp_path)
    features = task.drawn(task.features([example(row) for row in ROWS]), np.random.default_rng(0))
    batch = collate(features, task.tokenizer.pad_id, CPU)
    with torch.no_grad():
        logits = task.logits(model, batch).numpy()
    graph = Fp32(read_checkpoint(tmp_path), ()).run([make_text(f.encodings[0], "open_ner") for f in features])
    for scores, feature, rows in zip(logits, features, graph, strict=True):
        words, labels = len(feature.target.words), len(labels_of(task, feature.encodings[0]))
        ours = scores[:words, :labels].reshape(rows.shape)
        exists = ours > -100
        assert np.allclose(ours[exists], rows[exists], atol=2e-5) and (rows[~exists] <= -10).all()
        assert (scores[words:] == -100).all() and (scores[:, labels:] == -100).all()


def test_a_bert_becomes_an_open_ner_that_export_takes(tiny_base: Path, data: Path, tmp_path: Path) -> None:
    rows = [{**row, "ner": [[a, b, "thing"] for a, b, _ in row["ner"]]} for row in ROWS[1:]]
    data.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    changes = {"eval_every_steps": 1000, "open_ner": {"width": 24, "max_width": 4, "dropout": 0.0}}
    best = finetune(run(tiny_base, tmp_path / "run", data, **changes, epochs=60, learning_rate=2e-3))
    spec = TaskSpec.read(best)
    assert spec.scores["open"]["f1"] > 0.9 and spec.examples[0]["labels"]
    again = finetune(run(best, tmp_path / "again", data, epochs=1, learning_rate=1e-5))  # now as a GLiNER
    assert TaskSpec.read(again).scores["open"]["f1"] > 0.9
    arguments = ["--checkpoint", str(again), "--out", str(tmp_path / "b"), "--precision", "fp32"]
    assert main(arguments) == 0
    assert read_bundle(tmp_path / "b").manifest.task.scores["open"]["f1"] > 0.9
    checkpoint = read_checkpoint(again)
    found = find(checkpoint, Fp32(checkpoint, ()), ["the film is great"], ["thing"], Choosing())
    assert [(e.text, e.label) for e in found[0]] == [("film", "thing")]


def test_a_run_that_broke_off_goes_on_to_the_same_bits(
    tiny_base: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"epochs": 3, "save_every_steps": 2, "dropout": 0.1}
    straight = load_file(finetune(run(tiny_base, tmp_path / "a", data, **changes)) / "model.safetensors")
    real = TrainLoop.step

    def breaks(loop: TrainLoop, step: StepData) -> StepNumbers:
        if loop.state.step == 3:
            raise KeyboardInterrupt
        return real(loop, step)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TrainLoop, "step", breaks)
        finetune(run(tiny_base, tmp_path / "b", data, **changes))
    again = load_file(finetune(run(tiny_base, tmp_path / "b", data, **changes)) / "model.safetensors")
    assert all((straight[name] == tensor).all() for name, tensor in again.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": {}}, "not for open_ner"),
        ({"labels": ["a"]}, "not for open_ner"),
        ({"open_ner": {"alpha": 2}}, "less than or equal to 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        run("base", tmp_path, tmp_path, **changes)
    with pytest.raises(ValueError, match="open_ner is for the task of that name"):
        short_run("ner", tmp_path, tmp_path, open_ner={"gamma": 2})


def test_a_gliner_is_a_base_for_open_ner_only(tmp_path: Path) -> None:
    write_gliner(tmp_path / "m")
    with pytest.raises(ConfigError, match="is a GLiNER, from which only open_ner is trained"):
        finetune(short_run("classification", tmp_path / "m", tmp_path / "run"))


def test_a_body_that_is_not_read_is_refused_by_name(tiny_base: Path, data: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_base / "config.json").read_text("utf-8"))
    base = tmp_path / "base"
    base.mkdir()
    for file in tiny_base.iterdir():
        (base / file.name).write_bytes(file.read_bytes())
    (base / "config.json").write_text(json.dumps({**config, "model_type": "electra"}), "utf-8")
    with pytest.raises(UnsupportedModelError, match="its body is 'electra'; read are bert"):
        finetune(run(f"random:{base}", tmp_path / "run", data))


@pytest.mark.skipif(not PYTHON, reason="BERT_GLINER_PYTHON names no Python that has gliner 0.2.29")
@pytest.mark.parametrize("mode", ["markerV0", "marker", "token_level"])
@pytest.mark.parametrize("is_plain", [True, False])
def test_loss_and_gradients_are_those_of_gliner(
    mode: str, is_plain: bool, tiny_base: Path, data: Path, tmp_path: Path
) -> None:
    """A folder that a run wrote, so that `gliner` loads it, finds its entities, and has its loss and gradients."""
    changes = {"open_ner": {"width": 24, "max_width": 4, "span_mode": mode, "dropout": 0.0}}
    folder = finetune(run(tiny_base, tmp_path / "run", data, epochs=20, learning_rate=3e-3, **changes))
    parameters = (
        {} if is_plain else {"alpha": 0.75, "gamma": 2.0, "prob_margin": 0.05, "label_smoothing": 0.1}
    )
    names = {"prob_margin": "margin", "label_smoothing": "smoothing"}
    model, task = task_of(folder, **{names.get(name, name): value for name, value in parameters.items()})
    examples = [
        {**row, "ner_labels": ["city", "person", "work", "name"][: 4 - n]} for n, row in enumerate(ROWS)
    ]
    texts = [" ".join(row["tokenized_text"]) for row in ROWS]
    asked: dict[str, Any] = {
        "examples": examples,
        "loss": parameters,
        "texts": texts,
        "labels": ["person", "city"],
        "threshold": 0.1,
    }
    script = Path(__file__).parents[2] / "support" / "gliner_training.py"
    command = [PYTHON, "-P", str(script), str(folder)]
    done = subprocess.run(
        command, input=json.dumps(asked), text=True, check=True, stdout=subprocess.PIPE, timeout=300
    )
    theirs = json.loads(done.stdout)
    rows = [example(row, labels=tuple(each["ner_labels"])) for row, each in zip(ROWS, examples, strict=True)]
    batch = collate(task.drawn(task.features(rows), InOrder()), task.tokenizer.pad_id, CPU)  # type: ignore[arg-type]
    loss = task.loss(task.logits(model, batch), batch)
    loss.total.backward()
    assert loss.total.item() == pytest.approx(theirs["loss"], rel=1e-5)
    gradients = load_file(folder / "gradients.safetensors")
    compared = 0
    for name, parameter in model.named_parameters():
        own = (
            name.replace("bert.", "token_rep_layer.bert_layer.model.", 1)
            if name.startswith("bert.")
            else name
        )
        if own in gradients and parameter.grad is not None:
            scale = max(1.0, float(np.abs(gradients[own]).max()))
            assert np.abs(parameter.grad.numpy() - gradients[own]).max() < 1e-5 * scale, name
            compared += 1
    assert compared == len([name for name in gradients if "pooler" not in name]) > 20
    checkpoint = read_checkpoint(folder)
    found = find(checkpoint, Fp32(checkpoint, ()), texts, asked["labels"], Choosing(0.1))
    for ours, expected in zip(found, theirs["entities"], strict=True):
        assert [[e.start, e.end, e.label] for e in ours] == [each[:3] for each in expected]
        assert [e.score for e in ours] == pytest.approx([each[3] for each in expected], abs=1e-4)
