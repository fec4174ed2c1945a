"""The loss of each head, as a sum over targets with their number.

A mean would make gradient accumulation and several processes a mean of means; the caller divides by the number of
targets in the whole optimiser step instead. B texts or pairs, T tokens, K labels, C candidates, E width of embeddings, which
have length 1.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORED = -100
"""A target of this value is not trained on (the ecosystem's own constant)."""


class Loss(NamedTuple):
    """Sum of losses and how many targets it is over."""

    total: Tensor
    targets: int

    @property
    def mean(self) -> Tensor:
        """Mean over the targets, the loss of `transformers`."""
        return self.total / max(1, self.targets)


def cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None, *, count: int | None = None
) -> Loss:
    """Compare logits (..., K) with class indices (...); IGNORED ones are left out. `weights` (...) multiply losses.

    `count` is the number of those not IGNORED. Without it they are counted here, for which the host waits for a GPU.
    """
    flat = targets.reshape(-1)
    parts = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(),
        flat,
        ignore_index=IGNORED,
        reduction="sum" if weights is None else "none",
    )
    total = parts if weights is None else (parts * weights.reshape(-1)).sum()
    return Loss(total, int((flat != IGNORED).sum()) if count is None else count)


def multi_label(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None, positive: Tensor | None = None
) -> Loss:
    """Compare logits (B, K) with 0/1 targets (B, K), each label for itself.

    `weights` (B,) multiply a text's losses, `positive` (K,) those of the texts that have the label.
    """
    total = F.binary_cross_entropy_with_logits(
        logits.float(),
        targets.float(),
        None if weights is None else weights[:, None],
        pos_weight=positive,
        reduction="sum",
    )
    return Loss(total, targets.numel())


def focal(
    logits: Tensor,
    targets: Tensor,
    counted: Tensor,
    *,
    alpha: float = -1.0,
    gamma: float = 0.0,
    margin: float = 0.0,
    smoothing: float = 0.0,
) -> Tensor:
    """Compare logits with 0/1 targets, each for itself, summed where `counted`; all of one shape.

    Each loss is multiplied by (1 - p) ** `gamma`, p the probability of what is right (Lin et al. 2017, arXiv 1708.02002),
    and by `alpha` where the target is 1, 1 - `alpha` elsewhere; below 0 by neither. `margin` is taken off probabilities of
    what is wrong. `smoothing` moves targets towards a half. Without any of them it is the cross entropy.
    """
    logits, targets = logits.float(), targets.float() * (1 - smoothing) + smoothing / 2
    p = torch.sigmoid(logits)
    wrong = (p - margin).clamp(min=0.0)
    log_rest = torch.log1p(-wrong) if margin else F.logsigmoid(-logits)
    loss = -(targets * F.logsigmoid(logits) + (1 - targets) * log_rest)
    if gamma:
        loss = loss * (1 - (p * targets + (1 - wrong) * (1 - targets))) ** gamma
    if alpha >= 0:
        loss = loss * (alpha * targets + (1 - alpha) * (1 - targets))
    return loss[counted].sum()


def regression(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Loss:
    """Compare numbers (B, K) with targets (B, K) by squared difference; `weights` (B,) multiply a text's losses."""
    given = targets.float().reshape(logits.shape)
    if weights is None:
        return Loss(F.mse_loss(logits.float(), given, reduction="sum"), targets.numel())
    squares = F.mse_loss(logits.float(), given, reduction="none")
    return Loss((squares * weights[:, None]).sum(), targets.numel())


def spans(logits: Tensor, starts: Tensor, ends: Tensor, allowed: Tensor | None = None) -> Loss:
    """Compare logits (B, T, 2) with first and last positions (B,); half start, half end.

    `allowed` (B, T) is False at positions that can be no answer, padding above all.
    """
    scores = logits.float()
    if allowed is not None:
        scores = scores.masked_fill(~allowed.bool()[..., None], torch.finfo(torch.float32).min)
    start, end = scores.unbind(-1)  # (B, T) each
    count = len(starts)
    total = cross_entropy(start, starts, count=count).total + cross_entropy(end, ends, count=count).total
    return Loss(total / 2, count)


def multiple_choice(logits: Tensor, targets: Tensor) -> Loss:
    """Compare one logit a choice (B*C, 1) with the index of the right choice (B,)."""
    return cross_entropy(logits.reshape(len(targets), -1), targets, count=len(targets))


def soft_targets(logits: Tensor, teacher: Tensor, temperature: float, weights: Tensor | None = None) -> Loss:
    """Compare logits (..., K) with a teacher's (..., K): KL divergence at the temperature, times its square.

    `weights` (...) multiply divergences. The square keeps the gradient's size whatever the temperature (Hinton et al.
    2015, arXiv 1503.02531, section 2).
    """
    ours = F.log_softmax(logits.float() / temperature, -1)
    theirs = F.log_softmax(teacher.float() / temperature, -1)
    if weights is None:
        total = F.kl_div(ours, theirs, reduction="sum", log_target=True)
    else:
        each = F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1)
        total = (each * weights).sum()
    total = total * temperature**2
    return Loss(total, logits.numel() // logits.shape[-1])


def symmetric_kl(first: Tensor, second: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean of both KL divergences between two readings' logits (..., K), summed; `weights` (...) multiply."""
    p, q = F.log_softmax(first.float(), -1), F.log_softmax(second.float(), -1)
    each = ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2  # KL(P || Q) + KL(Q || P)
    return each.sum() if weights is None else (each * weights).sum()


def blend(soft: Loss, hard: Loss, alpha: float) -> Loss:
    """Weigh a teacher's loss with `alpha` and the labels' with the rest; both are over the same targets."""
    assert soft.targets == hard.targets, f"{soft.targets} soft targets beside {hard.targets}"
    return Loss(alpha * soft.total + (1 - alpha) * hard.total, hard.targets)


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


def flops(weights: Tensor) -> Tensor:
    """Return the sum of the squares of each piece's mean weight over texts (R, V): what an index computes (Paria et al.
    2020, arXiv 2004.05665)."""
    return weights.abs().mean(dim=0).square().sum() if len(weights) else weights.sum()


def triplet(anchors: Tensor, positives: Tensor, negatives: Tensor, margin: float) -> Loss:
    """Ask that each positive (N, E) is nearer to its anchor (N, E) than the negative (N, E), by `margin` of the cosine."""
    nearer = (anchors * (positives - negatives)).sum(-1)
    return Loss(F.relu(margin - nearer).sum(), len(anchors))
