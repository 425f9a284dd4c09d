"""The set sorter: a permutation-equivariant network for lists of any length, built on Fourier features."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from sodeep._core.checks import check_at_least, check_choice, check_number, check_positive, describe, readable
from sodeep._core.lists import masked_mean
from sodeep.sorters.base import Recipe, Sorter, check_count

if TYPE_CHECKING:
    from typing_extensions import Self


WIDTH = 1.0
"""Default width of the gradient, in standard deviations of the list: the best of those tried by optimisation score."""

NARROWEST = 0.05
"""The least one: a narrower gradient would need more frequencies than the values."""

GAPS = 2.5
"""The least one of n items, times n: about the mean gap between neighbours of a few normal scores. A comparison
narrower than the gaps is flat at all of the items."""

DAMPED = 12.0
"""The series of a gradient ends where the factor z / sinh z of its terms is below 1e-4. Cut earlier, it rings: the
gradient between items far apart, which counts where few items are relevant, would have an arbitrary sign."""

PERIOD = 2.5
"""Of the square waves: above 2, so that each is a sign function for all differences of coordinates in (-1, 1)."""


class SetSorter(Sorter):
    """A permutation-equivariant network for lists of any length: Fourier summaries of the list, read by each item.

    The standardised scores become bounded coordinates y in (-1/2, 1/2), the arctangent about a robust centre and scale.
    Each stage then replaces y_i by the mean over the list of a learned odd function of y_i - y_j, a centred rank where
    the function is steep. Written as a Fourier series it costs O(n) per frequency, not O(n²) (see `_FourierStage`).
    Later stages see the nearly evenly spread output of the ones before, in which few frequencies resolve every item.
    Untrained, the network is a soft rank already; training adapts the functions to the list at hand.

    The output is centred so that the ranks of every list sum to n (n + 1) / 2; the network reads masks itself.

    A function near the exact ranks is steep where items meet and flat elsewhere: its derivative is a poor guide for an
    optimiser. So the gradient is, by default, that of soft ranks (a straight-through estimator): sums of sigmoids of
    the differences, `width` standard deviations of the list wide. It needs no training: its Fourier series is known in
    closed form for every width, and is the shorter the wider it is (see `smooth_rank`). `with_width` gives the same
    sorter another width. As with the handcrafted ranks, no gradient flows through the scale of the list. A second
    derivative is that of the soft ranks, at that scale. Where an item lies more than about ten thousand times as far
    off as the others lie apart, these others get nearly one rank.

    Args:
        seq_len: ignored; the network takes any length.
        gradient: "smooth": that of the soft ranks. "values": the derivative of the values, as of any other sorter.
        frequencies: how many in each stage; as many stages as entries.
        smoothness: at the start of training: the highest frequency in widths of the Gaussian that damps a series.
            Less is sharper, and rings more.
        width: of the soft ranks, at least `NARROWEST`; in standard deviations of the list, or in units of its scores
            where these are not normalised. Of n items it is at least `GAPS` / n.
        condition: units of the networks that adapt the functions to the list.
        normalize: see `Sorter`.
    """

    name = "set"
    reads_masks = True

    @classmethod
    def recipe(cls, config: Mapping[str, Any]) -> Recipe:
        """See `Sorter.recipe`."""
        trained = config.get("gradient", "smooth") == "values"
        return Recipe(steps=4000, batch_size=32, lr=2e-3, gradient_weight=Recipe.gradient_weight if trained else 0.0)

    def __init__(
        self,
        seq_len: int | None = None,
        *,
        gradient: Literal["smooth", "values"] = "smooth",
        frequencies: Sequence[int] = (16, 32, 40),
        smoothness: float = 1.5,
        width: float = WIDTH,
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
        width = _check_width(width)
        condition = check_at_least(condition, 1, "condition")
        super().__init__(
            None,
            normalize=normalize,
            gradient=gradient,
            frequencies=frequencies,
            smoothness=smoothness,
            width=width,
            condition=condition,
        )
        self.stages = nn.ModuleList(_FourierStage(count, smoothness, condition) for count in frequencies)
        self.separate_gradient = gradient == "smooth"
        self.width = width

    def with_width(self, width: float) -> Self:
        """This sorter with another `width`: the same values, with a wider or narrower gradient.

        It shares weights, device and file with this one; nothing is copied.

        Raises:
            ValueError: a width below `NARROWEST`, or a sorter whose gradient is that of its values.

        Example:
            >>> sorter = SetSorter().freeze()
            >>> wide = sorter.with_width(2.0)
            >>> scores = torch.tensor([0.2, 0.9, 0.5])
            >>> torch.equal(wide(scores), sorter(scores)), wide.stages is sorter.stages
            (True, True)
        """
        if not self.separate_gradient:
            raise ValueError(
                "`with_width` needs a set sorter with gradient='smooth', got gradient='values': its gradient is that "
                "of its values. Build it with gradient='smooth'."
            )
        other = copy.copy(self)
        other.width = _check_width(width)
        other.config = {**self.config, "width": other.width}
        return other

    def network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """See `Sorter.network`."""
        values, count, location = self._values(x, where)
        if not self.separate_gradient or (readable(x) and not _has_graph(x)):
            return values
        smooth = smooth_rank(x, where, count, location, self.width)
        ranks: Tensor = values - (smooth - smooth.detach())
        return ranks

    def value_network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """See `Sorter.value_network`."""
        return self._values(x, where)[0]

    def _values(self, x: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised ranks (B, n) by the stages; and each list's number of items and location, both (B, 1)."""
        if where is None:
            count = torch.full_like(x[..., :1], x.shape[-1])
        else:
            count = where.sum(-1, keepdim=True).clamp(min=1).to(x.dtype)
        fixed = x.detach() if self.separate_gradient else x
        location, scale = cauchy_fit(fixed, where)
        y = bounded(fixed, location, scale)
        for stage in self.stages:
            y = stage(y, where, count)
        return (count + 1) / (2 * count) - y, count, location


def bounded(x: Tensor, location: Tensor, scale: Tensor | float) -> Tensor:
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

    frequencies: Tensor
    series: Tensor

    def __init__(self, frequencies: int, smoothness: float, condition: int) -> None:
        super().__init__()
        odd = [2 * k + 1 for k in range(frequencies)]
        self.register_buffer("frequencies", torch.tensor([2 * math.pi / PERIOD * m for m in odd]))
        self.register_buffer("series", torch.tensor([2 / math.pi / m for m in odd]))
        # Gaussian damping removes the ringing of a cut series
        self.filter = nn.Parameter(torch.tensor([math.exp(-((smoothness * m / odd[-1]) ** 2) / 2) for m in odd]))
        adapt = nn.Linear(condition, frequencies)
        nn.init.zeros_(adapt.weight)
        nn.init.zeros_(adapt.bias)
        self.condition = nn.Sequential(nn.Linear(frequencies + 1, condition), nn.SiLU(), adapt)

    def forward(self, y: Tensor, where: Tensor | None, count: Tensor) -> Tensor:
        waves, summary = fourier(y, where, count, self.frequencies)
        cos, sin = summary.chunk(2, -1)
        # 10: an input of about unit size, for lists of tens to thousands
        gain = 1 + self.condition(torch.cat([cos**2 + sin**2, 10 * count**-0.5], -1))
        return read(waves, summary, self.filter * self.series * gain, where)


def smooth_rank(x: Tensor, where: Tensor | None, count: Tensor, location: Tensor, width: float) -> Tensor:
    """Centred soft ranks over n, (B, n), of scores x (B, n): those of `sigmoid_rank` with tau = `width`, in O(n).

    In the letters of `_FourierStage`: the square wave, convolved with the density of a logistic distribution of scale
    tau, has the same series, each term times z / sinh z with z = π w_k tau. The coordinates are in proportion to the
    scores, but for far outliers, between which the comparison is wider: their scale is several standard deviations, and
    several widths.
    """
    scale = 2.5 * max(1, 2 * width)
    count_needed = math.ceil(DAMPED * PERIOD / (4 * math.pi) * scale / width + 0.5)
    odd = torch.arange(1, 2 * count_needed, 2, device=x.device, dtype=x.dtype)
    frequencies = 2 * math.pi / PERIOD * odd
    z = frequencies * (GAPS / count).clamp(min=width) / scale  # tau is width / (π scale) in these coordinates
    weight = z / z.sinh() * 2 / (math.pi * odd)
    waves, summary = fourier(bounded(x, location, scale), where, count, frequencies)
    return read(waves, summary, weight, where)


def fourier(y: Tensor, where: Tensor | None, count: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Waves of each item (B, 2 K, n), cosines first, and their means over the list (B, 2 K)."""
    angles = frequencies.unsqueeze(-1) * y.unsqueeze(-2)
    if readable(angles) and not _has_graph(angles):  # joined, they would be written twice
        waves = angles.new_empty(*angles.shape[:-2], 2, *angles.shape[-2:])
        torch.cos(angles, out=waves.select(-3, 0))
        torch.sin(angles, out=waves.select(-3, 1))
        waves = waves.flatten(-3, -2)
    else:
        waves = torch.cat([angles.cos(), angles.sin()], -2)
    return waves, waves.mean(-1) if where is None else (waves @ where.to(y.dtype).unsqueeze(-1)).squeeze(-1) / count


def read(waves: Tensor, summary: Tensor, weight: Tensor, where: Tensor | None) -> Tensor:
    """Each item's mean over the list of the odd function of these `weight` (B, K), centred: (B, n)."""
    cos, sin = summary.chunk(2, -1)
    reading = (torch.cat([-weight * sin, weight * cos], -1).unsqueeze(-2) @ waves).squeeze(-2)
    return reading - masked_mean(reading, where, keepdim=True)


def _has_graph(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def _check_width(width: float) -> float:
    """A width, as Python's own number."""
    return check_number(check_positive(width, "width"), "width", low=NARROWEST)
