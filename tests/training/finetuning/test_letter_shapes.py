"""Letter shapes from the settings of a run to the bundle that is served."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert.bundle import read_bundle
from bert.checkpoint.weights import read_checkpoint
from bert.errors import ConfigError
from bert.nn.checkpoint import load_into
from bert.tasks.spec import TaskSpec
from bert.text.letter_shapes import SHAPES
from model_export.cli import main as export
from model_export.reference import Reference
from tests.support.families import write_relative
from training.finetune import finetune
from training.settings import FinetuneSettings
from training.tasks import task_class

Make = Callable[..., FinetuneSettings]
SEGMENTS = "bert.embeddings.token_type_embeddings.weight"


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_what_is_trained_is_what_is_exported(
    lora: dict[str, int] | None, trained: Callable[..., Path], tmp_path: Path
) -> None:
    best = trained("ner", lora=lora, letter_shapes=True, left_out=["symbols"], precision="fp32")
    spec, checkpoint = TaskSpec.read(best), read_checkpoint(best)
    assert (spec.letter_shapes, spec.viterbi, spec.left_out) == (True, True, ("symbols",))
    table = checkpoint.weights[SEGMENTS]
    assert len(table) == checkpoint.config.type_vocab_size == SHAPES
    assert len(np.unique(table, axis=0)) > 2  # the shapes of the data have learned something
    (pieces,) = checkpoint.tokenizer.pieces(["Ada met NATO"])
    encoding = checkpoint.tokenizer.single(pieces)
    assert set(encoding.segment_ids.tolist()) == {0, 1, 2, 3}
    if lora is None:
        model = task_class("ner")(checkpoint.tokenizer, spec).model(checkpoint.config).eval()
        assert load_into(model, best) == []
        rows = [torch.tensor(x[None].astype(np.int64)) for x in (encoding.ids, encoding.segment_ids)]
        with torch.no_grad():
            expected = model(*rows)[0].numpy()
        every = np.arange(len(encoding))
        reference = Reference(checkpoint.config, spec, checkpoint.weights)
        found = reference.outputs(encoding.ids, encoding.segment_ids, every)
        np.testing.assert_allclose(found, expected, atol=1e-4)
    assert export(["--checkpoint", str(best), "--out", str(tmp_path / "bundle"), "--precision", "fp32"]) == 0
    assert read_bundle(tmp_path / "bundle").manifest.task.letter_shapes


def test_a_run_starts_from_an_earlier_one_with_shapes(
    trained: Callable[..., Path], settings_for: Make
) -> None:
    best = trained("ner", letter_shapes=True, max_steps=4)
    again = settings_for("ner", letter_shapes=True, max_steps=1, start_from=best)
    assert len(read_checkpoint(finetune(again)).weights[SEGMENTS]) == SHAPES


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_base_with_shapes_keeps_what_they_have_learned(
    lora: dict[str, int] | None, trained: Callable[..., Path], settings_for: Make, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    base = trained("ner", letter_shapes=True, max_steps=4)
    later = {"base": str(base), "lora": lora, "max_steps": 1, "learning_rate": 1e-9}
    again = finetune(settings_for("ner", letter_shapes=True, output_dir=tmp_path / "again", **later))
    expected = read_checkpoint(base).weights[SEGMENTS]
    np.testing.assert_allclose(read_checkpoint(again).weights[SEGMENTS], expected, atol=1e-6)
    assert "letter shapes" not in caplog.text
    finetune(settings_for("ner", output_dir=tmp_path / "without", **later))
    assert f"{base} learned from letter shapes, and this run has none" in caplog.text


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("setting", ["start_from", "teacher"])
def test_an_earlier_run_has_to_read_shapes_alike(
    setting: str, shaped: bool, trained: Callable[..., Path], begin: Callable[..., object]
) -> None:
    earlier = trained("ner", letter_shapes=not shaped, max_steps=4)
    given: dict[str, Any] = {setting: {"checkpoint": earlier} if setting == "teacher" else earlier}
    with pytest.raises(ConfigError, match=f"has letter_shapes {not shaped}, and (this|the) run {shaped}"):
        begin("ner", letter_shapes=shaped, **given)


def test_a_body_without_segments_is_refused(settings_for: Make, tmp_path: Path) -> None:
    base = tmp_path / "distilbert"
    write_relative(base, "distilbert", TaskSpec("similarity"))
    with pytest.raises(ConfigError, match="letter_shapes need segment embeddings, and distilbert has none"):
        finetune(settings_for("ner", base=str(base), letter_shapes=True))


def test_an_epoch_that_draws_no_example_is_refused(
    settings_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.conll").write_text("Ada\tB-PER\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="an epoch draws none of the 1 training examples"):
        finetune(settings_for("ner", dev=[], train=[{"path": "one.conll", "repeat": 0.4}]))
