"""What every metric shares: its arguments checked, the order of each list, rows in chunks, undefined lists counted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sodeep._core.checks import check_at_least, check_scores, compiling, readable
from sodeep._core.lists import check_lists, check_target, one_item_hint
from sodeep._core.precision import P, wide_dtype, working_dtype
from sodeep._core.sort import ascending, ordered_floats, runs
from sodeep._core.warn import warn
from sodeep.groups import pad_arguments, positional_names


class UndefinedMetricWarning(UserWarning):
    """A metric is NaN for some lists."""


def metric(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Decorator of every metric: no gradient, and flat tensors are padded where `group=` is given."""
    names = positional_names(function)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        args, kwargs = pad_arguments(names, args, kwargs)  # type: ignore[assignment]
        with torch.no_grad():
            return function(*args, **kwargs)

    return wrapper


def check_k(k: int | None, scores: Tensor) -> int:
    """`k`, or the length of the lists for None."""
    if k is None:
        return check_scores(scores).shape[-1]
    return check_at_least(k, 1, "k")


def per_query(
    metric: Callable[[Order], Tensor],
    name: str,
    scores: Tensor,
    relevant: Tensor,
    where: Tensor | None,
    chunk_size: int | None,
    needs: Literal["a relevant item", "an item"] = "a relevant item",
) -> Tensor:
    """Check, order the items of each list, and apply `metric`; NaN where a list has not what it `needs`."""
    lists = check_lists(scores, relevant, where)

    def evaluate(values: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        order = Order.of(values, positive, positive | negative)
        there = order.total if needs == "a relevant item" else order.real
        return metric(order).masked_fill(there == 0, torch.nan)

    rows = lists.scores, lists.positive, lists.negative
    return finish(in_chunks(evaluate, chunk_size, *rows), name, needs, scores)


def per_list(
    metric: Callable[[Tensor, Tensor, Tensor], Tensor],
    name: str,
    scores: Tensor,
    relevant: Tensor,
    where: Tensor | None,
    chunk_size: int | None,
) -> Tensor:
    """Check, and apply `metric` to scores, relevant items and the others, (rows, N); NaN without a relevant item."""
    lists = check_lists(scores, relevant, where)

    def evaluate(values: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return metric(values, positive, negative).masked_fill(~positive.any(-1), torch.nan)

    rows = lists.scores, lists.positive, lists.negative
    return finish(in_chunks(evaluate, chunk_size, *rows), name, "a relevant item", scores)


def compare_orders(
    metric: Callable[[Tensor, Tensor, Tensor], Tensor],
    name: str,
    other_name: str,
    needs: str,
    scores: Tensor,
    other: Tensor,
    where: Tensor | None,
    chunk_size: int | None,
) -> Tensor:
    """Check, and apply `metric` to both score lists and the mask of real items."""
    _, where = check_target(scores, other, where, other_name)
    real = torch.ones_like(scores, dtype=torch.bool) if where is None else where
    n = scores.shape[-1]
    rows = (x.reshape(-1, n) for x in (scores, ordered_floats(other), real))
    return finish(in_chunks(metric, chunk_size, *rows), name, needs, scores, other_name)


def in_chunks(function: Callable[..., Tensor], chunk_size: int | None, *rows: Tensor) -> Tensor:
    """`function` over so many rows at a time that its intermediate tensors stay small."""
    if chunk_size is None:
        if compiling():  # a number of chunks that depends on the length would be compiled for each
            return function(*rows)
        chunk_size = max(1, 2**20 // rows[0].shape[-1])
    chunk_size = check_at_least(chunk_size, 1, "chunk_size")
    starts = range(0, max(1, len(rows[0])), chunk_size)
    return torch.cat([function(*(x[start : start + chunk_size] for x in rows)) for start in starts])


def finish(values: Tensor, name: str, needs: str, scores: Tensor, other: str = "relevant") -> Tensor:
    """One warning for the undefined lists; the batch shape and dtype of `scores`."""
    if readable(values) and (undefined := int(values.isnan().sum())):
        warn(
            f"{name} is NaN for {undefined} of {len(values)} lists: a list needs {needs}"
            f"{one_item_hint(scores, other)}.",
            UndefinedMetricWarning,
        )
    return values.to(working_dtype(scores)).reshape(scores.shape[:-1])


class Order(NamedTuple):
    """The items of each list, best first; masked ones last. Counts are whole numbers, (rows, N) or (rows,)."""

    relevant: Tensor
    """Whether each is relevant, or its gain."""
    above: Tensor
    """Items of a higher score."""
    through: Tensor
    """Items of a higher or the same score, itself included."""
    hits: Tensor
    """Relevant items up to this position."""
    total: Tensor
    """Relevant items of the list."""
    real: Tensor
    """Real items of the list."""

    @classmethod
    def of(cls, scores: Tensor, relevant: Tensor, real: Tensor) -> Order:
        scores, index = ascending((-scores).masked_fill(~real, torch.inf))
        relevant = relevant.gather(-1, index)
        return cls(relevant, *runs(scores), relevant.cumsum(-1), relevant.sum(-1), real.sum(-1))

    def group_at(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the tied group at `position` (rows,): items above it, items in it, relevant ones above and in it."""
        column = position.unsqueeze(-1)
        above, through = self.above.gather(-1, column), self.through.gather(-1, column)
        hits_through = self.hits.gather(-1, through - 1)
        hits_above = torch.where(above > 0, self.hits.gather(-1, (above - 1).clamp(min=0)), 0)
        return above[:, 0], (through - above)[:, 0], hits_above[:, 0], (hits_through - hits_above)[:, 0]

    def chance_within(self, k: Tensor) -> Tensor:
        """The chance of each item to be among the first k (rows,): a fraction only where k cuts its tied group."""
        tied = (self.through - self.above).to(wide_dtype(k))
        return ((k.unsqueeze(-1) - self.above) / tied).clamp(0, 1)

    def hits_within(self, k: Tensor) -> Tensor:
        """Relevant items among the first k (rows,)."""
        return (self.relevant * self.chance_within(k)).sum(-1)


def chance_of_none(tied: Tensor, hits: Tensor, taken: Tensor) -> Tensor:
    """The chance that `taken` of `tied` items, in any order, hold none of its `hits`: C(n - r, m) / C(n, m)."""
    chance = _ordered_choices_log(tied - hits, taken) - _ordered_choices_log(tied, taken)
    return chance.exp().masked_fill(tied - hits < taken, 0)


def _ordered_choices_log(n: Tensor, m: Tensor) -> Tensor:
    """log(n (n - 1) ... (n - m + 1)); whatever where n < m."""
    n = n.to(wide_dtype(n))
    return (n + 1).lgamma() - (n - m + 1).clamp(min=1).lgamma()
