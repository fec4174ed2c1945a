"""GLiNER in torch: labels before a text, and a head that scores spans of words, or words, for each of them.

Names of modules are those of its checkpoints. B texts, T tokens, W words, C labels, D width, K widths of spans. As in the
graph (`model_export.graph.prompted_head`) no span has a vector of its own.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bert.config import BertConfig
from bert.nn.heads import BertHead
from bert.tasks.open_ner.inputs import LABEL, WORD
from bert.tasks.spec import LabelPrompt

NO_SPAN = -100.0
"""Score where a text has no such word, label or span: its probability is 0."""
DROPOUT = 0.4
"""Dropout in the head where nothing else is said, GLiNER's own."""


class BertForOpenNer(BertHead):
    """Scores of all spans for each label (B, W, C, K), or of all words as start, end and inside (B, W, C, 3)."""

    has_scores = False
    """The head reads the bare body."""

    def __init__(
        self,
        config: BertConfig,
        prompt: LabelPrompt,
        dropout: float = DROPOUT,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the head, its weights drawn as torch draws them by default, like GLiNER's.

        `origin` is the content of `gliner_config.json` of the GLiNER that training begins with, where it is one.
        """
        super().__init__(config)
        self.prompt, self.origin, width = prompt, origin or {}, prompt.width
        if width != config.hidden_size:
            self.token_rep_layer = nn.ModuleDict({"projection": nn.Linear(config.hidden_size, width)})
        if prompt.lstm_layers:
            lstm = nn.LSTM(width, width // 2, prompt.lstm_layers, batch_first=True, bidirectional=True)
            self.rnn = nn.ModuleDict({"lstm": lstm})
        if not prompt.judges_spans:
            names = ("proj_token", "proj_label")
            parts: dict[str, nn.Module] = {name: nn.Linear(width, 2 * width) for name in names}
            parts["out_mlp"] = nn.Sequential(
                nn.Linear(3 * width, 4 * width), nn.Dropout(dropout), nn.ReLU(), nn.Linear(4 * width, 3)
            )
            self.scorer = nn.ModuleDict(parts)
            return
        is_plain = prompt.span_mode == "marker"
        inner = (2 if is_plain else 4) * width
        out = nn.Linear(2 * width, width) if is_plain else _two_layers(2 * width, inner, width, dropout)
        layers = {f"project_{side}": _two_layers(width, inner, width, dropout) for side in ("start", "end")}
        self.span_rep_layer = nn.ModuleDict({"span_rep_layer": nn.ModuleDict({**layers, "out_project": out})})
        self.prompt_rep_layer = _two_layers(width, 4 * width, width, dropout)

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        marks: Tensor | None = None,
    ) -> Tensor:
        """Score ids (B, T); `marks` (B, T) are LABEL at labels' vectors, WORD at the first piece of each word, else -1."""
        assert marks is not None
        hidden = self.bert(input_ids, segment_ids, attention_mask, position_ids)
        if hasattr(self, "token_rep_layer"):
            hidden = self.token_rep_layer["projection"](hidden)
        labels, has_label = _gathered(hidden, marks == LABEL)
        words, has_word = _gathered(hidden, marks == WORD)
        if hasattr(self, "rnn"):
            lengths = has_word.sum(1).cpu()
            packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
            words, _ = pad_packed_sequence(self.rnn["lstm"](packed)[0], True, total_length=words.shape[1])
        if self.prompt.judges_spans:
            widths = self.prompt.max_width
            scores, exists = self._spans(words, labels), F.pad(has_word, (0, widths - 1)).unfold(1, widths, 1)
        else:
            scores, exists = self._parts(words, labels), has_word[..., None]
        return scores.masked_fill(~(exists[:, :, None] & has_label[:, None, :, None]), NO_SPAN)

    def _spans(self, words: Tensor, labels: Tensor) -> Tensor:
        """Score spans of words (B, W, D) for labels (B, C, D)."""
        layers, widths = self.span_rep_layer["span_rep_layer"], self.prompt.max_width
        assert isinstance(layers, nn.ModuleDict)
        queries, out = self.prompt_rep_layer(labels), layers["out_project"]
        joint = out[0] if isinstance(out, nn.Sequential) else out
        assert isinstance(joint, nn.Linear)
        by_start, by_end = joint.weight.chunk(2, dim=1)
        first = F.linear(F.relu(layers["project_start"](words)), by_start, joint.bias)
        last = F.linear(F.relu(layers["project_end"](words)), by_end)
        last = F.pad(last, (0, 0, 0, widths - 1)).unfold(1, widths, 1).transpose(2, 3)  # (B, W, K, 4D)
        both = first[:, :, None] + last
        if isinstance(out, nn.Sequential):
            both, narrow = out[1:3](both), out[3]
            assert isinstance(narrow, nn.Linear)
            scores = both.flatten(1, 2) @ (queries @ narrow.weight).transpose(1, 2)  # (B, W * K, C)
            scores = scores + (queries @ narrow.bias)[:, None]
        else:
            scores = both.flatten(1, 2) @ queries.transpose(1, 2)
        by_width: Tensor = scores.unflatten(1, (-1, widths)).transpose(2, 3)
        return by_width

    def _parts(self, words: Tensor, labels: Tensor) -> Tensor:
        """Score words (B, W, D) as start, end and inside of each label (B, C, D)."""
        word, of_word = self.scorer["proj_token"](words)[:, :, None].chunk(2, dim=-1)
        label, of_label = self.scorer["proj_label"](labels)[:, None].chunk(2, dim=-1)
        product = of_word * of_label
        parts = [word.expand_as(product), label.expand_as(product), product]
        scores: Tensor = self.scorer["out_mlp"](torch.cat(parts, dim=-1))
        return scores


def _two_layers(inputs: int, inner: int, outputs: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inner, outputs))


def _gathered(hidden: Tensor, marked: Tensor) -> tuple[Tensor, Tensor]:
    """Return the vectors of hidden (B, T, D) at marked tokens (B, T), side by side: (B, N, D), and where there are any."""
    counts = marked.sum(1)
    most = int(counts.max())
    places = marked.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    found = hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
    return found, torch.arange(most, device=hidden.device) < counts[:, None]
