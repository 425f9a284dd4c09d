"""The arithmetic of soft ranks: sums of soft comparisons over all pairs of a list, and their derivatives.

A soft rank is ``1/2 + sum over j of F((x_j - x_i) / tau)`` for a comparator F that rises from 0 to 1: a sigmoid, whose
sums are taken over tiles of pairs, or the Laplace cdf, whose sums are running sums along the sorted list. Values and
gradients are in closed form, and no pair is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from sodeep._core.checks import (
    check_device,
    check_finite,
    check_positive,
    compiling,
    describe,
    ordinary,
    read_number,
    readable,
    untransformed,
)
from sodeep._core.sigmoid_blocks import block_sums, worthwhile
from sodeep._core.sort import ascending

SPREAD_PER_TAU = 6.8
"""``tau=None`` is the standard deviation of the list over this: ranks stay within about 1 % of exact, gradients
smooth."""


class Width(NamedTuple):
    """Scale and location of lists: (..., 1) each, in float64."""

    tau: Tensor
    middle: Tensor
    """Halfway between the extreme scores."""
    widest: float
    """The most tau that a list spans; infinite where that is not known."""

    def narrow(self, dtype: torch.dtype = torch.float64) -> bool:
        """Whether exponentials of the scores over tau lie inside the range of `dtype`, counted from `middle`."""
        return self.widest < _WIDEST[dtype]


_WIDEST = {torch.float32: 170.0, torch.float64: 1300.0}
"""exp(±650), and the sum of ten million of them, lie inside the range of float64; exp(±85) and two, of float32."""


def measure(
    x: Tensor, tau: float | Tensor | None, where: Tensor | None, deviations: float = 1 / SPREAD_PER_TAU
) -> Width:
    """The width of each list, `deviations` of its standard deviations where tau is None.

    One number is read, the widest list in tau: it shows NaN and infinity as well.
    """
    x = x.detach()
    low, high = x, x
    count: Any = x.shape[-1]
    if where is not None:
        count = where.sum(-1, keepdim=True, dtype=torch.float64)
        empty = count == 0
        low, high = x.masked_fill(~where, torch.inf), x.masked_fill(~where, -torch.inf)
    low, high = low.amin(-1, keepdim=True), high.amax(-1, keepdim=True).double()
    if where is not None:
        low, high, count = low.masked_fill(empty, 0), high.masked_fill(empty, 0), count.masked_fill(empty, 1)
    span = high - low
    if tau is None:
        wide = clear(x, where).double()
        mean = wide.sum(-1, keepdim=True).div_(count)
        # over the span: no square leaves the range of float64
        deviation = clear((wide - mean).div_(span), where)
        width = torch.linalg.vector_norm(deviation, dim=-1, keepdim=True).mul_(span).mul_(deviations).div_(count**0.5)
        width.masked_fill_(span == 0, 1)  # equal scores are equal at any width
    elif isinstance(tau, Tensor):
        width = check_tau(tau, x).double()
    else:
        width = torch.full_like(span, check_positive(tau, "tau"))
    if not readable(x):
        return Width(width + 0 * span, high, math.inf)  # NaN for a list with NaN or infinity
    widest = read_number((span / width).max()) if span.numel() else 0.0
    if not widest < torch.inf:
        check_finite(x, where)
    return Width(width, span.div_(2).add_(low), widest)


def check_tau(tau: Tensor, x: Tensor) -> Tensor:
    """`tau` as (..., 1), one positive number a list."""
    shape = (*x.shape[:-1], 1)
    check_device(tau, x, "tau", "scores")
    try:
        tau = ordinary(tau.detach().expand(shape))
    except RuntimeError:
        raise ValueError(
            f"`tau` must broadcast to {shape}, one number a list, got {describe(tau)}. "
            "Its last axis must have one entry: tau.unsqueeze(-1)."
        ) from None
    if readable(tau) and not bool(((tau > 0) & (tau < torch.inf)).all()):
        raise ValueError(
            f"`tau` must be positive and finite, got a smallest value of {float(tau.min())}. To learn one that stays "
            "so, learn its logarithm: lambda scores: laplace_rank(scores, tau=log_tau.exp())."
        )
    return tau


def soft_rank(pairs: type[Comparator], x: Tensor, width: Width, where: Tensor | None) -> Tensor:
    """Soft ranks by the comparator `pairs`: 1/2 + Σ_j F((s_j − s_i) / tau), where j = i adds the missing half."""
    if not untransformed(x):
        return clear(pairs.traced(sink(x, where), width.tau), where)
    ranks: Tensor = _SoftRank.apply(x, where, width, pairs)  # type: ignore[no-untyped-call]
    return ranks


class _SoftRank(Function):
    """Soft ranks by a comparator F. With f = F' the Jacobian is symmetric.

    dr_i/dx_k is f((x_k - x_i) / tau) / tau for i ≠ k, and minus the sum of those on the diagonal.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, where: Tensor | None, width: Width, pairs: type[Comparator]) -> Tensor:
        ranks, *state = pairs.rank(sink(x, where), width)
        ctx.pairs = pairs
        ctx.save_for_backward(x, where, width.tau, *state)
        return clear(ranks, where)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        # a Function costs as much as several kernels of a short list: only where its own derivative is wanted
        gradient = _SoftRankGradient.apply if torch.is_grad_enabled() else _SoftRankGradient.value
        return gradient(g, ctx.pairs, *ctx.saved_tensors), None, None, None


class _SoftRankGradient(Function):
    """The Jacobian of `_SoftRank` times g; differentiable itself, for penalties on the gradient."""

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, pairs: type[Comparator], x: Tensor, where: Tensor | None, tau: Tensor, *state: Tensor
    ) -> Tensor:
        ctx.pairs = pairs
        ctx.save_for_backward(g, x, where, tau, *state)
        return _SoftRankGradient.value(g, pairs, x, where, tau, *state)

    @staticmethod
    def value(
        g: Tensor, pairs: type[Comparator], x: Tensor, where: Tensor | None, tau: Tensor, *state: Tensor
    ) -> Tensor:
        return clear(pairs.gradient(clear(g, where), sink(x, where), tau, *state), where)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, h: Tensor) -> Any:
        g, x, where, tau, *state = ctx.saved_tensors
        x, g, h = sink(x, where), clear(g, where), clear(h, where)
        by_g = clear(ctx.pairs.gradient(h, x, tau, *state), where)
        by_x = clear(ctx.pairs.curvature(g, h, x, tau, *state), where)
        return by_g, None, by_x, None, None, *(None for _ in state)


class Comparator:
    """A comparator F, with f = F': its sums over all pairs of a list (..., n)."""

    @classmethod
    def traced(cls, x: Tensor, tau: Tensor) -> Tensor:
        """1/2 + Σ_j F((x_j − x_i) / tau) in operations that torch differentiates, maps and compiles by itself."""
        raise NotImplementedError

    @classmethod
    def rank(cls, x: Tensor, width: Width) -> tuple[Tensor, ...]:
        """The same, followed by the tensors that `gradient` and `curvature` need as `state`."""
        raise NotImplementedError

    @classmethod
    def gradient(cls, g: Tensor, x: Tensor, tau: Tensor, *state: Tensor) -> Tensor:
        """(Σ_i g_i f_ik − g_k Σ_j f_jk) / tau."""
        raise NotImplementedError

    @classmethod
    def curvature(cls, g: Tensor, h: Tensor, x: Tensor, tau: Tensor, *state: Tensor) -> Tensor:
        """The gradient by x of Σ_k h_k gradient(g)_k, which is −Σ_{i<k} f_ik (g_i − g_k)(h_i − h_k) / tau."""
        raise NotImplementedError


class Sigmoid(Comparator):
    """The sigmoid σ, with f = σ(1 − σ) and f' = f(1 − 2σ), for any spread.

    σ − 1/2 and f' are odd in the difference and f is even, so each pair is visited once: a tile of the n × n pairs
    serves its rows and its columns. Long lists on a CPU go by blocks: see `sodeep._core.sigmoid_blocks`.

    Of lists that are not wide the σ of a pair is a_j / (a_j + a_i), from one exponential an item, not one a pair.
    """

    @classmethod
    def traced(cls, x: Tensor, tau: Tensor) -> Tensor:
        x = _above_minus_infinity(x)
        d = (x.unsqueeze(-2) - x.unsqueeze(-1)) / tau.to(x.dtype).unsqueeze(-1)
        return d.sigmoid().sum(-1) + 0.5

    @classmethod
    def rank(cls, x: Tensor, width: Width) -> tuple[Tensor, ...]:
        place = exponentials(x, width) if width.narrow(x.dtype) else None
        (total,) = cls._sums(x, width.tau, place, lambda s: s.sub_(0.5), -1)
        return ((x.shape[-1] + 1) / 2 + total).to(x.dtype), *(() if place is None else (place,))

    @classmethod
    def gradient(cls, g: Tensor, x: Tensor, tau: Tensor, *state: Tensor) -> Tensor:
        place = state[0] if state else None
        density, smooth = cls._sums(x, tau, place, lambda s: s.addcmul_(s, s, value=-1), 1, g)
        return ((smooth - g * density) / tau).to(g.dtype)

    @classmethod
    def curvature(cls, g: Tensor, h: Tensor, x: Tensor, tau: Tensor, *state: Tensor) -> Tensor:
        # by m: Σ_j f'((x_j − x_m) / tau) (g_m − g_j)(h_m − h_j) / tau², the product multiplied out
        place = state[0] if state else None
        slope, by_g, by_h, by_gh = cls._sums(x, tau, place, lambda s: s * (1 - s) * (1 - 2 * s), -1, g, h, g * h)
        return ((g * h * slope - h * by_g - g * by_h + by_gh) / (tau * tau)).to(x.dtype)

    @classmethod
    def _sums(
        cls,
        x: Tensor,
        tau: Tensor,
        place: Tensor | None,
        kernel: Callable[[Tensor], Tensor],
        sign: int,
        *weights: Tensor,
    ) -> list[Tensor]:
        """Σ_j k_ij, then Σ_j k_ij u_j for each u of the weights.

        k_ij = kernel(σ((x_j − x_i) / tau)), which must be odd or even: k_ji = sign · k_ij. Where `place` is given, it
        is the `exponentials`.
        """
        if worthwhile(x):
            return block_sums(x, tau, kernel, sign, *weights)
        n = x.shape[-1]
        lists = (x if place is None else place).reshape(-1, n)
        sharpness = (1 / tau).to(x.dtype).clamp(max=torch.finfo(x.dtype).max).reshape(-1, 1, 1)
        columns = [None, *(u.reshape(-1, n) for u in weights)]
        sums = [torch.zeros(lists.shape, dtype=torch.float64, device=x.device) for _ in columns]
        memory: list[Tensor] = []
        for some, i, j in _tiles(lists):
            above, here = lists[some, None, j], lists[some, i, None]
            shape = (above.shape[0], here.shape[1], above.shape[2])  # (lists, rows, columns)
            if not memory:  # the first tile is the largest; new memory for each costs as much as the arithmetic
                memory = [x.new_empty(math.prod(shape)) for _ in range(2)]
            k, room = (flat[: math.prod(shape)].view(shape) for flat in memory)
            if place is None:
                torch.sub(above, here, out=k).mul_(sharpness[some]).sigmoid_()
            else:
                torch.div(above, torch.add(above, here, out=k), out=k)
            k = kernel(k)
            for u, total in zip(columns, sums, strict=True):
                total[some, i] += (k if u is None else torch.mul(k, u[some, None, j], out=room)).sum(-1)
                if i != j:
                    by_column = (k if u is None else torch.mul(k, u[some, i, None], out=room)).sum(-2)
                    total[some, j].add_(by_column, alpha=sign)
        return [total.reshape(x.shape) for total in sums]


def exponentials(x: Tensor, width: Width) -> Tensor:
    """a_i = exp(x_i / tau) of narrow lists, but for a factor: σ((x_j − x_i) / tau) = a_j / (a_j + a_i).

    Masked items, at minus infinity, have 0: only among themselves is their σ no number.
    """
    return (x.double() - width.middle).div_(width.tau).exp_().to(x.dtype)


def _tiles(lists: Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """Lists, rows and columns of tiles on and above the diagonal of the n × n pairs of each list of (B, n).

    Those on the diagonal visit their pairs twice: sides are as short as still fills a tile with lists.
    """
    batch, n = lists.shape
    largest, side = _TILE[lists.device.type == "cpu"]
    while batch * side**2 < largest and (2 * side) ** 2 <= largest:
        side *= 2
    side = min(side, n)
    together = max(1, largest // side**2)
    for first in range(0, batch, together):
        for top in range(0, n, side):
            for left in range(top, n, side):
                yield slice(first, first + together), slice(top, top + side), slice(left, left + side)


_TILE = {True: (2**19, 2**7), False: (2**22, 2**11)}
"""Pairs of a tile, over several lists, and its shortest side: on a CPU it fits the cache, elsewhere it keeps the device
busy."""


class Laplace(Comparator):
    """The Laplace cdf, f(d) = exp(−|d|)/2, for any spread.

    In the sorted list each sum over pairs is a sum over the items below, weighted by exp(y_j − y_i), and one over the
    items above, weighted by exp(y_i − y_j). Both are running sums; here both include the item itself.
    """

    @classmethod
    def traced(cls, x: Tensor, tau: Tensor) -> Tensor:
        y, order = torch.sort(x)
        y = _above_minus_infinity(y.double())
        if torch.onnx.is_in_onnx_export():
            below, above = cls.pairwise_sums(y, tau)
        elif compiling():
            below, above = cls.scanned_sums(y, tau)
        else:
            below, above = cls.running_sums(None, y, tau)
        ranks = torch.arange(x.shape[-1], 0, -1, device=x.device) + (below - above) / 2
        return torch.zeros_like(x).scatter(-1, order, ranks.to(x.dtype))

    @classmethod
    def rank(cls, x: Tensor, width: Width) -> tuple[Tensor, ...]:
        y, order = ascending(x)
        place = cls.place(y.double(), width)
        below, above = cls.running_sums(None, place, width.tau)
        # counting from the top, and moving half of each tail across: an item just above adds 1/2, not 1
        position = torch.arange(x.shape[-1], 0, -1, dtype=torch.float64, device=x.device)
        density = above.add_(below)
        ranks = below.sub_(density, alpha=0.5).add_(position)  # position + (below - above) / 2
        return x.scatter(-1, order, ranks.to(x.dtype)), place, order, density

    @classmethod
    def gradient(cls, g: Tensor, x: Tensor, tau: Tensor, *state: Tensor) -> Tensor:
        place, order, density = state
        sorted_g = g.gather(-1, order).double()
        below, above = cls.running_sums(sorted_g, place, tau)
        gradient = below.add_(above).addcmul_(sorted_g, density, value=-1).div_(2 * tau)
        return g.scatter(-1, order, gradient.to(g.dtype))

    @classmethod
    def curvature(cls, g: Tensor, h: Tensor, x: Tensor, tau: Tensor, *state: Tensor) -> Tensor:
        # f' = −sign(d) f; by m: −Σ_j f'((x_m − x_j) / tau) (g_m − g_j)(h_m − h_j) / tau²
        place, order, _ = state
        g, h = g.gather(-1, order).double(), h.gather(-1, order).double()
        one, by_g, by_h, by_gh = (
            below - above for below, above in (cls.running_sums(u, place, tau) for u in (None, g, h, g * h))
        )
        curvature = (g * h * one - h * by_g - g * by_h + by_gh) / (2 * tau * tau)
        return x.scatter(-1, order, curvature.to(x.dtype))

    @classmethod
    def place(cls, y: Tensor, width: Width) -> Tensor:
        """The sorted scores in the form that `running_sums` needs; `y` may be overwritten."""
        return _above_minus_infinity(y)

    @classmethod
    def running_sums(cls, u: Tensor | None, place: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_{j ≤ i} u_j exp((y_j − y_i)/tau) and Σ_{j ≥ i} u_j exp((y_i − y_j)/tau); u None: ones."""
        u = torch.ones_like(place) if u is None else u
        gaps = (place.diff(dim=-1) / tau).clamp(max=_FAR)
        below = _decaying_sums(u, pad(gaps, (1, 0), value=_FAR))
        return below, _decaying_sums(u.flip(-1), pad(gaps.flip(-1), (1, 0), value=_FAR)).flip(-1)

    @classmethod
    def scanned_sums(cls, place: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
        """The same with u None, in as many steps whatever n: what torch.compile makes serves all lengths.

        An item `_FAR` tau away adds nothing to the 1 of the item itself: gaps need not be wider, and the
        logarithms of the sums stay small enough to be exact to rounding.
        """
        along = pad((place.diff(dim=-1) / tau).clamp(max=_FAR), (1, 0)).cumsum(-1)
        below = along.logcumsumexp(-1) - along
        above = (-along).flip(-1).logcumsumexp(-1).flip(-1) + along
        return below.exp(), above.exp()

    @classmethod
    def pairwise_sums(cls, place: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
        """The same in O(n²). ONNX files have logcumsumexp in a form that is -inf far below the largest item."""
        i, j = place.unsqueeze(-1), place.unsqueeze(-2)
        gaps = torch.where(i == j, 0, (i - j).abs())  # its runtime makes -inf of float64's least number too
        closeness = (-gaps / tau.unsqueeze(-1)).exp()
        return closeness.tril().sum(-1), closeness.triu().sum(-1)


_FAR = 80.0
"""exp(-80) is so far below the rounding of float64 that what is farther adds nothing."""

_SIDE = 8
"""Items of a block: it spans at most 640 tau, and exp(±320) lies inside the range of float64 with room for u."""


def _decaying_sums(u: Tensor, gaps: Tensor) -> Tensor:
    """S of S_i = u_i + exp(−gaps_i) S_{i−1}, along the last axis; gaps of `_FAR`, the largest, let nothing across.

    In a block the sums are plain running sums of u_j exp(y_j), over exp(y_i). What the blocks before add is the same
    recurrence over the last items of the blocks, a list an eighth as long.
    """
    n = u.shape[-1]
    blocks, steps = (pad(x, (0, -n % _SIDE)).reshape(*x.shape[:-1], -(-n // _SIDE), _SIDE) for x in (u, gaps))
    along = steps.cumsum(-1)  # from the last item of the block before
    growth = (along - _SIDE * _FAR / 2).exp()
    sums = (blocks * growth).cumsum(-1)
    if n > _SIDE:
        carried = _decaying_sums(sums[..., -1] / growth[..., -1], along[..., -1].clamp(max=_FAR))
        sums = sums + pad(carried[..., :-1], (1, 0)).unsqueeze(-1) * math.exp(-_SIDE * _FAR / 2)
    sums = (sums / growth).flatten(-2)[..., :n]
    return torch.where(gaps == _FAR, u, sums)  # exactly: a gradient that is 0 is a difference of these


class NarrowLaplace(Laplace):
    """The same for lists that span less than `_WIDEST` tau: plain sums of exponentials stay inside float64."""

    @classmethod
    def place(cls, y: Tensor, width: Width) -> Tensor:
        return y.sub_(width.middle).div_(width.tau).exp_()

    @classmethod
    def running_sums(cls, u: Tensor | None, place: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
        if u is None:
            below, above = place.cumsum(-1), place.flip(-1).reciprocal_()
        else:
            below, above = (u * place).cumsum_(-1), (u / place).flip(-1)
        # a running sum from the top, not the total minus the one from below, which would cancel
        return below.div_(place), above.cumsum_(-1).flip(-1).mul_(place)


def _above_minus_infinity(x: Tensor) -> Tensor:
    """`x` with -inf, the value of masked items, made finite: the difference of two infinities is NaN."""
    return x.clamp(min=torch.finfo(x.dtype).min)


def sink(x: Tensor, where: Tensor | None) -> Tensor:
    """`x` with its masked items at -inf: below every real item, they add exactly 0 to its rank, exact or soft."""
    return x if where is None else x.masked_fill(~where, -torch.inf)


def clear(x: Tensor, where: Tensor | None) -> Tensor:
    """`x` with its masked items at 0, whatever they held."""
    return x if where is None else x.masked_fill(~where, 0)
