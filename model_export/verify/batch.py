"""Texts to the graph's inputs and its outputs back to texts, for verifying. N texts, P positions, R rows of S tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Encoding
from bert.packing_rules import PackingRules
from bert.tasks.heads import HEADS
from model_export.verify.reference import Floats

Feeds = dict[str, NDArray[np.int32]]

ROW_TOKENS = 128


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """One encoded text and where the head looks at it."""

    encoding: Encoding
    positions: NDArray[np.intp]
    """(P,) among the text's own tokens."""

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.encoding)


def make_text(encoding: Encoding, task: str) -> Text:
    """Choose the positions as the service does."""
    return Text(encoding, HEADS[task](encoding))


def pack_rows(texts: Sequence[Text], rules: PackingRules, row_tokens: int = ROW_TOKENS) -> Feeds:
    """Lay texts side by side in rows, each in the first row with room; inputs of the layout "rows"."""
    row_tokens = max(row_tokens, *(len(text) for text in texts))
    used: list[int] = []
    places = []
    for text in texts:
        fits = ((r, rules.start(tokens, len(text))) for r, tokens in enumerate(used))
        row, start = next(((r, at) for r, at in fits if at + len(text) <= row_tokens), (len(used), 0))
        used[row : row + 1] = [start + len(text)]
        places.append(row * row_tokens + start)
    feeds = _flat_inputs(texts, places, len(used) * row_tokens)
    positions = feeds.pop("positions")
    return {name: value.reshape(-1, row_tokens) for name, value in feeds.items()} | {"positions": positions}


def pack_flat(texts: Sequence[Text]) -> Feeds:
    """Lay texts in one row without padding; inputs of the layout "flat".

    `token_offset` (N, longest) is what PackedAttention wants: read row by row, it first names the places that the
    texts' tokens have in a padded (N, longest) batch, then the places of its padding.
    """
    lengths = np.array([len(text) for text in texts])
    ends = np.cumsum(lengths)
    feeds = _flat_inputs(texts, [*(ends - lengths)], int(ends[-1]))
    is_token = (np.arange(lengths.max()) < lengths[:, None]).reshape(-1)
    order = np.concatenate([np.flatnonzero(is_token), np.flatnonzero(~is_token)])
    feeds["token_offset"] = order.reshape(len(texts), -1).astype(np.int32)
    feeds["cumulative_lengths"] = np.concatenate([[0], ends]).astype(np.int32)
    return feeds


def split(output: Floats, texts: Sequence[Text]) -> list[Floats]:
    """Give every text its rows of the output, in order."""
    counts = [len(text.positions) for text in texts]
    return np.split(output, np.cumsum(counts)[:-1])


def only_declared(feeds: Mapping[str, NDArray[np.int32]], names: Sequence[str]) -> Feeds:
    """Leave out what the graph does not ask for."""
    return {name: feeds[name] for name in names}


def _flat_inputs(texts: Sequence[Text], places: Sequence[int], tokens: int) -> Feeds:
    feeds = {name: np.zeros(tokens, np.int32) for name in ("input_ids", "segment_ids", "position_ids")}
    feeds["text_ids"] = np.full(tokens, -1, np.int32)
    for number, (text, start) in enumerate(zip(texts, places, strict=True)):
        here = slice(start, start + len(text))
        feeds["input_ids"][here] = text.encoding.ids
        feeds["segment_ids"][here] = text.encoding.segment_ids
        feeds["position_ids"][here] = np.arange(len(text))
        feeds["text_ids"][here] = number
    positions = [text.positions + start for text, start in zip(texts, places, strict=True)]
    feeds["positions"] = np.concatenate(positions).astype(np.int32)
    return feeds
