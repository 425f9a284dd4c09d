"""What a rank is, and the rank functions that need no training.

Conventions, here and everywhere in sodeep:

* The last axis is the list; leading axes, any number of them, are batch. ``scores`` are floats, higher = better.
* Ranks are ``1 … n`` with **1 = the highest score**; equal scores share the average of their ranks.
* ``where`` is a boolean mask, True = a real item. A masked item changes nothing, whatever its value, NaN included: real
  items get the ranks they would have if the masked ones were deleted. Its own rank is 0 and its gradient exactly 0.
* A *rank function* is any callable ``scores (..., n) -> ranks (..., n)``: a function of this module, a trained sorter,
  or your own. Ours also take ``where=``. Those of torchsort and fast-soft-sort give rank 1 to the lowest score: turn
  the sign, ``lambda scores: torchsort.soft_rank(-scores)``. Left as it is, such a function would train a model to the
  reverse order; the first call of one warns.
* Ranks are float32 (float64 for float64 scores), under autocast too: half precision cannot hold the ranks of a list of
  300. The gradient comes back in the dtype of the scores.
* NaN or infinity among the real scores is a ValueError. Where values cannot be read, under torch.compile and the
  transforms of torch.func, such a list gets NaN ranks instead.

The rank functions, all in O(n) memory a list:

* `exact_rank`: exact, without gradient, in O(n log n) time.
* `sigmoid_rank`: sums of pairwise sigmoids, with their gradient, in O(n²); long lists on a CPU in O(n log n).
* `laplace_rank`: sums of pairwise Laplace cdfs, with their gradient, in O(n log n).
* `blackbox_rank`: exact, with an interpolated gradient, in O(n log n).
* `straight_through`: exact, with the gradient of another rank function, in the time of both.

`with_width` gives any of them, and a sorter that has a width, another sharpness, in standard deviations of each list.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Container
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from sodeep._core.checks import (
    check_finite,
    check_positive,
    check_scores,
    check_where,
    compiling,
    describe,
    in_forward_mode,
    readable,
    traces_no_gradient,
)
from sodeep._core.lists import masked_mean
from sodeep._core.precision import full_precision, working_dtype
from sodeep._core.soft_ranks import (
    SPREAD_PER_TAU,
    Laplace,
    NarrowLaplace,
    Sigmoid,
    check_tau,
    clear,
    measure,
    sink,
    soft_rank,
)
from sodeep._core.sort import ascending
from sodeep._core.warn import warn

BLACKBOX_STEP = 0.25
"""``lam=None`` moves the scores by this many of their standard deviations, in the root mean square over the list.

Of the powers tried, 0.2 to 0.3 did best at making free scores follow a target order: a mean Spearman of 0.82 after 30
steps and 0.99 after 100; at 1 the ranks swing past each other and it stays below 0.7.
"""


class RankFunction(Protocol):
    """Any callable from scores (..., n) to ranks (..., n), 1 = highest. Nothing needs to subclass it."""

    def __call__(self, scores: Tensor, /) -> Tensor:
        """Ranks of `scores` along the last axis."""


@full_precision
def exact_rank(scores: Tensor, where: Tensor | None = None) -> Tensor:
    """Exact ranks, 1 = highest score, ties averaged. No gradient.

    Args:
        scores: (..., n) floating point.
        where: (..., n) bool, True = a real item.

    Returns:
        (..., n) ranks in [1, n], detached; 0 at masked items.

    Raises:
        TypeError: `scores` is not a floating-point tensor, or `where` not a boolean one.
        ValueError: no item, another shape, or NaN or infinity among the real items.

    Example:
        >>> exact_rank(torch.tensor([0.2, 0.9, 0.5, 0.9]))
        tensor([4.0000, 1.5000, 3.0000, 1.5000])
    """
    scores = check_scores(scores).detach()
    where = check_where(where, scores)
    check_finite(scores, where)
    return _average_rank(scores.to(working_dtype(scores)), where)


@full_precision
def sigmoid_rank(scores: Tensor, tau: float | Tensor | None = None, where: Tensor | None = None) -> Tensor:
    r"""Soft ranks from pairwise sigmoids: the handcrafted sorter.

    For the items i of a list::

        r_i = 1 + Σ_{j≠i} σ((s_j − s_i) / tau)

    These are the exact ranks as tau goes to 0, and (n + 1) / 2 for all as it grows. O(n²) time; the pairs are visited
    in chunks, so that memory is O(n). Long lists on a CPU take O(n log n) time, by sums of the same values to rounding.
    `laplace_rank` is as good and faster.

    Args:
        scores: (..., n) floating point.
        tau: width of the comparison, in units of the scores: a number, or a tensor that broadcasts to (..., 1), one a
            list. None: the standard deviation of the list's real items over 6.8, so that scores of any scale and offset
            get the same ranks. A tensor that requires a gradient, such as a parameter, gets one.
        where: (..., n) bool, True = a real item.

    Returns:
        (..., n) ranks in (0, n + 1) that sum to n(n + 1)/2; 0 at masked items. Equal scores get equal ranks.
        Differentiable twice.

    Raises:
        TypeError: `scores` is not a floating-point tensor, or `where` not a boolean one.
        ValueError: no item, another shape, a tau that is not positive, or NaN or infinity among the real items.

    References:
        Qin, Liu, Li. A general approximation framework for direct optimization of information retrieval measures. 2010,
        equation 13.
        Engilberge, Chevallier, Pérez, Cord. SoDeep: A Sorting Deep Net to Learn Ranking Loss Surrogates. CVPR 2019,
        where it is the exact sorter.

    Example:
        >>> sigmoid_rank(torch.tensor([0.2, 0.9, 0.5]), tau=0.01)
        tensor([3., 1., 2.])
    """
    return _sigmoid_rank(scores, where, tau)


@full_precision
def laplace_rank(scores: Tensor, tau: float | Tensor | None = None, where: Tensor | None = None) -> Tensor:
    r"""Soft ranks from pairwise Laplace cdfs, in O(n log n) time and O(n) memory.

    For the items i of a list::

        r_i  = 1 + Σ_{j≠i} F((s_j − s_i) / tau)
        F(d) = e^d / 2 if d < 0, else 1 − e^−d / 2

    Along the sorted list the sums are running sums of exponentials: the result is that of the O(n²) sum to rounding,
    whatever the spread of the scores.

    Args:
        scores: (..., n) floating point.
        tau: width of the comparison, in units of the scores: a number, or a tensor that broadcasts to (..., 1), one a
            list. None: the standard deviation of the list's real items over 6.8, so that scores of any scale and offset
            get the same ranks. A tensor that requires a gradient, such as a parameter, gets one.
        where: (..., n) bool, True = a real item.

    Returns:
        (..., n) ranks in (0, n + 1) that sum to n(n + 1)/2; 0 at masked items. Equal scores get equal ranks.
        Differentiable twice (the second derivative jumps where scores are equal).

    Raises:
        TypeError: `scores` is not a floating-point tensor, or `where` not a boolean one.
        ValueError: no item, another shape, a tau that is not positive, or NaN or infinity among the real items.

    References:
        Struski et al. LapSum. ICML 2025: sums of Laplace cdfs by one sort.

    Example:
        >>> laplace_rank(torch.tensor([0.2, 0.9, 0.5]), tau=0.01)
        tensor([3., 1., 2.])
    """
    return _laplace_rank(scores, where, tau)


@full_precision
def blackbox_rank(scores: Tensor, lam: float | None = None, where: Tensor | None = None) -> Tensor:
    """Exact ranks forward; backward, the change of the ranks when the scores move along the incoming gradient.

    For a loss L of the ranks r of scores s::

        dL/ds = (r(s + lam · dL/dr) − r(s)) / lam

    This is the gradient of a piecewise linear interpolation of the loss. Ranks do not change under small moves, so
    `lam` must be large enough that items swap.

    Args:
        scores: (..., n) floating point.
        lam: length of the move. None: per list, the standard deviation of the scores over the root mean square of the
            incoming gradient, times `BLACKBOX_STEP`; the gradient is then linear in the incoming gradient's scale, and
            the result does not depend on the scale of the scores.
        where: (..., n) bool, True = a real item.

    Returns:
        (..., n) ranks as `exact_rank` gives them, with a gradient; 0 at masked items. Differentiable once.

    Raises:
        TypeError: `scores` is not a floating-point tensor, or `where` not a boolean one.
        ValueError: no item, another shape, a lam that is not positive, or NaN or infinity among the real items.

    References:
        Rolínek et al. Optimizing Rank-based Metrics with Blackbox Differentiation. CVPR 2020, algorithm 1.

    Example:
        >>> scores = torch.tensor([0.2, 0.9, 0.5], requires_grad=True)
        >>> blackbox_rank(scores, lam=1.0)[0].backward()  # a smaller rank for the first item: a higher score
        >>> scores.grad
        tensor([-2.,  1.,  1.])
    """
    return _blackbox_rank(scores, where, lam)


class StraightThrough(nn.Module):
    """Exact ranks forward, the gradient of `rank_fn` backward: see `straight_through`."""

    def __init__(self, rank_fn: RankFunction) -> None:
        super().__init__()
        self.rank_fn = check_rank_fn(rank_fn)  # a sorter becomes a submodule, so that a loss can move and freeze it
        self.__name__ = f"straight_through({getattr(rank_fn, '__name__', type(rank_fn).__name__)})"

    def forward(self, scores: Tensor, where: Tensor | None = None) -> Tensor:
        """Exact ranks of `scores` (..., n), with the gradient of the soft ones."""
        soft = apply_rank_fn(self.rank_fn, scores, where)
        return exact_rank(scores, where) + (soft - soft.detach())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        drop_other_state(state_dict, prefix, self._modules)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _get_name(self) -> str:
        return "straight_through"

    def extra_repr(self) -> str:
        """The rank function, if it is not a module, which repr() shows by itself."""
        shown: str = getattr(self.rank_fn, "__name__", repr(self.rank_fn))
        return "" if isinstance(self.rank_fn, nn.Module) else shown


def straight_through(rank_fn: RankFunction) -> StraightThrough:
    """A rank function with exact ranks forward and the gradient of `rank_fn` backward.

    Args:
        rank_fn: any rank function. If it does not take `where`, masked lists reach it without their masked items.

    Returns:
        A rank function that takes `where`: a module, of which `rank_fn` is a submodule if it is one itself. It can be
        pickled if `rank_fn` can.

    Raises:
        TypeError: `rank_fn` cannot be called.

    Example:
        >>> straight_through(laplace_rank)(torch.tensor([0.2, 0.9, 0.5, 0.9]))
        tensor([4.0000, 1.5000, 3.0000, 1.5000])
    """
    return StraightThrough(rank_fn)


class WithWidth:
    """A handcrafted rank function at a width that follows the spread of each list: see `with_width`."""

    def __init__(self, rank_fn: RankFunction, width: float) -> None:
        self.rank_fn, self.width = rank_fn, width
        self.__name__ = f"with_width({rank_fn.__name__}, {width:g})"  # type: ignore[attr-defined]
        self._rank = _AT_WIDTH[rank_fn]

    @full_precision
    def __call__(self, scores: Tensor, where: Tensor | None = None) -> Tensor:
        """Ranks of `scores` (..., n)."""
        return self._rank(scores, where, width=self.width)

    def __repr__(self) -> str:
        return self.__name__


def with_width(rank_fn: RankFunction, width: float) -> RankFunction:
    """The same rank function at another width, in standard deviations of each list.

    A wide comparison is smooth: its gradient reaches far, and its ranks are less accurate. A narrow one is sharp. In
    standard deviations, the width means the same for every rank function and for scores of any scale, so that one range
    of widths, .05 to 2 say, serves to tune them all:

    ==============================  ============================================================================
    ``laplace_rank, sigmoid_rank``  tau is `width` standard deviations (None is 1 / 6.8 of one)
    ``blackbox_rank``               lam moves the scores by `width` of them, in the root mean square over the list
                                    (None is `BLACKBOX_STEP` of one)
    ``straight_through(f)``         ``straight_through(with_width(f, width))``
    a sorter with a width           ``sorter.with_width(width)``, which changes its gradient alone
    ==============================  ============================================================================

    Args:
        rank_fn: one of the above.
        width: positive, in standard deviations of the list's real items. No gradient flows through them; a list of
            equal scores has equal ranks at any width.

    Returns:
        A rank function that takes `where`, and can be pickled if `rank_fn` can. A width that `rank_fn` has from
        an earlier call is replaced.

    Raises:
        TypeError: `rank_fn` cannot be called.
        ValueError: `rank_fn` has no width, or `width` is not a positive number.

    Example:
        >>> scores = torch.tensor([0.2, 0.9, 0.5])
        >>> with_width(laplace_rank, 0.01)(scores)
        tensor([3., 1., 2.])
        >>> with_width(laplace_rank, 1.0)(scores)
        tensor([2.7808, 1.1674, 2.0517])
        >>> with_width(straight_through(laplace_rank), 1.0)
        straight_through(with_width(laplace_rank, 1))
    """
    width = check_positive(width, "width")
    check_rank_fn(rank_fn)
    if isinstance(rank_fn, WithWidth):
        return WithWidth(rank_fn.rank_fn, width)
    if isinstance(rank_fn, StraightThrough):
        return straight_through(with_width(rank_fn.rank_fn, width))
    own: Callable[[float], RankFunction] | None = getattr(rank_fn, "with_width", None)
    if own is not None:
        return own(width)
    if not any(rank_fn is known for known in _AT_WIDTH):  # by identity: it may have no hash
        raise ValueError(
            f"`rank_fn` must have a width, got {describe(rank_fn)}. These have one: "
            f"{', '.join(known.__name__ for known in _AT_WIDTH)}, the set sorter, and straight_through of any of them."
        )
    return WithWidth(rank_fn, width)


def apply_rank_fn(rank_fn: RankFunction, scores: Tensor, where: Tensor | None = None) -> Tensor:
    """Call any rank function, ours or not, with or without a mask.

    With a mask, a rank function with a `where` parameter is called with it. Any other gets lists of real items only,
    grouped by their number: one call, on a tensor (lists, items), for each number of real items that occurs. That
    reads the mask, so it does not work under torch.compile.

    Args:
        rank_fn: scores (..., n) -> ranks (..., n).
        scores: (..., n) floating point.
        where: (..., n) bool, True = a real item.

    Returns:
        (..., n) ranks; without a `where` parameter of `rank_fn`, 0 at masked items.

    Raises:
        TypeError: `rank_fn` cannot be called or did not return a tensor, or `where` is not a boolean one.
        ValueError: `rank_fn` returned another shape, or `where` has another.
    """
    check_rank_fn(rank_fn)
    where = check_where(where, scores)
    if where is None:
        ranks = _check_ranks(rank_fn(scores), scores)
        _warn_if_ascending(rank_fn, ranks, scores)
        return ranks
    if _takes_where(rank_fn):
        return _check_ranks(rank_fn(scores, where=where), scores)  # type: ignore[call-arg]
    real = where.reshape(-1, scores.shape[-1])
    rows = scores.reshape(real.shape)
    ranks = torch.zeros(real.shape, dtype=working_dtype(scores), device=scores.device)
    return fill_by_length(ranks, rows, real, lambda lists: apply_rank_fn(rank_fn, lists)).reshape(scores.shape)


def drop_other_state(state_dict: dict[str, Any], prefix: str, modules: Container[str] = ()) -> None:
    """Remove entries of another rank function from a checkpoint: those under `prefix` of none of these `modules`."""
    for key in list(state_dict):
        if key.startswith(prefix) and key.removeprefix(prefix).partition(".")[0] not in modules:
            del state_dict[key]


def check_rank_fn(rank_fn: RankFunction, name: str = "rank_fn") -> RankFunction:
    """`rank_fn`, if it can be called."""
    if not callable(rank_fn) or isinstance(rank_fn, type):
        raise TypeError(
            f"`{name}` must be a function of scores (..., n) to ranks (..., n), got {describe(rank_fn)}. "
            f"{_in_place_of(rank_fn)}"
        )
    return rank_fn


def handcrafted(name: object) -> str | None:
    """The rank function that a name such as "laplace" means, as one writes it; None: no name of one."""
    names = (known.__name__ for known in _AT_WIDTH)
    return next((f"sodeep.{known}" for known in names if name in (known, known.removesuffix("_rank"))), None)


def _in_place_of(given: object) -> str:
    """What to give in place of something that is no rank function."""
    if isinstance(given, type):
        return f"Build it first: {given.__name__}()."
    if isinstance(given, Tensor):
        return "Give the function, not its ranks: sodeep.laplace_rank."
    if (function := handcrafted(given)) is not None:
        return f"Give the function itself: {function}."
    return "For example sodeep.laplace_rank, or a sorter: sodeep.load_sorter(name)."


def fill_by_length(ranks: Tensor, scores: Tensor, real: Tensor, rank: Callable[[Tensor], Tensor]) -> Tensor:
    """`ranks` (Q, n) with those of the `real` items of `scores` (Q, n) put in.

    `rank` sees lists without their masked items, (lists, items): those with equally many real ones together.
    """
    count = real.sum(-1)
    for n in sorted(set(count.tolist()) - {0}):
        lists = real & (count == n).unsqueeze(-1)
        ranks = ranks.masked_scatter(lists, rank(scores[lists].reshape(-1, n)).to(ranks.dtype))
    return ranks


def _check_ranks(ranks: object, scores: Tensor) -> Tensor:
    """What a rank function returned, if it can be the ranks of `scores`."""
    requirement = f"`rank_fn` must return a tensor of the shape of its scores {tuple(scores.shape)}"
    if not isinstance(ranks, Tensor):
        raise TypeError(f"{requirement}, got {type(ranks).__name__}. Return the ranks alone.")
    if ranks.shape != scores.shape:
        raise ValueError(f"{requirement}, got {describe(ranks)}. The last axis is the list; leading axes are batch.")
    return ranks


_CHECKED: weakref.WeakSet[Any] = weakref.WeakSet()
"""Rank functions whose first ranks were checked."""


def _warn_if_ascending(rank_fn: RankFunction, ranks: Tensor, scores: Tensor) -> None:
    """Warn of a rank function that is not ours and gives rank 1 to the lowest score, at its first call.

    The ranks are those of the caller: a trial call could have another length, device or state.
    """
    if not readable(scores) or scores.shape[-1] < 4 or str(getattr(rank_fn, "__module__", "")).startswith("sodeep"):
        return
    key = getattr(rank_fn, "__code__", rank_fn)  # a lambda is another object at every call, of the same code
    try:
        if key in _CHECKED:
            return
        _CHECKED.add(key)
    except TypeError:  # has no hash, or cannot be referred to weakly
        return
    with torch.no_grad():
        given, exact = (x - x.mean(-1, keepdim=True) for x in (ranks.float(), exact_rank(scores).float()))
        agreement = (given * exact).sum() / (given.square().sum() * exact.square().sum()).sqrt()
    if bool(agreement < -0.7):  # NaN where all are equal; a function still to be learned is rarely that wrong
        warn(
            f"`rank_fn` {describe(rank_fn)} gives low ranks to low scores; here rank 1 is the highest score. Losses "
            "would learn the reverse order. Turn the sign: lambda scores: rank_fn(-scores).",
        )


_TAKES_WHERE: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""What `_takes_where` has found out, which takes as long as the ranks of a short list."""


def _takes_where(rank_fn: Callable[..., Any]) -> bool:
    """Whether `rank_fn` has a parameter of the name `where`."""
    if compiling():
        return _has_where(rank_fn)
    try:
        if rank_fn not in _TAKES_WHERE:
            _TAKES_WHERE[rank_fn] = _has_where(rank_fn)
        return _TAKES_WHERE[rank_fn]
    except TypeError:  # has no hash, or cannot be referred to weakly
        return _has_where(rank_fn)


def _has_where(rank_fn: Callable[..., Any]) -> bool:
    try:
        return "where" in inspect.signature(rank_fn.forward if isinstance(rank_fn, nn.Module) else rank_fn).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False


def _sigmoid_rank(
    scores: Tensor, where: Tensor | None, tau: float | Tensor | None = None, width: float = 1 / SPREAD_PER_TAU
) -> Tensor:
    """`sigmoid_rank`; without tau, at a `width` in standard deviations. The next two likewise."""
    check_scores(scores)
    where = check_where(where, scores)
    x, tau = _in_units(scores.to(working_dtype(scores)), tau, where)
    return soft_rank(Sigmoid, x, measure(x, tau, where, width), where)


def _laplace_rank(
    scores: Tensor, where: Tensor | None, tau: float | Tensor | None = None, width: float = 1 / SPREAD_PER_TAU
) -> Tensor:
    check_scores(scores)
    where = check_where(where, scores)
    x, tau = _in_units(scores.to(working_dtype(scores)), tau, where)
    measured = measure(x, tau, where, width)
    return soft_rank(NarrowLaplace if measured.narrow() else Laplace, x, measured, where)


def _in_units(x: Tensor, tau: float | Tensor | None, where: Tensor | None) -> tuple[Tensor, float | Tensor | None]:
    """Scores in units of a tau that learns, and 1 in its place: its gradient is that of the scale of the scores."""
    if not (isinstance(tau, Tensor) and (tau.requires_grad or in_forward_mode())):
        return x, tau
    check_tau(tau, x)
    middle = masked_mean(x.detach(), where, keepdim=True)  # which no rank depends on: far from 0 it would cancel
    return clear(x - middle, where) / tau.to(x.dtype), 1.0


def _blackbox_rank(
    scores: Tensor, where: Tensor | None, lam: float | None = None, width: float = BLACKBOX_STEP
) -> Tensor:
    check_scores(scores)
    where = check_where(where, scores)
    check_finite(scores, where)
    if lam is not None:
        lam = check_positive(lam, "lam")
    x = scores.to(working_dtype(scores))
    if traces_no_gradient(x):
        return _average_rank(x, where)
    function = _BlackboxRankForward if in_forward_mode() else _BlackboxRank
    ranks: Tensor = function.apply(x, where, lam, width)  # type: ignore
    return ranks


_AT_WIDTH: dict[Any, Callable[..., Tensor]] = {
    laplace_rank: _laplace_rank,
    sigmoid_rank: _sigmoid_rank,
    blackbox_rank: _blackbox_rank,
}
"""The handcrafted rank functions, each in the form that takes a width."""


def _average_rank(x: Tensor, where: Tensor | None) -> Tensor:
    """Exact descending ranks of `x` (..., n) with ties averaged; 0 at masked items."""
    n = x.shape[-1]
    y, order = ascending(sink(x, where))
    position = torch.arange(n, device=x.device)
    step = y[..., 1:] != y[..., :-1]
    if x.device.type == "cpu" and readable(x) and bool(step.all()):
        middle = position.to(x.dtype).expand_as(x)
    else:
        # a tie group is a run of positions, and each of them takes the middle of its run; counted from both ends, so
        # that no constant depends on n, for which torch.compile would compile anew
        first = pad(torch.where(step, position[1:], 0), (1, 0)).cummax(-1).values
        from_end = position.flip(0)
        last = pad(torch.where(step, from_end[:-1], 0), (0, 1)).flip(-1).cummax(-1).values.flip(-1)
        middle = (first + (n - 1 - last)).to(x.dtype) / 2
    ranks = x.scatter(-1, order, n - middle)
    if not readable(x):
        ranks = ranks + (0 * clear(x, where)).sum(-1, keepdim=True)  # NaN for a list with NaN or infinity
    return clear(ranks, where)


class _BlackboxRank(Function):
    """Exact ranks with the interpolated gradient of `blackbox_rank`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, where: Tensor | None, lam: float | None, width: float) -> Tensor:
        return _average_rank(x, where)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, where, ctx.lam, ctx.width = inputs
        ctx.save_for_backward(x, where, output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        x, where, ranks = ctx.saved_tensors
        g = clear(g, where)
        lam = ctx.lam
        if lam is None:
            count = x.shape[-1] if where is None else where.sum(-1, keepdim=True, dtype=torch.float64).clamp(min=1)
            size = torch.linalg.vector_norm(g, dim=-1, keepdim=True, dtype=torch.float64)
            step = measure(x, None, where, ctx.width).tau
            lam = step * count**0.5 / size.masked_fill(size == 0, 1)  # without g nothing moves
        moved = _average_rank((x + lam * g).to(x.dtype), where)
        return ((moved - ranks) / lam).to(x.dtype), None, None, None


class _BlackboxRankForward(_BlackboxRank):
    """The same in forward mode; torch.compile refuses to see a `jvp`."""

    @staticmethod
    def jvp(ctx: Any, *moved: Any) -> Any:
        raise NotImplementedError(
            "`blackbox_rank` has no forward-mode derivative: its gradient depends on the incoming one. "
            "Use reverse mode (backward, torch.func.grad), or another rank function."
        )
