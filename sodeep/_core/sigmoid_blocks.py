"""Sums of a smooth function of σ((x_j − x_i) / tau) over all pairs of a long list, in O(n log n): a sort, and blocks.

Pairs within a block of neighbours are visited. Those of different blocks all have the same order, so that with
z = exp(−|x_j − x_i| / tau) in [0, 1] the function is smooth in z, and a polynomial in it to rounding: its nearest pole
is at z = −1, and each degree adds three quarters of a digit. A power of z is a product of a factor for either item and
one for the blocks between.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor
from torch.nn.functional import pad

from sodeep._core.sort import ascending, runs

_AT_ONCE = 2**14
"""Items of the lists that are visited together: their powers fit the cache of a CPU."""

_DEGREE = {torch.float32: 12, torch.float64: 22}
"""The error is 1e-9 and 1e-15."""


def worthwhile(x: Tensor) -> bool:
    """Whether blocks are faster than all pairs of the lists `x` (..., n): many small steps, which suit a CPU."""
    n = x.shape[-1]
    return x.device.type == "cpu" and (n >= 2048 or (n >= 480 and x.numel() >= 2**14))


def block_sums(x: Tensor, tau: Tensor, kernel: Callable[[Tensor], Tensor], sign: int, *weights: Tensor) -> list[Tensor]:
    """Σ_j k_ij, then Σ_j k_ij u_j for each u of the weights; k_ij = kernel(σ((x_j − x_i) / tau)) = sign · k_ji."""
    n, side = x.shape[-1], 64 if x.shape[-1] >= 2048 else 32
    lists, order = ascending(x.reshape(-1, n))
    ties = runs(lists)[0] if bool((lists[:, 1:] == lists[:, :-1]).any()) else None
    lists = lists.clamp(min=torch.finfo(x.dtype).min)  # masked items are at minus infinity
    coefficients = _coefficients(kernel, _DEGREE[x.dtype])
    sharpness = (1 / tau).clamp(max=torch.finfo(x.dtype).max).reshape(-1, 1, 1)

    def in_blocks(u: Tensor, filling: Tensor) -> Tensor:  # (lists, blocks, items)
        filled = torch.cat([u, filling.expand(-1, -n % side)], -1)
        return filled.reshape(len(u), -1, side)

    y = in_blocks(lists, lists[:, -1:])
    zero = torch.zeros(len(lists), 1, dtype=torch.float64)
    columns = [torch.ones_like(lists), *(u.reshape(-1, n).gather(-1, order) for u in weights)]
    columns = [in_blocks(u.double(), zero) for u in columns]
    sums = [torch.empty(lists.shape, dtype=torch.float64) for _ in columns]
    together = max(1, _AT_ONCE // n)
    for first in range(0, len(lists), together):
        some = slice(first, first + together)
        far = _Far(y[some], sharpness[some], coefficients, [u[some] for u in columns])
        by_place = [y.new_empty(y[some].shape, dtype=torch.float64) for _ in columns]
        for part in far.parts:
            here = y[some, part]
            near = (here[:, :, None, :] - here[:, :, :, None]).mul_(sharpness[some, None].to(x.dtype))
            near = kernel(near.sigmoid_())
            for u, total, (below, above) in zip(columns, by_place, far.sums(part), strict=True):
                within = (near * u[some, part, None, :].to(x.dtype)).sum(-1)
                total[:, part] = above.add_(below, alpha=sign).add_(within)
        for total, values in zip(sums, by_place, strict=True):
            values = values.flatten(1)[:, :n]
            if ties is not None:  # equal scores lie in several blocks: the same to the last bit
                values = values.gather(-1, ties[some])
            total[some] = torch.empty_like(values).scatter_(-1, order[some], values)
    return [total.reshape(x.shape) for total in sums]


class _Far:
    """Σ_j Σ_m c_m z_ij^m u_j over the blocks below, and those above, for each of the weights u.

    Sorted blocks y and weights are (lists, blocks, items). The powers of a part of a long list are computed when it is
    their turn, once to sum them and once to read the sums: those of all would be hundreds of bytes an item.

    Attributes:
        parts: the blocks that are visited together.
    """

    def __init__(self, y: Tensor, sharpness: Tensor, coefficients: Tensor, weights: list[Tensor]) -> None:
        self.y, self.sharpness, self.degree = y, sharpness, len(coefficients) - 1
        lists, blocks, side = y.shape
        size = max(1, _AT_ONCE // side)
        self.parts = [slice(first, min(blocks, first + size)) for first in range(0, blocks, size)]
        self.edges = torch.cat([y[:, :, 0], y[:, -1:, -1]], -1).double().unsqueeze(-1)  # where blocks begin, the end
        across = self._powers(self.edges[:, :-1] - self.edges[:, 1:])[:, :, 0]
        self.kept: tuple[Tensor, Tensor] | None = None
        if len(self.parts) == 1:
            self.kept = self._powers_of(self.parts[0])
        upward, downward = (
            [torch.empty(lists, blocks, len(coefficients), dtype=torch.float64) for _ in weights] for _ in range(2)
        )
        for part in self.parts:
            low, high = self._powers_of(part)
            for u, up, down in zip(weights, upward, downward, strict=True):
                up[:, part] = (u[:, part].unsqueeze(-2) @ high).squeeze(-2)
                down[:, part] = (u[:, part].unsqueeze(-2) @ low).squeeze(-2)
        self.below = [_carried(own, across) * coefficients for own in upward]
        self.above = [_carried(own.flip(1), across.flip(1)).flip(1) * coefficients for own in downward]

    def sums(self, part: slice) -> Iterator[tuple[Tensor, Tensor]]:
        """Of the items in `part`, for each of the weights."""
        low, high = self._powers_of(part)
        for below, above in zip(self.below, self.above, strict=True):
            yield (low @ below[:, part].unsqueeze(-1)).squeeze(-1), (high @ above[:, part].unsqueeze(-1)).squeeze(-1)

    def _powers_of(self, part: slice) -> tuple[Tensor, Tensor]:
        """z^m of the items in `part` to the beginning of their block, and to the end."""
        if self.kept is not None:
            return self.kept
        y, begin, end = self.y[:, part].double(), self.edges[:, :-1][:, part], self.edges[:, 1:][:, part]
        return self._powers(begin - y), self._powers(y - end)

    def _powers(self, d: Tensor) -> Tensor:
        z = (d * self.sharpness).exp_().unsqueeze(-1).expand(*d.shape, self.degree)
        return pad(z.cumprod(-1), (1, 0), value=1.0)


def _carried(own: Tensor, across: Tensor) -> Tensor:
    """What reaches each block from those before it, (lists, blocks, powers): c_b = c_{b-1} across_{b-1} + own_{b-1}.

    Many blocks go in groups, all of which take a step at a time; then what reaches the groups is added.
    """
    blocks = own.shape[1]
    side = blocks if blocks <= 32 else math.isqrt(blocks) + 1
    groups = -(-blocks // side)
    own, across = (pad(x, (0, 0, 0, groups * side - blocks)).reshape(len(x), groups, side, -1) for x in (own, across))
    carried, decay = torch.zeros_like(own), torch.ones_like(own)
    for before, here in itertools.pairwise(range(side)):
        torch.addcmul(own[:, :, before], carried[:, :, before], across[:, :, before], out=carried[:, :, here])
        if groups > 1:
            torch.mul(decay[:, :, before], across[:, :, before], out=decay[:, :, here])
    if groups > 1:
        total = own[:, :, -1].addcmul(carried[:, :, -1], across[:, :, -1])
        carried += decay * _carried(total, decay[:, :, -1] * across[:, :, -1]).unsqueeze(2)
    return carried.flatten(1, 2)[:, :blocks]


def _coefficients(kernel: Callable[[Tensor], Tensor], degree: int) -> Tensor:
    """Coefficients in z, from the constant up, of kernel(1 / (1 + z)) on [0, 1]; exact at 0."""
    nodes, to_chebyshev, to_powers = _interpolation(degree)
    at_zero = kernel(torch.ones(1, dtype=torch.float64))
    values = kernel(1 / (1 + nodes)) - at_zero
    return torch.cat([at_zero, to_powers @ (to_chebyshev @ (values / nodes))])


@functools.cache
def _interpolation(degree: int) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes in [0, 1]; from values there to Chebyshev coefficients; from those to coefficients of powers.

    In one matrix the two would lose all digits: the first makes small numbers that the second multiplies by large ones.
    """
    angles = (2 * np.arange(degree) + 1) * np.pi / (2 * degree)
    to_chebyshev = np.cos(np.outer(np.arange(degree), angles)) * 2 / degree
    to_chebyshev[0] /= 2
    to_powers = np.zeros((degree, degree))
    for k in range(degree):
        column = Chebyshev.basis(k, domain=[0, 1]).convert(kind=Polynomial, domain=[-1, 1], window=[-1, 1]).coef
        to_powers[: len(column), k] = column
    return torch.from_numpy((np.cos(angles) + 1) / 2), torch.from_numpy(to_chebyshev), torch.from_numpy(to_powers)
