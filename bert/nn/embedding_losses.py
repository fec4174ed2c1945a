"""Losses of embeddings, as sums over pairs with their number. B pairs, C candidates, E width; vectors have length 1."""

import torch
from torch import Tensor
from torch.nn import functional as F

from bert.nn.losses import Loss, cross_entropy


def cosent(cosines: Tensor, scores: Tensor, scale: float) -> Loss:
    """Compare the order of cosines (B,) with that of scores (B,), over all two pairs of which one has the higher score.

    The loss of a batch is log(1 + sum of exp(scale · (cosine of the lower score - cosine of the higher))) (CoSENT, Su
    2022, kexue.fm/archives/8847). It is counted once a pair, so that parts of a batch weigh by their size.
    """
    is_lower = scores[None, :] < scores[:, None]  # (B, B)
    wrong = scale * (cosines[None, :] - cosines[:, None])
    flat = wrong.masked_fill(~is_lower, torch.finfo(wrong.dtype).min).flatten()
    total = torch.logsumexp(F.pad(flat, (1, 0)), 0)
    return Loss(total * len(scores), len(scores))


def ranking(anchors: Tensor, candidates: Tensor, false_negatives: Tensor, scale: float) -> Loss:
    """Choose each anchor's own candidate among all: cross entropy of scaled cosines (InfoNCE, arXiv 1807.03748).

    Anchors are (B, E), candidates (C, E), of which the first B belong to the anchors in their order. False negatives
    (B, C) are True where another candidate belongs to the anchor as well, and are left out.
    """
    cosines = scale * (anchors @ candidates.T)
    logits = cosines.masked_fill(false_negatives, torch.finfo(cosines.dtype).min)
    return cross_entropy(logits, torch.arange(len(anchors), device=logits.device), count=len(anchors))


def triplet(anchors: Tensor, positives: Tensor, negatives: Tensor, margin: float) -> Loss:
    """Ask that each positive (N, E) is nearer to its anchor (N, E) than the negative (N, E), by `margin` of the cosine."""
    nearer = (anchors * (positives - negatives)).sum(-1)
    return Loss(F.relu(margin - nearer).sum(), len(anchors))
