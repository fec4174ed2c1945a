"""How a model is laid out for its run: compiled, recomputing activations, joined with those of other processes."""

from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from bert.nn.encoder import BertLayers, recompute_activations
from training.core.distributed import Processes, data_parallel
from training.pretraining.objectives.base import Objective
from training.pretraining.settings import PretrainSettings


def wrap(objective: Objective, settings: PretrainSettings, processes: Processes) -> nn.Module:
    """Return the module whose forward pass trains; `objective` is on the device of its process."""
    if settings.activation_checkpointing:
        recompute_activations(objective)
    if settings.compile:
        # Layer by layer: how many positions are masked changes with every batch, the layers do not see it.
        for layers in [module for module in objective.modules() if isinstance(module, BertLayers)]:
            for layer in layers.layer:
                layer.compile(dynamic=None)
    if processes.world > 1 and settings.sharding == "full":
        return _sharded(objective)
    return data_parallel(objective, processes)


def _sharded(objective: Objective) -> nn.Module:
    for layer in objective.model.bert.encoder.layer:
        fully_shard(layer)
    fully_shard(objective)  # in place: the objective is now an FSDPModule too
    register_fsdp_forward_method(objective, "logits")  # held-out text is scored by these, past `forward`
    return objective
