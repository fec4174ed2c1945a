"""The same weights in our BERT and in transformers', which is the independent reference."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.models.bert import modeling_bert

from bert.bodies.sizes import ACTIVATIONS
from bert.config import BertConfig
from bert.nn import heads, losses
from bert.nn.heads import BertForPreTraining, BertForQuestionAnswering, BertHead
from tests.support.configs import config_of

CHOICES = 2
LABELS = 3

HEADS: dict[str, Callable[[BertConfig], BertHead]] = {
    "BertForSequenceClassification": lambda config: heads.BertForSequenceClassification(config, LABELS),
    "BertForTokenClassification": lambda config: heads.BertForTokenClassification(config, LABELS),
    "BertForQuestionAnswering": heads.BertForQuestionAnswering,
    "BertForMultipleChoice": heads.BertForMultipleChoice,
    "BertForMaskedLM": heads.BertForMaskedLM,
    "BertForPreTraining": heads.BertForPreTraining,
}
"""By the name that both projects have for it."""


def small_config(seed: int = 0, **changes: Any) -> BertConfig:
    """Return a small configuration whose every number is drawn from the seed."""
    drawn = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=drawn))

    num_heads = number(1, 4)
    return config_of(
        **{
            "vocab_size": number(20, 60),
            "hidden_size": num_heads * number(8, 16),
            "num_hidden_layers": number(1, 3),
            "num_attention_heads": num_heads,
            "intermediate_size": number(10, 50),
            "hidden_act": ACTIVATIONS[number(0, 2)],
            "max_position_embeddings": number(20, 40),
            "type_vocab_size": number(2, 3),
            "layer_norm_eps": (1e-12, 1e-5)[number(0, 1)],
            "pad_token_id": number(0, 3),
            **changes,
        }
    )


def fill(model: torch.nn.Module, seed: int, scale: float = 0.2) -> None:
    """Give every weight and bias a random value: fresh biases are 0 and hide what is left out."""
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(float(name.endswith("LayerNorm.weight")), scale, generator=drawn)


def twins(name: str, config: BertConfig, seed: int = 0, attention: str = "eager") -> tuple[BertHead, Any]:
    """Return our model and theirs with the same random weights, in evaluation mode.

    Their "eager" attention is written out as in the paper; "sdpa" draws the same dropout as ours.
    """
    ours = HEADS[name](config)
    fill(ours, seed)
    theirs = getattr(modeling_bert, name)(their_config(config, attention, labels_of(name)))
    result = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert set(result.missing_keys) <= {"cls.predictions.decoder.bias"}  # tied to cls.predictions.bias
    return ours.eval(), theirs.eval()


def labels_of(name: str) -> int:
    """Return how many labels a head has; 2 is what transformers takes for the heads that have none."""
    return LABELS if name in ("BertForSequenceClassification", "BertForTokenClassification") else 2


def their_config(config: BertConfig, attention: str = "eager", labels: int = LABELS) -> Any:
    """Return transformers' configuration with the same numbers."""
    return modeling_bert.BertConfig(**asdict(config), num_labels=labels, attn_implementation=attention)


@dataclass(frozen=True)
class Batch:
    """B texts of T tokens, some of them pairs, some padded."""

    input_ids: Tensor
    """(B, T)"""
    segment_ids: Tensor
    """(B, T)"""
    attention_mask: Tensor
    """(B, T)"""

    def __iter__(self) -> Any:
        """Yield the arguments of our models, in their order."""
        return iter((self.input_ids, self.segment_ids, self.attention_mask))

    def theirs(self, name: str) -> dict[str, Tensor]:
        """Return the arguments of their models."""
        named = {
            "input_ids": self.input_ids,
            "token_type_ids": self.segment_ids,
            "attention_mask": self.attention_mask,
        }
        if name != "BertForMultipleChoice":
            return named
        return {key: value.view(-1, CHOICES, value.shape[-1]) for key, value in named.items()}


def random_batch(config: BertConfig, seed: int, texts: int = 4, tokens: int = 17) -> Batch:
    """Return texts of random lengths, the first of full length, each cut into two segments somewhere."""
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, tokens + 1, (texts, 1), generator=drawn)
    lengths[0] = tokens
    second = torch.randint(0, tokens + 1, (texts, 1), generator=drawn)
    at = torch.arange(tokens).expand(texts, tokens)
    ids = torch.randint(0, config.vocab_size, (texts, tokens), generator=drawn)
    padding = at >= lengths
    return Batch(ids.masked_fill(padding, config.pad_token_id), (at >= second).long(), (~padding).long())


def random_targets(name: str, config: BertConfig, batch: Batch, seed: int) -> dict[str, Tensor]:
    """Return targets under the names that transformers gives them; about half of those by token are ignored."""
    drawn = torch.Generator().manual_seed(seed + 1)
    texts, tokens = batch.input_ids.shape

    def draw(below: int, *shape: int) -> Tensor:
        return torch.randint(0, below, shape, generator=drawn)

    def by_token(below: int) -> Tensor:
        left_out = (batch.attention_mask == 0) | (draw(2, texts, tokens) == 0)
        left_out[0, 0] = False
        return draw(below, texts, tokens).masked_fill(left_out, losses.IGNORED)

    return {
        "BertForSequenceClassification": lambda: {"labels": draw(LABELS, texts)},
        "BertForTokenClassification": lambda: {"labels": by_token(LABELS)},
        "BertForQuestionAnswering": lambda: {
            "start_positions": draw(tokens, texts),
            "end_positions": draw(tokens, texts),
        },
        "BertForMultipleChoice": lambda: {"labels": draw(CHOICES, texts // CHOICES)},
        "BertForMaskedLM": lambda: {"labels": by_token(config.vocab_size)},
        "BertForPreTraining": lambda: {
            "labels": by_token(config.vocab_size),
            "next_sentence_label": draw(2, texts),
        },
    }[name]()


def our_logits(model: BertHead, batch: Batch) -> tuple[Tensor, ...]:
    """Return our logits, one tensor or two, in transformers' order."""
    if isinstance(model, BertForPreTraining):
        hidden = model.bert(*batch)
        return model.score(hidden), model.score_next_sentence(hidden)
    logits: Tensor = model(*batch)
    return logits.unbind(-1) if isinstance(model, BertForQuestionAnswering) else (logits,)


def their_logits(output: Any) -> tuple[Tensor, ...]:
    """Return what stands for logits in an output of theirs."""
    return tuple(value for key, value in output.items() if key.endswith("logits"))


def our_loss(name: str, logits: tuple[Tensor, ...], targets: dict[str, Tensor]) -> Tensor:
    """Return the mean loss as our training code would have it."""
    if name == "BertForPreTraining":
        words, following = targets.values()
        return losses.cross_entropy(logits[0], words).mean + losses.cross_entropy(logits[1], following).mean
    if name == "BertForQuestionAnswering":
        return losses.spans(torch.stack(logits, -1), *targets.values()).mean
    loss = losses.multiple_choice if name == "BertForMultipleChoice" else losses.cross_entropy
    return loss(logits[0], targets["labels"]).mean


def assert_same(ours: Tensor, theirs: Tensor, what: str = "", atol: float = 1e-5) -> None:
    """Fail unless two tensors agree within 1e-5, the bound of this project."""
    torch.testing.assert_close(ours, theirs.view_as(ours), atol=atol, rtol=1e-5, msg=lambda m: f"{what}: {m}")
