"""Where a run stands decides batch size, phase and learning rate."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from training.pretraining.plan import Plan
from training.pretraining.settings import PretrainSettings


def settings(**values: Any) -> PretrainSettings:
    length = {} if "max_minutes" in values else {"max_steps": 100}
    fixed = {"corpus": Path("c"), "output_dir": Path("o"), "objective": "mlm+nsp"}
    return PretrainSettings(**{**fixed, **length, **values})


def test_a_run_is_measured_in_steps_or_in_minutes() -> None:
    assert Plan(settings()).done(25, seconds=1e6) == 0.25
    assert Plan(settings(max_minutes=2)).done(10**6, seconds=30) == 0.25


def test_phases_follow_one_another_by_their_shares() -> None:
    phases = [{"max_tokens": 128, "share": 0.9}, {"max_tokens": 512, "share": 0.1, "batch_size": 64}]
    plan = Plan(settings(phases=phases))
    assert [plan.phase(step / 100) for step in (0, 89, 90, 99)] == [0, 0, 1, 1]
    assert [plan.batch_size(done) for done in (0.5, 0.95)] == [256, 64]


def test_the_batch_grows_and_stays_a_multiple_of_the_processes() -> None:
    plan = Plan(settings(batch_size=64, ramp_from=10, ramp_share=0.5), world=4)
    sizes = [plan.batch_size(step / 100) for step in range(100)]
    assert sizes[0] == 8 and sizes[50] == 64 and sizes == sorted(sizes)
    assert all(size % 4 == 0 for size in sizes)


def test_no_step_is_lost_on_a_rate_of_zero() -> None:
    plan = Plan(settings(warmup_ratio=0.1))
    rates = [plan.rate(step, 0.0) for step in range(100)]
    assert min(rates) > 0 and max(rates) == pytest.approx(1e-4, rel=0.06)


def test_googles_rate_is_that_of_its_code_step_by_step() -> None:
    plan = Plan(settings(schedule="google", warmup_ratio=0.05, learning_rate=2.0))
    assert [plan.rate(step, 0.0) for step in (0, 1, 4)] == pytest.approx([0.0, 0.4, 1.6])
    assert [plan.rate(step, 0.0) for step in (5, 50, 99)] == pytest.approx([1.9, 1.0, 0.02])


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": 10, "max_minutes": 1}, "one only"),
        ({"max_tokens": 600}, "max_position_embeddings"),
        ({"phases": [{"max_tokens": 128, "share": 0.5}]}, "add up to 0.5"),
        ({"objective": "mlm+sop"}, "sentence_order"),
        ({"objective": "span", "examples": "single"}, "spans"),
        ({"objective": "distillation"}, "distillation"),
        ({"masking": {"kind": "phrases"}}, "phrase"),
        ({"masking": {"mask_share": 0.9, "random_share": 0.2}}, "pass 1"),
        ({"masking": {"rate": 0.0}}, r"masking\.rate"),
        ({"masking": {"rate": 1.0}}, r"masking\.rate"),
        ({"masking": {"max_predictions": -1}}, r"masking\.max_predictions"),
        ({"masking": {"random_share": -0.1}}, r"masking\.random_share"),
        ({"short_share": 1.5}, "short_share"),
        ({"ramp_from": 300}, "ramp_from"),
        ({"seed": 2**64}, "seed"),
        ({"threads": 2**31}, "threads"),
        ({"model": {"intermediate_size": 0}}, "intermediate_size"),
        (
            {
                "objective": "distillation",
                "examples": "single",
                "distillation": {"teacher": "t", "soft_weight": 0, "hard_weight": 0, "cosine_weight": 0},
            },
            "all are 0",
        ),
        ({"ramp_from": 8}, "needs ramp_share"),
        ({"ramp_share": 0.5}, "needs ramp_from"),
        ({"replaced_token": {"temperature": 2}}, "replaced_token is for objective 'replaced_token'"),
        ({"decay_shape": "sqrt"}, "decay_shape is for schedule 'warmup_stable_decay', and not for 'linear'"),
        ({"decay_ratio": 0.5}, "decay_ratio is for schedule 'warmup_stable_decay'"),
        (
            {"objective": "mlm", "examples": "chunks", "short_share": 0.5},
            "and not for 'chunks': leave it out",
        ),
        (
            {
                "ramp_from": 64,
                "ramp_share": 0.5,
                "phases": [{"max_tokens": 64, "share": 1, "batch_size": 32}],
            },
            r"batch_size \(32\)",
        ),
        (
            {"masking": {"kind": "tokens", "phrases": "list.txt"}},
            "masking.phrases is for masking kind 'phrases'",
        ),
        ({"masking": {"vectors": "v.npy"}}, "masking.vectors is for masking kind 'similar_words'"),
        ({"masking": {"span_shares": [1, 1]}}, "masking.span_shares is for masking kind 'spans'"),
        ({"objective": "left_to_right", "examples": "single", "masking": {"rate": 0.3}}, "masks nothing"),
        (
            {"base": "b", "model": {"num_hidden_layers": 7, "hidden_size": 32}},
            "leave out model.hidden_size, model.num_hidden_layers",
        ),
        ({"base": "b", "model": {"model_type": "roberta"}}, r"leave out model\.model_type \["),
        (
            {"schedule": "warmup_stable_decay", "warmup_ratio": 0.5, "decay_ratio": 0.6},
            "pass the run's length",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(values: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        settings(**values)
