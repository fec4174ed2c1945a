"""The paper's feature-based approach: a BiLSTM on the states of a frozen encoder learns the named entities.

Source: Devlin et al. 2018 (arXiv 1810.04805), section 5.3. The weighted sum is that of Peters et al. 2018 (ELMo, arXiv
1802.05365), equation 1. B texts, T tokens, H width, K labels, S states.
"""

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bert.config import BertConfig
from bert.errors import ConfigError
from bert.nn.heads import BertHead
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training.settings import FeatureSettings
from training.tasks.ner import NerFinetuning

# Choice of the states to read, of the embeddings and L layers, and the fewest layers that it needs.
_CHOSEN: dict[str, tuple[Callable[[Sequence[Tensor]], Sequence[Tensor]], int]] = {
    "embeddings": (lambda states: states[:1], 1),
    "second_to_last": (lambda states: states[-2:-1], 2),
    "last": (lambda states: states[-1:], 1),
    "last_four": (lambda states: states[-4:], 4),
    "weighted_last_four": (lambda states: states[-4:], 4),
    "weighted": (lambda states: states[1:], 1),
}


class LayerMix(nn.Module):
    """A learned weighted sum of states, and a learned scale."""

    def __init__(self, count: int) -> None:
        """Start from the plain mean of `count` states."""
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(count))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Sum S states (B, T, H) to (B, T, H)."""
        shares = self.weights.softmax(0)
        return self.scale * torch.stack([share * x for share, x in zip(shares, states, strict=True)]).sum(0)


class BiLstmTagger(BertHead):
    """Logits of K labels for each token, from a two-layer BiLSTM over the states of a frozen encoder."""

    has_scores = False  # but those of its own layers

    def __init__(self, config: BertConfig, num_labels: int, settings: FeatureSettings) -> None:
        """Make the head. Raises ConfigError where the model has fewer layers than the settings read."""
        super().__init__(config)
        self.bert.requires_grad_(False)
        self._chosen, needed = _CHOSEN[settings.layers]
        layers = len(config.layer_order)
        if layers < needed:
            raise ConfigError(
                f"features.layers is {settings.layers!r}, which needs {needed} layers; the model has {layers}"
            )
        weighted = settings.layers.startswith("weighted")
        count = layers if settings.layers == "weighted" else needed
        self.mix = LayerMix(count) if weighted else None
        width = config.hidden_size * (4 if settings.layers == "last_four" else 1)
        self.lstm = nn.LSTM(
            width,
            settings.lstm_size,
            num_layers=2,
            dropout=config.hidden_dropout_prob,
            bidirectional=True,
            batch_first=True,
        )
        self.classifier = nn.Linear(2 * settings.lstm_size, num_labels)

    def train(self, mode: bool = True) -> Self:
        """Switch the head; the encoder never drops anything out."""
        super().train(mode)
        self.bert.eval()
        return self

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Return logits (B, T, K) of ids (B, T). The mask (B, T) is 1 at tokens and 0 at padding."""
        with torch.no_grad():
            states = self._chosen(self.bert.all_states(input_ids, segment_ids, attention_mask))
        # The LSTM is small beside the encoder, and its kernels do not all know bf16.
        with torch.autocast(input_ids.device.type, enabled=False):
            wide = [state.float() for state in states]
            read = self.mix(wide) if self.mix is not None else torch.cat(list(wide), -1)
            read = F.dropout(read, self.config.token_dropout, self.training)
            logits: Tensor = self.classifier(self._lstm(read, attention_mask))
        return logits

    def _lstm(self, read: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Run over features (B, T, 4H or H) to (B, T, 2 · lstm_size); padding is not read from either end."""
        if attention_mask is None:
            found: Tensor = self.lstm(read)[0]
            return found
        lengths = attention_mask.sum(1).cpu()
        packed = pack_padded_sequence(read, lengths, batch_first=True, enforce_sorted=False)
        found, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=read.shape[1])
        return found


class FeatureNerFinetuning(NerFinetuning):
    """Named entities from frozen features."""

    architecture = "BiLstmTagger"

    def __init__(self, tokenizer: Tokenizer, spec: TaskSpec, settings: FeatureSettings) -> None:
        """Keep the choice of states."""
        super().__init__(tokenizer, spec)
        self.settings = settings

    def model(self, config: BertConfig) -> BertHead:
        """Return BERT, frozen, with a BiLSTM over its states."""
        return BiLstmTagger(config, len(self.spec.labels), self.settings)
