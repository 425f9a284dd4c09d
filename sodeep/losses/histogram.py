"""Histogram loss: the distributions of the similarities of positive and of negative pairs should not overlap.

It has no margin, temperature or other parameter to tune but the number of bins, and is a statistic of the whole batch.

Source: Ustinova, Lempitsky. Learning Deep Embeddings with Histogram Loss. NeurIPS 2016.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sodeep._core.checks import check_at_least, check_number, describe, untransformed
from sodeep._core.derivatives import by_graph, first_derivative
from sodeep._core.lists import check_lists
from sodeep.groups import GroupIds
from sodeep.losses._base import ListStats, Loss, check_range, check_reduction, loss_function, reduce_defined
from sodeep.losses._chunks import chunk_elements


def _check_mean(reduction: str, name: str) -> str:
    """The one reduction of a statistic of the whole batch."""
    if check_reduction(reduction, name) != "mean":
        raise ValueError(f"`{name}` must be 'mean' for a statistic of the whole batch, got {describe(reduction)}.")
    return reduction


class _Nodes(NamedTuple):
    """The nodes of a histogram."""

    num_bins: int
    low: float
    density: float
    """Nodes per unit of score."""

    def place(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """How many nodes each score is above the first one, and the node below it."""
        place = ((s - self.low) * self.density).clamp(0, self.num_bins)
        node = place.detach().floor().clamp(max=self.num_bins - 1)
        return place, node.nan_to_num(0.0)  # NaN goes on in its weight, not as an index

    def histograms(self, s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Of the positive and of the negative pairs, (2, nodes)."""
        place, node = self.place(s)
        real = positive | negative
        upper = (place - node).masked_fill(~real, 0)  # the weight of the node above
        lower = real.to(s.dtype) - upper
        # Two histograms side by side, positives first; one pair a row, since one of millions would exhaust a float32.
        nodes = self.num_bins + 1
        index = node.long() + nodes * negative
        histogram = s.new_zeros(s.shape[0], 2 * nodes).scatter_add(-1, index, lower).scatter_add(-1, index + 1, upper)
        return histogram.sum(0).view(2, nodes)


class _Histograms(torch.autograd.Function):
    """The histograms of many lists, some lists at a time: memory is that of the scores and their gradient."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, positive: Tensor, negative: Tensor, nodes: _Nodes) -> Tensor:
        ctx.nodes = nodes
        ctx.save_for_backward(s, positive, negative)
        total = s.new_zeros(2, nodes.num_bins + 1)
        for rows in _chunks_of(s):
            total += nodes.histograms(s[rows], positive[rows], negative[rows])
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        s, positive, negative = ctx.saved_tensors
        nodes: _Nodes = ctx.nodes
        if not first_derivative(grad):
            return by_graph(lambda s: nodes.histograms(s, positive, negative), [s], grad)[0], None, None, None
        # a score that rises moves its weight from the node below to the node above
        steps = (grad.diff(dim=1) * nodes.density).flatten()
        slope = torch.empty_like(s, memory_format=torch.contiguous_format)
        for rows in _chunks_of(s):
            place, node = nodes.place(s[rows])
            moves = (place == (s[rows] - nodes.low) * nodes.density) & (positive[rows] | negative[rows])
            slope[rows] = steps[node.long() + nodes.num_bins * negative[rows]].mul_(moves)
        return slope, None, None, None


def _chunks_of(s: Tensor) -> Iterator[slice]:
    rows = max(1, chunk_elements(s.device) // s.shape[1])
    for start in range(0, len(s), rows):
        yield slice(start, start + rows)


@loss_function(
    check_range,
    mean_over_lists=False,
    num_bins=partial(check_at_least, low=1),
    low=check_number,
    high=check_number,
    reduction=_check_mean,
)
def histogram_loss(
    scores: Tensor,
    relevant: Tensor,
    *,
    num_bins: int = 100,
    low: float = -1.0,
    high: float = 1.0,
    where: Tensor | None = None,
    group: GroupIds | None = None,
    reduction: str = "mean",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, ListStats]:
    """Probability that a random negative pair of the batch is more similar than a random positive one, by histograms.

    With nodes t_r = low + r D, r = 0 ... num_bins, D = (high - low) / num_bins, every score gives to its two
    neighbouring nodes in proportion to its nearness; h+ and h- are the histograms of the positive and the negative
    pairs, each of sum 1::

        sum_r h-_r sum_{q <= r} h+_q

    **The histograms are of the whole batch**, all lists together, so a batch is not the mean of its lists. The weight
    of a positive pair in [t_p, t_{p+1}] is ``h-_p / (D |S+|)``, that of a negative one ``h+_{p+1} / (D |S-|)`` (Wang et
    al. 2019, supplement, where the nodes r D - 1 count from r = 1 and are one off). A score at a node belongs to the
    interval above it. It takes two scatters, whatever the number of bins; memory is that of the scores and their
    gradient, and of some lists more.

    What all losses share, such as `where`: see `sodeep.losses`.

    Args:
        scores: (..., N); cosine similarities for the default range.
        num_bins: number of intervals, so there is one node more.
        low: the first node.
        high: the last node. A score outside is at the end of the range, with zero gradient.
        reduction: "mean" alone: a statistic of the whole batch has no value for each list.

    Returns:
        A scalar in [0, 1]; about 0.5 for scores at random. It needs one positive and one negative pair in the
        batch, in whichever lists; then every list counts.

    References:
        Ustinova, Lempitsky. Learning Deep Embeddings with Histogram Loss. NeurIPS 2016.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.8, 0.4, 0.2]])
        >>> relevant = torch.tensor([[True, False, False]])
        >>> histogram_loss(scores, relevant)
        tensor(0.)
        >>> histogram_loss(scores, ~relevant)
        tensor(1.)
    """
    lists = check_lists(scores, relevant, where)
    s, positive, negative, _ = lists
    nodes = _Nodes(num_bins, low, num_bins / (high - low))
    if untransformed(s):
        pos, neg = _Histograms.apply(s, positive, negative, nodes)  # type: ignore[no-untyped-call]
    else:
        pos, neg = nodes.histograms(s, positive, negative)
    total_pos, total_neg = positive.sum(), negative.sum()
    loss = (neg * pos.cumsum(0)).sum() / (total_pos.clamp(min=1) * total_neg.clamp(min=1))
    defined = (total_pos > 0) & (total_neg > 0)
    needs = "a positive and a negative pair between them"
    return reduce_defined(loss.expand(len(s)), defined.expand(len(s)), scores, reduction, return_stats, needs=needs)


class HistogramLoss(Loss[ListStats]):
    """Module form of `histogram_loss`.

    Example:
        >>> HistogramLoss()
        HistogramLoss(num_bins=100, low=-1.0, high=1.0)
    """

    function = staticmethod(histogram_loss)

    def __init__(self, num_bins: int = 100, low: float = -1.0, high: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(num_bins=num_bins, low=low, high=high, reduction=reduction)
