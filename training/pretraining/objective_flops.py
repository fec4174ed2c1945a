"""What a token costs with each objective: some run a second model, or a head at more positions."""

from training.pretraining.mfu import BACKWARD, flops_per_token, forward_flops_per_token
from training.pretraining.objectives.base import Objective
from training.pretraining.objectives.distillation import Distillation
from training.pretraining.objectives.left_to_right import LeftToRight
from training.pretraining.objectives.replaced_token import ReplacedToken
from training.pretraining.objectives.span import SpanBoundary


def objective_flops_per_token(objective: Objective, mean_length: float, masked_share: float) -> float:
    """Return FLOPs, forward and backward, of a real token; arguments as in `flops_per_token`.

    The causal mask of the left-to-right ablation saves nothing here, as is usual.
    """
    config = objective.model.config
    if isinstance(objective, LeftToRight):
        return flops_per_token(config, mean_length, 1 - 1 / mean_length)
    if isinstance(objective, SpanBoundary):
        boundary = 2.0 * sum(
            weight.numel()
            for weight in (
                objective.boundary.linear1.weight,
                objective.boundary.linear2.weight,
                objective.boundary.decoder.weight,
            )
        )
        return flops_per_token(config, mean_length, masked_share) + (1 + BACKWARD) * masked_share * boundary
    if isinstance(objective, ReplacedToken):
        return _replaced_token(objective, mean_length, masked_share)
    if isinstance(objective, Distillation):
        teacher = forward_flops_per_token(objective.teacher.config, mean_length, masked_share)
        return flops_per_token(config, mean_length, masked_share) + teacher
    return flops_per_token(config, mean_length, masked_share)


def _replaced_token(objective: ReplacedToken, mean_length: float, masked_share: float) -> float:
    """Add the discriminator with its head at every token, and the generator between two projections."""
    config, small = objective.model.config, objective.generator.config
    wide, narrow = config.hidden_size, small.hidden_size
    discriminator = forward_flops_per_token(config, mean_length, 0) + 2 * wide * (wide + 1)
    project = 2 * wide * narrow if wide != narrow else 0
    head = 2 * (narrow * wide + wide * small.vocab_size)
    generator = forward_flops_per_token(small, mean_length, 0) + project + masked_share * head
    return (1 + BACKWARD) * (discriminator + generator)
