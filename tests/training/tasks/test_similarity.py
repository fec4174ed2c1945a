"""Similarity: one scale for scores, the losses of pairs and triplets, and runs that learn from them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.nn import functional as F

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.checkpoint.weights import read_checkpoint
from bert.data.examples import TextExample
from bert.errors import ConfigError
from bert.nn.losses import Loss
from bert.tasks.spec import TaskSpec
from bert.tasks.vectors import sentence_transformers
from bert.tokenizer import Tokenizer
from tests.support.topics import TOPICS, run_on_topics
from training.engine.distributed import Processes
from training.engine.records import read_steps
from training.finetune import finetune
from training.finetuning.batches import EpochBatches
from training.finetuning.loop import TaskObjective, WholeBatchObjective
from training.finetuning.scores import predict
from training.finetuning.trainer import FinetuneTrainer
from training.settings import EmbeddingSettings, FinetuneSettings
from training.tasks.base import collate
from training.tasks.similarity import SimilarityFinetuning


def examples(*scores: float) -> list[TextExample]:
    return [TextExample(f"Text {n}.", f"Other {n}.", score, str(n)) for n, score in enumerate(scores)]


def task() -> SimilarityFinetuning:
    return SimilarityFinetuning(Tokenizer.load(resolve_base(MINILM)), TaskSpec("similarity", max_tokens=32))


def test_the_highest_score_of_all_training_data_is_1() -> None:
    similarity = task()
    similarity.prepare([*examples(1.0, 5.0), *examples(0.0, 2.5)])
    assert [feature.target for feature in similarity.features(examples(1.0, 5.0))] == [0.2, 1.0]
    assert [feature.target for feature in similarity.features(examples(0.0, 2.5))] == [0.0, 0.5]


@pytest.mark.parametrize("scores", [(0.0, 0.0), (-2.0, -1.0)])
def test_scores_without_one_above_0_are_refused(scores: tuple[float, float]) -> None:
    with pytest.raises(
        ConfigError, match=r"the highest similarity of the training data is (0|-1); it must be"
    ):
        task().prepare(examples(*scores))


def test_a_run_scales_its_files_alike(begin: Callable[..., FinetuneTrainer], tmp_path: Path) -> None:
    files = []
    for name, scores in (("a", (1, 5)), ("b", (0, 2.5))):
        files.append({"path": tmp_path / f"{name}.csv"})
        rows = "".join(f"One {name}{n},Two {name}{n},{score}\n" for n, score in enumerate(scores))
        (tmp_path / f"{name}.csv").write_text("text,text_pair,label\n" + rows, encoding="utf-8")
    data = begin("similarity", train=files, max_tokens=32).loop.data
    assert isinstance(data, EpochBatches)
    assert [feature.target for feature in data.data.features] == [0.2, 1.0, 0.0, 0.5]


def settings_for_base(base: Path, folder: Path) -> FinetuneSettings:
    (folder / "train.csv").write_text(
        "text,text_pair,label\nOne,Two,1\nThree,Four,0\nFive,Six,0.5\n", encoding="utf-8"
    )
    return FinetuneSettings(
        task="similarity",
        base=str(base),
        output_dir=folder / "run",
        train=[{"path": folder / "train.csv"}],
        dev=[{"path": folder / "train.csv"}],
        max_tokens=32,
        epochs=1,
    )


def test_a_base_keeps_its_pooling_and_prompts_and_what_is_left_out_is_told(
    tiny_base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_base, base)
    kinds = ("Transformer", "Pooling", "Dense")
    modules = [
        {"idx": n, "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    for name, content in (
        ("modules", modules),
        ("1_Pooling/config", {"pooling_mode": ["cls", "max"]}),
        ("2_Dense/config", {"in_features": 64, "out_features": 8}),
        ("config_sentence_transformers", {"prompts": {"query": "query: "}, "default_prompt_name": "query"}),
    ):
        (base / name).parent.mkdir(exist_ok=True)
        (base / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    best = finetune(settings_for_base(base, tmp_path))
    assert "dense layers of" in caplog.text and "the prompt 'query' of" in caplog.text
    kept = read_checkpoint(best).spec
    assert (kept.pooling, kept.dense, kept.prompts) == ("cls+max", (), {"query": "query: "})
    assert kept.default_prompt_name == ""  # the texts of the training had none
    again = finetune(settings_for_base(best, tmp_path).model_copy(update={"output_dir": tmp_path / "again"}))
    assert read_checkpoint(again).spec.pooling == "cls+max"


def as_its_files_say(folder: Path, texts: list[str]) -> np.ndarray[Any, Any]:
    """Embed texts with transformers and what the files of sentence-transformers say."""
    kinds = [(m["type"].rpartition(".")[2], m["path"]) for m in content_of(folder / "modules.json")]
    assert [kind for kind, _ in kinds] == ["Transformer", "Pooling", "Normalize"] and kinds[0][1] == ""
    pooling = content_of(folder / kinds[1][1] / "config.json")
    flags = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    modes = pooling.get("pooling_mode") or [mode for flag, mode in flags.items() if pooling[flag]]
    longest = content_of(folder / "sentence_bert_config.json")["max_seq_length"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    read = tokenizer(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
    with torch.no_grad():
        states = transformers.AutoModel.from_pretrained(folder).eval()(**read).last_hidden_state
    mask = read["attention_mask"][..., None].float()
    pooled = {"cls": states[:, 0], "mean": (states * mask).sum(1) / mask.sum(1)}
    return F.normalize(torch.cat([pooled[mode] for mode in modes], -1), dim=-1).numpy()


def content_of(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("pooling", [["cls"], ["mean"], ["mean", "cls"]])
def test_sentence_transformers_is_told_how_the_embeddings_were_trained(
    pooling: list[str], tiny_base: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_base, base)
    spec = TaskSpec("similarity", pooling="+".join(pooling), prompts={"query": "query: "})
    sentence_transformers.write(base, spec, 32)
    best = finetune(settings_for_base(base, tmp_path))
    assert content_of(best / "config_sentence_transformers.json")["prompts"] == {"query": "query: "}
    texts = ["A cat sleeps.", "word " * 60, "Über alles"]
    checkpoint = read_checkpoint(best)
    ours = SimilarityFinetuning(checkpoint.tokenizer, checkpoint.spec)
    model = ours.model(checkpoint.config)
    model.load_state_dict({name: torch.tensor(w) for name, w in checkpoint.weights.items()}, strict=False)
    found = predict(model.eval(), ours._encode(texts), ours, Processes(0, 1, CPU))
    np.testing.assert_allclose(np.stack(found), as_its_files_say(best, texts), atol=1e-6)


CPU = torch.device("cpu")
LINES = [
    ("a red apple", "a fruit", "a lorry", "the moon"),
    ("a sleeping cat", "a tired animal", "a loud song"),
    ("a red apple", "something sweet"),
    ("heavy rain", "bad weather"),
]


def positive(*texts: str) -> TextExample:
    return TextExample(texts[0], texts[1], None, texts[0], texts[2:])


def learned(examples: list[TextExample], **settings: Any) -> SimilarityFinetuning:
    similarity = task()
    similarity.settings = EmbeddingSettings(**settings)
    similarity.prepare(examples)
    return similarity


def loss_of(examples: list[TextExample], vectors: torch.Tensor, **settings: Any) -> Loss:
    """Return the loss of one batch, whose texts have these vectors."""
    similarity = learned(examples, **settings)
    return similarity.loss(vectors, collate(similarity.features(examples), 0, CPU))


def drawn(count: int) -> torch.Tensor:
    return F.normalize(torch.randn(count, 8, generator=torch.Generator().manual_seed(0)), dim=-1)


def by_text() -> dict[str, np.ndarray[Any, Any]]:
    """Return the vector of each text of LINES; equal texts have one."""
    texts = list(dict.fromkeys(text for line in LINES for text in line))
    return dict(zip(texts, drawn(len(texts)).numpy().astype(np.float64), strict=True))


def mnrl_by_hand(first: int, second: int, pool: list[str], known: dict[str, set[str]]) -> float:
    """Return the summed loss of LINES, from the texts at place `first` to those at `second`."""
    vectors, total = by_text(), 0.0
    for line in LINES:
        own, right = vectors[line[first]], line[second]
        others = [text for text in pool if text not in known[line[first]]]
        powers = {text: np.exp(20 * own @ vectors[text]) for text in [right, *others]}
        total -= np.log(powers[right] / (powers[right] + sum(powers[text] for text in others)))
    return total


def test_mnrl_chooses_among_all_texts_of_the_batch_but_false_negatives() -> None:
    vectors = by_text()
    rows = torch.tensor(np.array([vectors[text] for line in LINES for text in line]), dtype=torch.float32)
    examples = [positive(*line) for line in LINES]
    pool = [line[1] for line in LINES] + [text for line in LINES for text in line[2:]]
    known = {line[0]: {other[1] for other in LINES if other[0] == line[0]} for line in LINES}
    forward = mnrl_by_hand(0, 1, pool, known)
    found = loss_of(examples, rows, loss="mnrl")
    assert found.targets == 4
    assert found.total.item() == pytest.approx(forward, rel=1e-5)
    known = {line[1]: {line[0]} for line in LINES}
    backward = mnrl_by_hand(1, 0, [line[0] for line in LINES], known)
    both = loss_of(examples, rows, loss="mnrl", symmetric=True)
    assert both.total.item() == pytest.approx((forward + backward) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"symmetric": True, "loss": "triplet"},
            r"symmetric \(True\) is read by mnrl, and the loss is 'triplet'",
        ),
        ({"margin": 0.5}, r"margin \(0.5\) is read by triplet, and the loss is 'mnrl'"),
        ({"scale": 30, "loss": "triplet"}, r"scale \(30.0\) is read by cosent and mnrl, and"),
        ({"whole_batch": True, "loss": "triplet"}, r"whole_batch \(True\) is read by cosent and mnrl, and"),
        (
            {"query_flops": 0.1},
            r"query_flops \(0.1\) is read by sparse, and the loss is 'mnrl' of similarity",
        ),
    ],
)
def test_settings_that_the_loss_does_not_read_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        learned([positive(*line) for line in LINES[:2]], **given)


def by_processes(batch_size: int, parts: int, processes: int, pairs: int) -> SimilarityFinetuning:
    """Return a task whose batches are cut into parts and shared by processes; an epoch draws so many pairs."""
    values: dict[str, Any] = {"batch_size": batch_size, "accumulation_steps": parts, "output_dir": Path("x")}
    similarity = task()
    similarity.configure(FinetuneSettings(task="similarity", **values), {}, pairs, processes)
    return similarity


@pytest.mark.parametrize(
    ("batch_size", "parts", "processes", "pairs", "left"),
    [(1, 1, 1, 100, 1), (4, 4, 1, 100, 1), (8, 1, 8, 100, 1), (12, 1, 8, 100, 1), (4, 1, 8, 100, 0), (64, 1, 8, 9, 1)],
)  # fmt: skip
def test_pairs_that_have_nothing_to_be_compared_with_are_refused(
    batch_size: int, parts: int, processes: int, pairs: int, left: int
) -> None:
    similarity = by_processes(batch_size, parts, processes, pairs)
    settings = (
        rf"batch_size {batch_size} \({pairs} pairs an epoch\), {processes} process(es)? "
        f"and accumulation_steps {parts} leave it {left}"
    )
    with pytest.raises(ConfigError, match=rf"'mnrl' compares .* must be at least 2: {settings}"):
        similarity.prepare([positive(*line[:2]) for line in LINES])
    similarity.prepare([positive(*line) for line in LINES])  # each is compared with its own negatives


def test_two_pairs_in_each_process_are_enough() -> None:
    by_processes(16, 1, 8, 100).prepare([positive(*line[:2]) for line in LINES])
    by_processes(8, 2, 2, 100).prepare([positive(*line[:2]) for line in LINES])


def test_each_negative_of_a_triplet_counts() -> None:
    rows, examples = drawn(7), [positive(*line) for line in LINES[:2]]
    v = rows.numpy()
    lacking = [0.2 + v[a] @ v[n] - v[a] @ v[p] for a, p, n in ((0, 1, 2), (0, 1, 3), (4, 5, 6))]
    found = loss_of(examples, rows, loss="triplet")
    assert found.targets == 3
    assert found.total.item() == pytest.approx(sum(max(0.0, x) for x in lacking), rel=1e-5)


def test_cosent_needs_no_scale_of_scores() -> None:
    pairs = [TextExample(f"a {n}", f"b {n}", score, str(n)) for n, score in enumerate((-3.0, 0.0, -1.0))]
    rows = drawn(6)
    cosines = (rows[::2] * rows[1::2]).sum(-1).tolist()
    wrong = [np.exp(20 * (cosines[low] - cosines[high])) for low, high in ((0, 1), (0, 2), (2, 1))]
    assert loss_of(pairs, rows, loss="cosent").mean.item() == pytest.approx(np.log(1 + sum(wrong)), rel=1e-5)


def test_shorter_embeddings_are_trained_as_those_of_a_narrower_model() -> None:
    rows, examples = drawn(7), [positive(*line) for line in LINES[:2]]
    short = F.normalize(rows[:, :4], dim=-1)
    alone = [loss_of(examples, vectors).total for vectors in (rows, short)]
    both = loss_of(examples, rows, dimensions=[4])
    assert both.targets == 2
    assert both.total.item() == pytest.approx(float(sum(alone)) / 2, rel=1e-5)


def test_parts_of_a_batch_add_up_and_have_their_own_negatives() -> None:
    examples = [positive(f"text {n}", f"other {n}") for n in range(4)]
    rows = drawn(8)
    parts = [loss_of(examples[:2], rows[:4]), loss_of(examples[2:], rows[4:])]
    whole = loss_of(examples, rows)
    assert sum(part.targets for part in parts) == whole.targets == 4
    assert sum(part.total.item() for part in parts) < whole.total.item()  # fewer to choose from


@pytest.mark.parametrize(
    ("examples", "loss", "message"),
    [
        (examples(1.0, 0.0), "mnrl", "have scores: take cosine or cosent"),
        ([positive("a", "b")], "cosent", "have no scores: take mnrl or triplet"),
        ([positive("a", "b", "c"), positive("d", "e")], "triplet", "1 of 2 have none, the first of them d"),
        ([*examples(1.0), positive("a", "b")], "auto", "1 pairs of the training data have scores and 1 have"),
    ],
)
def test_data_that_the_loss_cannot_learn_from_are_refused(
    examples: list[TextExample], loss: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        learned(examples, loss=loss)


def test_embeddings_are_no_setting_of_another_task() -> None:
    with pytest.raises(
        ValueError, match="embeddings are learned for similarity and sparse, and task is 'ner'"
    ):
        FinetuneSettings(task="ner", output_dir=Path("x"), embeddings={"loss": "cosent"})


def test_dimensions_that_the_base_does_not_have_are_refused(tiny_base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"embeddings\.dimensions are \[4096\], and the base has"):
        run_on_topics(tiny_base, tmp_path, embeddings={"dimensions": [4096]})


@pytest.mark.parametrize("loss", ["mnrl", "triplet"])
def test_a_run_learns_from_triplets(tiny_base: Path, tmp_path: Path, loss: str) -> None:
    best = run_on_topics(
        tiny_base, tmp_path, embeddings={"loss": loss, "dimensions": [8]}, accumulation_steps=2
    )
    report = json.loads((tmp_path / "run" / "report" / "report.json").read_text(encoding="utf-8"))
    assert report["metric"] == "triplet_accuracy"
    assert report["data"][0]["labels"] == {"with negatives": 64}
    assert report["dev"]["dev"]["baseline"]["scores"]["triplet_accuracy"] == 0.5
    scores = TaskSpec.read(best).scores["dev"]
    assert scores["triplet_accuracy"] > 0.9, scores
    assert set(scores) == {"triplet_accuracy", "recall_at_1", "mrr"}


@pytest.mark.parametrize("loss", ["mnrl", "cosent"])
def test_parts_that_compare_the_whole_batch_learn_as_one_part_does(
    tiny_base: Path, tmp_path: Path, loss: str
) -> None:
    """With dropout, which both passes over a part must draw alike, the gradients stay those of one vector a text."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    embeddings = {"loss": loss, "dimensions": [8]}
    data = {}
    if loss == "cosent":
        rows = [
            f"{a},{b},{n % 3}" for n, (a, b) in enumerate(pairwise([w for t in TOPICS for w in t.split()]))
        ]
        (tmp_path / "scored.csv").write_text("text,text_pair,label\n" + "\n".join(rows), encoding="utf-8")
        data = {"train": [{"path": tmp_path / "scored.csv"}], "dev": [{"path": tmp_path / "scored.csv"}]}
    run_on_topics(tiny_base, tmp_path, output_dir=whole, embeddings=embeddings, epochs=1, **data)
    run_on_topics(
        tiny_base,
        tmp_path,
        output_dir=parts,
        embeddings={**embeddings, "whole_batch": True},
        accumulation_steps=3,
        epochs=1,
        **data,
    )
    (mine, *_), (theirs, *_) = (
        [(line["loss"], line["grad_norm"]) for line in read_steps(out / "log.jsonl")]
        for out in (parts, whole)
    )
    assert mine == pytest.approx(theirs, rel=1e-4)
    for name, weight in load_file(parts / "best/model.safetensors").items():
        torch.testing.assert_close(
            weight, load_file(whole / "best/model.safetensors")[name], atol=2e-5, rtol=0
        )


def test_both_passes_over_a_part_draw_the_same_dropout(tiny_base: Path, tmp_path: Path) -> None:
    config = read_checkpoint(tiny_base).config
    similarity = learned([positive(*line) for line in LINES], whole_batch=True)
    model = similarity.model(replace(config, hidden_dropout_prob=0.5)).train()
    batch = collate(similarity.features([positive(*line) for line in LINES]), 0, torch.device("cpu"))
    objective = WholeBatchObjective(model, similarity, Processes(0, 1, torch.device("cpu")))
    torch.manual_seed(1)
    objective.begin([batch], stand_in=False, done=0.5)
    compared = objective(batch)["loss"]
    compared.total.backward()
    found = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    torch.manual_seed(1)
    alone = TaskObjective(model, similarity, None)(batch)["loss"]
    alone.total.backward()
    assert compared.total.item() == pytest.approx(alone.total.item())
    assert compared.targets == alone.targets
    for name, each in model.named_parameters():
        if each.grad is not None:
            torch.testing.assert_close(found[name], each.grad, atol=1e-5, rtol=1e-4)


def test_pairs_of_the_whole_batch_are_compared_however_it_is_cut() -> None:
    values: dict[str, Any] = {"batch_size": 4, "accumulation_steps": 4, "output_dir": Path("x")}
    similarity = task()
    embeddings = {"whole_batch": True}
    similarity.configure(FinetuneSettings(task="similarity", embeddings=embeddings, **values), {}, 100, 2)
    similarity.prepare([positive(*line[:2]) for line in LINES])
