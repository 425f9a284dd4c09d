"""Sums of a smooth function of σ((x_j − x_i) / tau) over all pairs of a long list, in O(n log n): a sort, and blocks.

Pairs within a block of neighbours are visited. Those of different blocks all have the same order, so that with
z = exp(−|x_j − x_i| / tau) in [0, 1] the function is smooth in z, and a polynomial in it to rounding: its nearest pole
is at z = −1, and each degree adds three quarters of a digit. A power of z is a product of a factor for either item and
one for the blocks between.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

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
        near = (y[some, :, None, :] - y[some, :, :, None]).mul_(sharpness[some, None].to(x.dtype))
        near = kernel(near.sigmoid_())
        far = _Far(y[some].double(), sharpness[some], coefficients)
        for u, total in zip(columns, sums, strict=True):
            below, above = far.sums(u[some])
            within = (near * u[some, :, None, :].to(x.dtype)).sum(-1)
            by_place = above.add_(below, alpha=sign).add_(within).reshape(-1, side * y.shape[1])[:, :n]
            if ties is not None:  # equal scores lie in several blocks: the same to the last bit
                by_place = by_place.gather(-1, ties[some])
            total[some] = torch.empty_like(by_place).scatter_(-1, order[some], by_place)
    return [total.reshape(x.shape) for total in sums]


class _Far:
    """Σ_j Σ_m c_m z_ij^m u_j over the blocks below, and those above; sorted blocks y are (lists, blocks, items)."""

    def __init__(self, y: Tensor, sharpness: Tensor, coefficients: Tensor) -> None:
        self.coefficients = coefficients
        edges = torch.cat([y[:, :, 0], y[:, -1:, -1]], -1).unsqueeze(-1)  # where each block begins, and the end
        self.low, self.high, self.across = (
            self._powers((d * sharpness).exp_())
            for d in (edges[:, :-1] - y, y - edges[:, 1:], edges[:, :-1] - edges[:, 1:])
        )

    def _powers(self, z: Tensor) -> Tensor:
        z = z.unsqueeze(-1).expand(*z.shape, len(self.coefficients) - 1)
        return pad(z.cumprod(-1), (1, 0), value=1.0)

    def sums(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Of the weights u (lists, blocks, items)."""
        u, blocks = u.unsqueeze(-2), range(u.shape[1])
        below = self._carried((u @ self.high).squeeze(-2), blocks)
        above = self._carried((u @ self.low).squeeze(-2), blocks[::-1])
        return (self.low @ below).squeeze(-1), (self.high @ above).squeeze(-1)

    def _carried(self, own: Tensor, blocks: range) -> Tensor:
        """What reaches each block from those before it in the order of `blocks`, times the coefficients."""
        carried = torch.zeros_like(own)
        for before, here in itertools.pairwise(blocks):
            carried[:, here] = carried[:, before] * self.across[:, before, 0] + own[:, before]
        return (carried * self.coefficients).unsqueeze(-1)


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
