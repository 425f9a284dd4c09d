"""Graded relevance: checked, brought to one row a list, and turned into gains."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sodeep._core.checks import ask, check_choice, readable
from sodeep._core.lists import check_target
from sodeep._core.precision import working_dtype

check_gain = partial(check_choice, choices=("exponential", "linear"))


class GradedLists(NamedTuple):
    """Checked scores and grades, as (Q, N): one row a list; masked items hold 0."""

    scores: Tensor
    """float32 or float64."""
    relevance: Tensor
    """float32 or float64, whatever the scores are."""
    real: Tensor
    """bool."""


def check_grades(
    scores: Tensor, relevance: Tensor, where: Tensor | None, name: str = "relevance", low: float = -math.inf
) -> GradedLists:
    """Check scores and grades of at least `low`, floating point or whole numbers, and bring them to (Q, N)."""
    values, where = check_target(scores, relevance, where, name)
    x, y = scores.to(working_dtype(scores)), values.to(working_dtype(values)).detach()
    if where is not None:
        x, y = x.masked_fill(~where, 0), y.masked_fill(~where, max(low, 0))

    def judge(least: float) -> None:
        if least < low:
            raise ValueError(
                f"`{name}` must be at least {low:g}, got a smallest value of {least:g}. "
                "Mask such items out with where=, or shift all values up."
            )

    if low > -math.inf and readable(y) and y.numel():
        ask(y.amin(), judge)
    real = torch.ones_like(scores, dtype=torch.bool) if where is None else where
    n = scores.shape[-1]
    return GradedLists(x.reshape(-1, n), y.reshape(-1, n), real.reshape(-1, n))


def check_weight(weight: Tensor | None, scores: Tensor, where: Tensor | None) -> Tensor | None:
    """Checked weights of the items, as (Q, N), 0 at masked ones; no gradient flows into them."""
    return None if weight is None else check_grades(scores, weight, where, "weight", 0).relevance


def scaled_gains(relevance: Tensor, gain: str) -> Tensor:
    """Gains (..., N) of grades of at least 0, over the largest of their list: 1 at the best item, however large.

    exponential: (2^r - 1) / (2^m - 1) = 2^(r - m) (1 - 2^-r) / (1 - 2^-m) for the largest grade m. All 0 if all are.
    """
    top = relevance.amax(-1, keepdim=True)
    top = top.masked_fill(top == 0, 1)
    if gain == "linear":
        return relevance / top
    ratio = torch.expm1(-math.log(2) * relevance) / torch.expm1(-math.log(2) * top)
    return torch.exp2(relevance - top) * ratio
