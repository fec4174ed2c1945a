"""`compile: true`: layers and heads with their losses, compiled, compute what they do otherwise."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.support.every_objective import MAKERS
from tests.support.objectives import PAD, batch, config, filled, gradients
from training.pretraining.new_model import ModelSettings, new_config
from training.pretraining.objectives.base import Objective
from training.pretraining.objectives.language_models import MaskedLanguageModel
from training.pretraining.trainer import compile_parts

# torch.compile looks at the gradient of every tensor that it meets. It hides the warning about that of a tensor inside
# the graph from the screen; where warnings are errors, it fails.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture
def compiler() -> Iterator[CompileCounterWithBackend]:
    """Trace forward and backward passes as for a GPU, and run what torch has for each operator."""
    torch.compiler.reset()
    yield CompileCounterWithBackend("aot_eager")
    torch.compiler.reset()


def check(plain: Objective, compiled: Objective) -> None:
    """Compare losses and gradients on batches with other numbers of masked positions each."""
    for seed, lengths in enumerate(([24, 22, 20, 24], [24, 6, 20, 24, 11])):
        given = batch(seed, plain.model.config.vocab_size, lengths, packed=True)
        found = []
        for objective in (plain, compiled):
            torch.manual_seed(seed)  # a generator draws
            found.append(gradients(objective, given))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mlm+nsp", "left_to_right", "span", "electra"])
def test_heads_are_compiled_once_for_any_number_of_positions(
    name: str, compiler: CompileCounterWithBackend
) -> None:
    plain, compiled = (filled(MAKERS[name](config(0, num_hidden_layers=1))) for _ in range(2))
    compiled.compile_heads(backend=compiler)
    with torch._dynamo.config.patch(error_on_recompile=True):
        check(plain, compiled)
    assert compiler.frame_count > 0


def test_compiled_layers_of_modernbert_have_the_same_losses_and_gradients(
    compiler: CompileCounterWithBackend,
) -> None:
    values: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape = new_config(ModelSettings(model_type="modernbert", local_attention=8, **values), 60, PAD)
    plain, compiled = (filled(MaskedLanguageModel(shape)) for _ in range(2))
    compile_parts(compiled, backend=compiler)
    check(plain, compiled)
    assert compiler.frame_count > 0
