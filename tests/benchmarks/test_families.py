"""The benchmark of families: its models, and what it makes of the figures."""

import json
from pathlib import Path

import pytest
import transformers

from benchmarks.serve.baselines.encoder_shapes import MAX_TOKENS, SHAPES, write_encoder
from benchmarks.serve.families import SERVERS, ModelResult, parse, summary, write
from benchmarks.serve.load.measure import Closed, Round
from bert.checkpoint.weights import read_checkpoint
from bert.config import BertConfig


def loop(rate: float) -> Closed:
    return Closed(32, rate, 1000 / rate, 5000 / rate, int(rate), 1.0, 0.1, 2**20, 0.25)


def test_every_shape_is_read_by_us() -> None:
    for name, shape in SHAPES.items():
        stated = transformers.AutoConfig.for_model(**shape).to_dict()
        config = BertConfig.from_dict(stated)
        assert config.max_position_embeddings >= MAX_TOKENS
        assert name == "tiny" or config.hidden_size // config.num_attention_heads in (32, 64)
        assert len(config.layer_order) in (2, 6, 12, 22, 24)


def test_a_model_is_written_with_a_tokenizer_that_both_sides_read(tmp_path: Path) -> None:
    model = write_encoder("tiny", tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    text = "the film was funny"
    (ours,) = (pieces.ids.tolist() for pieces in checkpoint.tokenizer.pieces([text]))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]
    assert theirs == [0, *ours, 2]
    assert len(ours) == 4 and max(ours) < model.config.vocab_size
    assert checkpoint.spec.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_rates_are_medians_and_the_ratio_is_that_of_a_round() -> None:
    rounds = {
        "pipeline": [Round(closed=[loop(rate)]) for rate in (10.0, 20.0, 12.0)],
        "ours": [Round(closed=[loop(rate)]) for rate in (40.0, 30.0, 36.0)],
    }
    found = summary("m", "int8", rounds)
    assert (found.pipeline, found.ours, found.ratio) == (12.0, 36.0, 3.0)
    assert found.others_percent == 25.0 and not found.failures


def test_a_server_that_fails_is_told_and_below_every_goal(tmp_path: Path) -> None:
    failed = {"pipeline": [Round(closed=[loop(10.0)])], "ours": [Round(failure="it ended\nwith 1")]}
    results = [summary("broken", "fp32", failed), ModelResult("slow", "fp32", 10, 15, 1.5, 1, 1, [], 0)]
    write(tmp_path, ["machine"], results, goal=2.0)
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "- broken failed: it ended with 1" in table
    assert "- broken is below 2x" in table and "- slow is below 2x" in table
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert [each["ratio"] for each in figures["models"]] == [0.0, 1.5]


def test_the_short_form_is_one_round_and_unknown_models_are_refused() -> None:
    args = parse(["--short"])
    assert (args.rounds, args.seconds) == (1, 3.0) and "tiny" not in args.models.split(",")
    assert set(SERVERS) == {"pipeline", "ours"}
    with pytest.raises(SystemExit):
        parse(["--models", "gpt"])
