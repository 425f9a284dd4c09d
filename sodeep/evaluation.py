"""Measures of a rank function: its accuracy, and its worth as a loss.

A small rank error does not make a good loss (a step function has no error and no gradient), so both are measured:

* `rank_error` and `inversions`: how far the values are from the exact ranks;
* `optimization_score`, `gradient_agreement` and `gradient_health`: how useful the gradient is.

`evaluate` runs them all, on each distribution and each length, beside the handcrafted ranks.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import check_at_least, check_finite, check_positive, check_scores
from sodeep.generators import DISTRIBUTIONS, SODEEP2019, draw
from sodeep.metrics import spearman_corr
from sodeep.ranks import RankFunction, apply_rank_fn, exact_rank, laplace_rank, sigmoid_rank, with_width

LENGTHS = (10, 30, 100, 300, 1000, 10000)

MULTI_SCALE = ("heavy-tailed", "clusters", "bimodal")
"""Distributions of multi-scale lists, for which one sharpness for the whole list cannot be right."""

TAUS = (1.0, 0.5, 1 / 3.4, 1 / 6.8, 1 / 10, 1 / 20, 1 / 50)
"""Sharpness of the handcrafted ranks, in standard deviations of the list, from smooth to sharp."""


def rank_error(rank_fn: RankFunction, scores: Tensor) -> float:
    """Mean of ``|rank_fn(scores) - exact_rank(scores)| / n`` over all items of all lists.

    Args:
        rank_fn: scores (..., n) -> ranks (..., n), 1 = highest.
        scores: (..., n), a batch of lists, for instance your own: the error that counts is the one on your scores.

    Returns:
        The error as a fraction of the list's length: 0 is exact, 0.25 is what a constant achieves on a long list.

    Example:
        >>> scores = torch.randn(64, 100, generator=torch.Generator().manual_seed(0))
        >>> rank_error(exact_rank, scores)
        0.0
        >>> round(rank_error(laplace_rank, scores), 3)
        0.008
    """
    check_scores(scores)
    with torch.no_grad():
        error = apply_rank_fn(rank_fn, scores) - exact_rank(scores)
    return float(error.double().abs().mean()) / scores.shape[-1]


def inversions(rank_fn: RankFunction, scores: Tensor) -> float:
    """Fraction of the pairs of neighbours in the exact order whose higher score gets the worse rank (0 is monotone).

    Tied neighbours do not count.

    Example:
        >>> scores = torch.tensor([[0.1, 0.5, 0.9]])
        >>> inversions(lambda s: torch.tensor([[3.0, 1.0, 2.0]]), scores)
        0.5
    """
    check_scores(scores)
    ordered = scores.sort(-1, descending=True)
    with torch.no_grad():
        ranks = apply_rank_fn(rank_fn, scores).gather(-1, ordered.indices)
    strict = ordered.values[..., :-1] > ordered.values[..., 1:]
    wrong = strict & (ranks[..., :-1] > ranks[..., 1:])
    return float(wrong.sum()) / max(int(strict.sum()), 1)


def _rank_loss(rank_fn: RankFunction, scores: Tensor, target: Tensor) -> Tensor:
    """Sum over the lists of the squared error of rank / n: what a Spearman loss minimises."""
    return ((apply_rank_fn(rank_fn, scores) - target) / scores.shape[-1]).square().mean(-1).sum()


def optimization_score(
    rank_fn: RankFunction,
    *,
    n: int = 100,
    steps: Sequence[int] = (30, 100),
    lists: int = 48,
    lr: float = 0.05,
    seed: int = 0,
    init: Tensor | None = None,
) -> dict[int, float]:
    """What a rank function is worth as a loss: how close free scores come to a target order in a few steps.

    Scores start from N(0, 1), or from `init`, and are moved by Adam on the squared error of rank / n against the exact
    ranks of another N(0, 1) draw. The result is the exact Spearman correlation on the way.

    Args:
        rank_fn: scores (..., n) -> ranks (..., n), 1 = highest.
        n: length of the lists.
        steps: after how many steps to look.
        lists: how many lists, each optimised by itself.
        lr: learning rate of Adam, which is about how far a score moves in a step.
        seed: of the initial scores and the target.
        init: (lists, n), initial scores instead, on the scale that `lr` is meant for (see `scale_by_quartiles`); `n`
            and `lists` are then read from it.

    Returns:
        ``{step: mean Spearman}``; 1 is best; before the first step it is near 0.

    Raises:
        TypeError, ValueError: `init` is no float tensor (lists, n); other values out of range.

    Example:
        >>> result = optimization_score(laplace_rank, lists=16)
        >>> result[30] > 0.8, result[100] > 0.98
        (True, True)
    """
    if init is not None:
        check_scores(init, "init")
        if init.ndim != 2:
            raise ValueError(f"`init` must have shape (lists, n), got {tuple(init.shape)}. Give each list a row.")
        check_finite(init, name="init", remedy="Leave such lists out.")
        lists, n = init.shape
    check_at_least(n, 2, "n")
    check_at_least(lists, 1, "lists")
    check_positive(lr, "lr")
    generator = torch.Generator().manual_seed(check_at_least(seed, 0, "seed"))
    device = _device_of(rank_fn)
    init = torch.randn(lists, n, generator=generator) if init is None else init
    scores = init.detach().clone().to(device).requires_grad_()
    goal = torch.randn(lists, n, generator=generator).to(device)
    target = exact_rank(goal)
    optimizer = torch.optim.Adam([scores], lr=lr)
    result = {}
    for step in range(1, max(steps) + 1):
        optimizer.zero_grad()
        _rank_loss(rank_fn, scores, target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step in steps:
            check_finite(
                scores.detach(),
                name=f"scores after {step} steps",
                remedy="Lower lr, or look at the gradient of rank_fn.",
            )
            # with a mask: without one, lists of two items give a warning
            real = torch.ones_like(goal, dtype=torch.bool)
            result[step] = float(spearman_corr(scores.detach(), goal, where=real).mean())
    return result


def scale_by_quartiles(scores: Tensor) -> Tensor:
    """Each list shifted and scaled to the median and the interquartile range of N(0, 1), for `optimization_score`.

    Adam moves a score by about `lr` a step, so the scale of a list decides how long it stays what it was. The
    standard deviation is a poor measure of the scale of a multi-scale list: of a heavy-tailed list it is that
    of a few outliers, and one step would scatter all the others. By the quartiles a step is, for half of the items,
    what it is in an ordinary list. Outliers and far clusters then lie beyond what a hundred steps can cross, so that
    the best of rank functions stays short of 1.

    Args:
        scores: (..., n); a list whose quartiles are equal is only shifted.

    Returns:
        (..., n), like `scores`.

    Example:
        >>> init = scale_by_quartiles(draw({"heavy-tailed": 1}, 48, 100, torch.Generator().manual_seed(1)))
        >>> smooth, sharp = (optimization_score(with_width(laplace_rank, t), init=init)[30] for t in (1 / 5, 1 / 50))
        >>> smooth > sharp
        True
    """
    low, middle, high = (scores.quantile(q, dim=-1, keepdim=True) for q in (0.25, 0.5, 0.75))
    spread = (high - low) / (2 * _UPPER_QUARTILE)
    return (scores - middle) / spread.where(spread > 0, 1.0)


_UPPER_QUARTILE = 0.6744897501960817
"""Of N(0, 1)."""


def rank_gradient(rank_fn: RankFunction, scores: Tensor, target: Tensor) -> Tensor:
    """Gradient of the squared error of rank / n: the gradient that a loss on the ranks sends to the scores.

    Args:
        rank_fn: scores (..., n) -> ranks (..., n), 1 = highest.
        scores: (..., n).
        target: (..., n), the ranks to reach.

    Returns:
        (..., n), like `scores`; each list's is that of its own mean.
    """
    return _gradient(partial(_rank_loss, rank_fn, target=target), scores)


def smoothed_gradient(scores: Tensor, target: Tensor, noise: float = 0.1) -> Tensor:
    """Gradient of the mean of the exact rank loss under Gaussian noise on the scores, up to a positive factor.

    Exact ranks are flat, but their mean under noise is smooth: E[rank_i] = 1 + sum over j != i of
    Phi((s_j - s_i) / (noise sqrt 2)). The sum of the squared exact ranks is constant, which leaves -2 <E[rank], target>
    of the squared error.

    Args:
        scores: (..., n).
        target: (..., n), the ranks to reach.
        noise: its standard deviation, in standard deviations of each list.

    Returns:
        (..., n), like `scores`.
    """

    def loss(x: Tensor) -> Tensor:
        width = noise * math.sqrt(2) * x.detach().std(-1, correction=0, keepdim=True).unsqueeze(-1)
        above: Tensor = torch.special.ndtr((x.unsqueeze(-2) - x.unsqueeze(-1)) / width)  # (..., i, j): j above i
        return -(above.sum(-1) * target).sum()

    return _gradient(loss, scores)


def gradient_agreement(rank_fn: RankFunction, scores: Tensor, target: Tensor, noise: float = 0.1) -> float:
    """Mean cosine between the gradient of the rank loss and `smoothed_gradient`.

    Args:
        rank_fn: scores (..., n) -> ranks (..., n), 1 = highest.
        scores: (..., n).
        target: (..., n), the ranks to reach.
        noise: in standard deviations of each list.

    Returns:
        1 where the gradients point the same way, 0 where they have nothing to do with each other.
    """
    check_scores(scores)
    gradient = rank_gradient(rank_fn, scores, target)
    return float(torch.cosine_similarity(gradient, smoothed_gradient(scores, target, noise), dim=-1).mean())


def gradient_health(rank_fn: RankFunction, scores: Tensor, target: Tensor) -> tuple[float, float]:
    """Fractions of the entries of the rank loss' gradient that are exactly zero, and that are not finite."""
    grad = rank_gradient(rank_fn, scores, target)
    return float((grad == 0).double().mean()), float((~grad.isfinite()).double().mean())


def _gradient(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    x = scores.detach().clone().requires_grad_()
    gradient: Tensor = torch.autograd.grad(function(x), x)[0]
    return gradient


def latency(rank_fn: RankFunction, *, batch: int = 256, n: int = 100, rounds: int = 15) -> float:
    """Median milliseconds of a forward and backward pass on (batch, n) scores, on the device of `rank_fn`."""
    scores = torch.randn(batch, n, generator=torch.Generator().manual_seed(0)).to(_device_of(rank_fn))
    target = exact_rank(scores.flip(-1))
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        rank_gradient(rank_fn, scores, target)
        if scores.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times[1:])[rounds // 2]  # the first call warms up


def _device_of(rank_fn: RankFunction) -> torch.device:
    weights: Iterable[Tensor] = getattr(rank_fn, "parameters", tuple)()
    return next((weight.device for weight in weights), torch.device("cpu"))


@dataclass
class RankFunctionReport:
    """Measurements of one rank function; `evaluate` documents the fields."""

    name: str
    errors: dict[int, float] = field(default_factory=dict)
    by_distribution: dict[str, float] = field(default_factory=dict)
    inversions: float = math.nan
    agreement: float = math.nan
    zero_gradient: float = math.nan
    bad_gradient: float = math.nan
    optimization_score: dict[int, float] = field(default_factory=dict)
    latency_ms: float = math.nan

    def to_dict(self) -> dict[str, object]:
        """Plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RankFunctionReport:
        """Back from `to_dict`, through JSON or not."""
        whole = {name: {int(k): v for k, v in values[name].items()} for name in ("errors", "optimization_score")}
        return cls(**{**values, **whole})


def evaluate(
    rank_fn: RankFunction,
    name: str = "",
    *,
    lengths: Sequence[int] = LENGTHS,
    n: int = 100,
    lists: int = 256,
    mixture: Mapping[str, float] = SODEEP2019,
    distributions: Sequence[str] = tuple(DISTRIBUTIONS),
    seed: int = 1234,
    on_progress: Callable[[float], None] | None = None,
) -> RankFunctionReport:
    """Measure a rank function on both sides, values and gradients.

    Args:
        rank_fn: scores (..., n) -> ranks (..., n), 1 = highest.
        name: what to call it.
        lengths: at which lengths to take the error on the mixture.
        n: length of the lists of everything else.
        lists: lists an error is averaged over (fewer above n = 1,000: the number of items is what counts).
        mixture: weights of the distributions for `errors`; the default is the 2019 mixture, so figures compare.
        distributions: names for `by_distribution`.
        seed: of every draw, so that rank functions are measured on the same lists.
        on_progress: called now and then with the fraction of the work that is done.

    Returns:
        `RankFunctionReport`: `errors` {length: mean |rank error| / n on the mixture}, `by_distribution` {name: the
        same at n}, `inversions`, `agreement` with the smoothed exact gradient, fractions `zero_gradient` and
        `bad_gradient` of its entries, `optimization_score` {steps: Spearman}, `latency_ms` of forward + backward at
        (256, n).
    """
    seed = check_at_least(seed, 0, "seed")
    device = _device_of(rank_fn)

    def count(length: int) -> int:
        return max(4, min(lists, lists * 1000 // length))

    def lists_of(weights: Mapping[str, float], length: int) -> Tensor:
        return draw(weights, count(length), length, torch.Generator().manual_seed(seed)).to(device)

    # in items that are ranked; a backward pass takes about as long as two forward passes
    one, optimizing, timing = n * count(n), 3 * n * 48 * 100, 3 * n * 256 * 16
    total = sum(k * count(k) for k in lengths) + one * (len(distributions) + 1) + optimizing + timing
    done = 0

    def passed(items: int) -> None:
        nonlocal done
        done += items
        if on_progress is not None:
            on_progress(done / total)

    result = RankFunctionReport(name)
    for length in lengths:
        result.errors[length] = rank_error(rank_fn, lists_of(mixture, length))
        passed(length * count(length))
    for distribution in distributions:
        result.by_distribution[distribution] = rank_error(rank_fn, lists_of({distribution: 1.0}, n))
        passed(one)
    result.inversions = inversions(rank_fn, lists_of(mixture, n))
    passed(one)
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(64, n, generator=generator).to(device)
    target = exact_rank(torch.randn(64, n, generator=generator).to(device))
    result.agreement = gradient_agreement(rank_fn, scores, target)
    result.zero_gradient, result.bad_gradient = gradient_health(rank_fn, scores, target)
    result.optimization_score = optimization_score(rank_fn, n=n)
    passed(optimizing)
    result.latency_ms = latency(rank_fn, n=n)
    passed(timing)
    return result


LONGEST_QUADRATIC = 1000
"""The longest list on which `evaluate_all` measures the ranks whose time and memory grow with its square."""


def evaluate_all(
    rank_fns: Mapping[str, RankFunction],
    *,
    lengths: Sequence[int] = LENGTHS,
    n: int = 100,
    lists: int = 256,
    seed: int = 1234,
    on_progress: Callable[[float], None] | None = None,
) -> list[RankFunctionReport]:
    """`evaluate` for rank functions by name, such as those of `handcrafted`, on the same lists.

    Args:
        rank_fns: name -> scores (..., n) -> ranks (..., n), 1 = highest.
        lengths: as of `evaluate`.
        n: likewise.
        lists: likewise.
        seed: likewise.
        on_progress: called now and then with the fraction of all the work that is done.

    Example:
        >>> functions = {"laplace": laplace_rank, "sharp": with_width(laplace_rank, 0.05)}
        >>> [result.name for result in evaluate_all(functions, lengths=[10], n=10, lists=4)]
        ['laplace', 'sharp']
    """
    cost = {name: latency(rank_fn, batch=16, n=n, rounds=1) for name, rank_fn in rank_fns.items()}
    results: list[RankFunctionReport] = []
    for name, rank_fn in rank_fns.items():
        before = sum(cost[result.name] for result in results)

        def passed(fraction: float, before: float = before, this: float = cost[name]) -> None:
            if on_progress is not None:
                on_progress((before + fraction * this) / sum(cost.values()))

        measured = [k for k in lengths if k <= LONGEST_QUADRATIC or not name.startswith("sigmoid")]
        results.append(evaluate(rank_fn, name, lengths=measured, n=n, lists=lists, seed=seed, on_progress=passed))
    return results


PUBLISHED_2019 = 0.0102
"""Error of the handcrafted sorter released with SoDeep (2019), on its mixture at n = 100."""


@dataclass(frozen=True)
class KeyFigures:
    """The main figures of a rank function beside `laplace_rank`; ``str()`` is two lines of text.

    Attributes:
        n: length of the lists.
        error: mean |rank error| / n on the mixture of 2019.
        optimization_score: {steps: Spearman}, see `optimization_score`.
        laplace_error: the error of `laplace_rank` on the same lists.
        laplace_optimization_score: its Spearman after the same steps.
    """

    n: int
    error: float
    optimization_score: dict[int, float]
    laplace_error: float
    laplace_optimization_score: dict[int, float]

    def __str__(self) -> str:
        published = f"; the handcrafted sorter released in 2019: {PUBLISHED_2019:.4f}" if self.n == 100 else ""
        reached = ", ".join(f"{rho:.3f} after {step} steps" for step, rho in self.optimization_score.items())
        beside = ", ".join(f"{rho:.3f}" for rho in self.laplace_optimization_score.values())
        return (
            f"On the mixture of SoDeep 2019, n = {self.n}: error {self.error:.4f} "
            f"(laplace_rank: {self.laplace_error:.4f}{published})\n"
            f"As a loss on free scores, Spearman reaches {reached} (laplace_rank: {beside})"
        )


def key_figures(rank_fn: RankFunction, n: int = 100, *, lists: int = 1000, seed: int = 1234) -> KeyFigures:
    """The figures that ``sodeep train-sorter`` ends with; `evaluate` has all.

    Args:
        rank_fn: scores (..., n) -> ranks (..., n), 1 = highest.
        n: length of the lists.
        lists: lists that the error is averaged over.
        seed: of their draw.

    Example:
        >>> print(key_figures(laplace_rank, n=20, lists=64))
        On the mixture of SoDeep 2019, n = 20: error ...
        As a loss on free scores, Spearman reaches ... after 30 steps, ... after 100 steps (laplace_rank: ...)
    """
    scores = draw(SODEEP2019, lists, n, torch.Generator().manual_seed(check_at_least(seed, 0, "seed")))
    return KeyFigures(
        n=n,
        error=rank_error(rank_fn, scores.to(_device_of(rank_fn))),
        optimization_score=optimization_score(rank_fn, n=n),
        laplace_error=rank_error(laplace_rank, scores),
        laplace_optimization_score=optimization_score(laplace_rank, n=n),
    )


def seconds_for_key_figures(rank_fn: RankFunction, n: int = 100) -> float:
    """About how long `key_figures` will take: a hundred passes forward and backward, and some twenty forward."""
    return 0.11 * latency(rank_fn, batch=48, n=n, rounds=1)


def handcrafted(taus: Sequence[float] = TAUS) -> dict[str, RankFunction]:
    """Handcrafted rank functions to compare with: sigmoid and Laplace at each sharpness, smooth to sharp."""
    functions: dict[str, Callable[..., Tensor]] = {"sigmoid": sigmoid_rank, "laplace": laplace_rank}
    return {
        f"{name} std/{1 / tau:g}": with_width(function, tau) for name, function in functions.items() for tau in taus
    }


def comparable_rank(report: RankFunctionReport, handcrafted: Iterable[RankFunctionReport]) -> RankFunctionReport | None:
    """The handcrafted Laplace rank of the smallest error among those that optimise at least as well as a rank function.

    A sharper handcrafted rank has a smaller error and a lower optimisation score: this is its best sharpness for a fair
    comparison.

    Args:
        report: of the rank function to compare with.
        handcrafted: reports of the ranks of `handcrafted`, from which it is chosen.

    Returns:
        One of `handcrafted`; None if none has as high an optimisation score.
    """
    step = min(report.optimization_score)
    candidates = [
        other
        for other in handcrafted
        if other.name.startswith("laplace") and other.optimization_score[step] >= report.optimization_score[step]
    ]
    return min(candidates, key=lambda other: min(other.errors.values()), default=None)


def crossings(values: Sequence[float], level: float) -> list[float]:
    """Where the line through ``(0, values[0]), (1, values[1]), ...`` meets `level`, as fractional indices, rising.

    The settings of a rank function are points on a curve: this finds the setting between two measured ones at which,
    say, its optimisation score is that of another function.

    Example:
        >>> crossings([0.9, 0.8, 0.6], 0.65)
        [1.75]
        >>> crossings([0.9, 0.8, 0.6], 0.5)
        []
    """
    places = []
    for place, (left, right) in enumerate(itertools.pairwise(values)):
        if left != right and min(left, right) <= level <= max(left, right):
            places.append(place + (level - left) / (right - left))
    return list(dict.fromkeys(places))  # a point that is met exactly belongs to two pieces of the line


def format_table(report: RankFunctionReport, others: Sequence[RankFunctionReport], n: int) -> str:
    """The measurements of a rank function beside those of others, such as the handcrafted ones, as text tables.

    Args:
        report: of the rank function in question.
        others: reports to compare it with; may be empty.
        n: length of the lists of all measurements but the errors by length.
    """
    reports = [report, *others]
    lengths = list(dict.fromkeys(length for r in reports for length in r.errors))
    steps = list(report.optimization_score)
    columns = [*(f"n={k}" for k in lengths), *(f"score {s}" for s in steps)]
    lines = [
        f"mean |rank error| / n on the 2019 mixture by length; the other columns at n = {n}",
        _row("", [*columns, "cosine", "inverted", "zero", "not finite", "ms"]),
    ]
    for r in reports:
        cells = [f"{r.errors[k]:.4f}" if k in r.errors else "-" for k in lengths]
        cells += [f"{r.optimization_score[s]:.3f}" for s in steps]
        cells += [f"{r.agreement:.3f}", f"{r.inversions:.2%}", f"{r.zero_gradient:.1%}", f"{r.bad_gradient:.1%}"]
        lines.append(_row(r.name, [*cells, f"{r.latency_ms:.1f}"]))
    lines += [
        "",
        "score k: optimisation score, the Spearman correlation of free scores with a target after k steps of Adam;",
        "cosine: of the gradient with that of the smoothed exact loss; inverted: neighbours in the wrong order;",
        "zero, not finite: entries of the gradient; ms: forward and backward of 256 lists",
    ]
    comparable = comparable_rank(report, others)
    shown = [report, *(r for r in others if r.name == f"laplace std/{6.8:g}" or r is comparable)]
    names = [f"{r.name} (same score)" if r is comparable else r.name for r in shown]
    lines += ["", f"mean |rank error| / n by distribution, n = {n}", _row("", names, 30)]
    for distribution in report.by_distribution:
        star = " *" if distribution in MULTI_SCALE else ""
        lines.append(_row(distribution + star, [f"{r.by_distribution[distribution]:.4f}" for r in shown], 30))
    return "\n".join([*lines, "* multi-scale lists"])


def _row(name: str, cells: Sequence[str], width: int = 11) -> str:
    return f"{name:<22}" + "".join(f"{cell:>{width}}" for cell in cells)
