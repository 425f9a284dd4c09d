"""The set sorter: a permutation-equivariant network for lists of any length, built on Fourier features."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sodeep._core.checks import check_at_least, check_choice, check_positive, describe
from sodeep._core.lists import masked_mean
from sodeep.sorters.base import Recipe, Sorter, check_count


class SetSorter(Sorter):
    """A permutation-equivariant network for lists of any length: Fourier summaries of the list, read by each item.

    The standardised scores become bounded coordinates y in (-1/2, 1/2), the arctangent about a robust centre and scale.
    Each stage then replaces y_i by the mean over the list of a learned odd function of y_i - y_j, a centred rank where
    the function is steep. Written as a Fourier series it costs O(n) per frequency, not O(n²) (see `_FourierStage`).
    Later stages see the nearly evenly spread output of the ones before, in which few frequencies resolve every item.
    Untrained, the network is a soft rank already; training adapts the functions to the list at hand.

    The output is centred so that the ranks of every list sum to n (n + 1) / 2; the network reads masks itself.

    A function near the exact ranks is steep where items meet and flat elsewhere: its derivative is a poor guide for an
    optimiser. So the gradient is, by default, that of one more, much smoother stage over the same scores,
    trained for nothing else (a straight-through estimator): the values are near the exact ranks, the gradient is
    smooth, and costs little. As with the handcrafted ranks, no gradient flows through the scale of the list. A second
    derivative is that of this stage, at that scale. Where an item lies more than about ten thousand times as far off as
    the others lie apart, these others get nearly one rank.

    Args:
        seq_len: ignored; the network takes any length.
        gradient: "smooth": that of the smooth stage. "values": the derivative of the values, as of any other sorter.
        frequencies: how many in each stage; as many stages as entries.
        smoothness: at the start of training: the highest frequency in widths of the Gaussian that damps a series.
            Less is sharper, and rings more.
        condition: units of the networks that adapt the functions to the list.
        normalize: see `Sorter`.
    """

    name = "set"
    reads_masks = True

    @classmethod
    def recipe(cls, config: Mapping[str, Any]) -> Recipe:
        """See `Sorter.recipe`."""
        return Recipe(steps=4000, batch_size=32, lr=2e-3)

    def __init__(
        self,
        seq_len: int | None = None,
        *,
        gradient: Literal["smooth", "values"] = "smooth",
        frequencies: Sequence[int] = (16, 32, 40),
        smoothness: float = 1.5,
        condition: int = 64,
        normalize: bool = True,
    ) -> None:
        check_choice(gradient, ("smooth", "values"), "gradient")
        if not isinstance(frequencies, (list, tuple)) or not frequencies:
            raise ValueError(
                f"`frequencies` must be a list of whole numbers, one for each stage, got {describe(frequencies)}."
            )
        check_count(len(frequencies), "len(frequencies)")
        frequencies = [check_count(value, "frequencies") for value in frequencies]
        check_count(sum(frequencies), "sum(frequencies)")
        smoothness = check_positive(smoothness, "smoothness")
        condition = check_at_least(condition, 1, "condition")
        super().__init__(
            None,
            normalize=normalize,
            gradient=gradient,
            frequencies=frequencies,
            smoothness=smoothness,
            condition=condition,
        )
        self.stages = nn.ModuleList(_FourierStage(count, smoothness, condition) for count in frequencies)
        self.separate_gradient = gradient == "smooth"
        if self.separate_gradient:
            self.slope = _FourierStage(16, 2.5, condition)

    def network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """See `Sorter.network`."""
        values, count, location, scale = self._values(x, where)
        if not self.separate_gradient:
            return values
        # coordinates in nearly even proportion to the scores, but for far outliers; no narrower than a tenth of the
        # standard deviation, or the gradient of a list that is nearly all ties would be huge
        smooth = self.slope(bounded(x, location, 4 * scale.clamp(min=0.1)), where, count)
        ranks: Tensor = values - (smooth - smooth.detach())
        return ranks

    def value_network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """See `Sorter.value_network`."""
        return self._values(x, where)[0]

    def _values(self, x: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Normalised ranks (B, n) by the stages; and each list's number of items, location and scale, all (B, 1)."""
        if where is None:
            count = torch.full_like(x[..., :1], x.shape[-1])
        else:
            count = where.sum(-1, keepdim=True).clamp(min=1).to(x.dtype)
        fixed = x.detach() if self.separate_gradient else x
        location, scale = cauchy_fit(fixed, where)
        y = bounded(fixed, location, scale)
        for stage in self.stages:
            y = stage(y, where, count)
        return (count + 1) / (2 * count) - y, count, location, scale


def bounded(x: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """Scores as coordinates in (-1/2, 1/2)."""
    return torch.atan((x - location) / scale) / math.pi


def cauchy_fit(x: Tensor, where: Tensor | None, steps: int = 2) -> tuple[Tensor, Tensor]:
    """Location and scale (B, 1) of the Cauchy distribution nearest to standardised scores (B, n).

    Both come from a few steps of their fixed point, means reweighted by 1 / (1 + (x - m)² / s²), so that a few
    outliers do not squeeze all other items together.
    """
    location, scale2 = torch.zeros_like(x[..., :1]), torch.ones_like(x[..., :1])
    for _ in range(steps):
        square = (x - location) ** 2
        weight = 1 / (1 + square / scale2)
        total = masked_mean(weight, where, keepdim=True)
        total = total.masked_fill(total == 0, 1)  # of a list without a real item: 0 / 0 would be in its gradient
        location = masked_mean(weight * x, where, keepdim=True) / total
        spread = masked_mean(weight * square, where, keepdim=True) / total
        scale2 = torch.where(spread > 0, spread + 1e-6, 1.0)  # of a constant list any will do
    return location, scale2**0.5


class _FourierStage(nn.Module):
    """Coordinates y (B, n) to better ones: each item against the whole list, in O(n) per frequency.

    With C_k = mean_j cos(w_k y_j) and S_k = mean_j sin(w_k y_j), the mean over the list of sin(w_k (y_i - y_j)) is
    C_k sin(w_k y_i) - S_k cos(w_k y_i). At odd multiples w_k = 2π (2k + 1) / period and weights 2 / (π (2k + 1)) these
    sum to the Fourier series of sign(y_i - y_j) / 2, whose mean over j is the centred rank of item i. A learned filter
    over k, adapted to each list by a small network on its power spectrum C² + S², sets how sharp a step to count with.
    """

    period = 2.5
    """Above 2, so that the square wave is a sign function for all differences of coordinates in (-1, 1)."""

    frequencies: Tensor
    series: Tensor

    def __init__(self, frequencies: int, smoothness: float, condition: int) -> None:
        super().__init__()
        odd = [2 * k + 1 for k in range(frequencies)]
        self.register_buffer("frequencies", torch.tensor([2 * math.pi / self.period * m for m in odd]))
        self.register_buffer("series", torch.tensor([2 / math.pi / m for m in odd]))
        # Gaussian damping removes the ringing of a cut series
        self.filter = nn.Parameter(torch.tensor([math.exp(-((smoothness * m / odd[-1]) ** 2) / 2) for m in odd]))
        adapt = nn.Linear(condition, frequencies)
        nn.init.zeros_(adapt.weight)
        nn.init.zeros_(adapt.bias)
        self.condition = nn.Sequential(nn.Linear(frequencies + 1, condition), nn.SiLU(), adapt)

    def forward(self, y: Tensor, where: Tensor | None, count: Tensor) -> Tensor:
        angles = self.frequencies.unsqueeze(-1) * y.unsqueeze(-2)
        waves = torch.cat([angles.cos(), angles.sin()], -2)  # (B, 2 K, n)
        summary = waves.mean(-1) if where is None else (waves @ where.to(y.dtype).unsqueeze(-1)).squeeze(-1) / count
        cos, sin = summary.chunk(2, -1)  # (B, K)
        # 10: an input of about unit size, for lists of tens to thousands
        gain = 1 + self.condition(torch.cat([cos**2 + sin**2, 10 * count**-0.5], -1))
        weight = self.filter * self.series * gain
        reading = (torch.cat([-weight * sin, weight * cos], -1).unsqueeze(-2) @ waves).squeeze(-2)
        return reading - masked_mean(reading, where, keepdim=True)
