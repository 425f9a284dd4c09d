"""What `EmbeddingLoss` and `CrossModalLoss` have in common: a loss on scores, a similarity, a scale and a mask."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sodeep._core.checks import (
    check_bool,
    check_choice,
    check_device,
    check_positive,
    compiling,
    describe,
    is_number,
    readable,
)
from sodeep.distributed import gather, several_processes
from sodeep.losses._base import LossModule, UndefinedListWarning, reduce_defined
from sodeep.losses.similarity import SIMILARITIES


class OnEmbeddings(LossModule[Any]):
    """Base of the losses on embeddings: a loss on scores, and how the scores are made."""

    def __init__(self, loss: Callable[..., Any], similarity: str, gather: bool, scale: Any) -> None:
        super().__init__()
        check_choice(similarity, SIMILARITIES, "similarity")
        self.loss = _check_loss(loss)
        self._register_parameters_in("loss", loss)
        self.similarity = similarity
        self.gather = check_bool(gather, "gather")
        self.scale = _check_scale(scale)

    def _scaled(self, scores: Tensor) -> Tensor:
        """`scores` times the scale."""
        if self.scale is None:
            return scores
        factor = self.scale if isinstance(self.scale, (float, int, nn.Parameter)) else self.scale()
        if isinstance(factor, Tensor):
            if factor.numel() != 1:
                raise ValueError(f"`scale` must be one number, got {describe(factor)}.")
            factor = factor.reshape(())  # without axes it takes the dtype and the device of the scores
        number = factor.detach() if isinstance(factor, Tensor) else factor
        if readable(scores) and not number > 0:
            raise ValueError(
                f"`scale` must be a positive number, got {float(number):g}, which would turn the order of the scores "
                "round. Learn its logarithm: a module that gives log_scale.exp()."
            )
        return scores * factor

    def _value(self, scores: Tensor, relevant: Tensor, where: Tensor | None, options: Mapping[str, Any]) -> Any:
        """The value of the loss, without the pairs outside `where`."""
        self._hand_parameters_over()
        if 0 in scores.shape:  # not by numel(), for which torch.compile of torch 2.4 makes a graph a length
            return self._no_pairs(scores, options)
        if where is None:
            return self.loss(scores, relevant, **options)
        if not compiling() and not _takes_where(self.loss):
            raise TypeError(
                "`loss` must take where=, a boolean tensor of the shape of the scores, to leave pairs out (masked "
                f"rows, equal ids, pairs that were not mined), got {describe(self.loss)}."
            )
        return self.loss(scores, relevant, where=where, **options)

    def _no_pairs(self, scores: Tensor, options: Mapping[str, Any]) -> Any:
        """The loss of rows that form no pair: a zero that keeps the graph, or NaN, and a warning."""
        zeros = scores.new_zeros(len(scores))
        return reduce_defined(zeros, zeros.bool(), scores, *self._reduction(options), needs="a pair")

    def _reduction(self, options: Mapping[str, Any]) -> tuple[str, bool]:
        """The reduction that the loss is called with, and whether its stats are asked for."""
        given = {"reduction": getattr(self.loss, "reduction", None), **getattr(self.loss, "keywords", {}), **options}
        return "none" if given["reduction"] == "none" else "mean", bool(given.get("return_stats"))

    def _is_shared_out(self) -> bool:
        """Whether each process takes the lists of its own queries only: where the loss is a mean over lists."""
        return self.gather and several_processes() and _is_mean_over_lists(self.loss)

    def _shared_value(self, scores: Tensor, relevant: Tensor, where: Tensor | None, options: Mapping[str, Any]) -> Any:
        """The value over the queries of all processes, from the lists of those of this one."""
        alone = {**options, "reduction": "none", "return_stats": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedListWarning)  # other processes may have lists that are defined
            values = gather(self._value(scores, relevant, where, alone))
        needs = "what the loss needs, of all processes"
        return reduce_defined(values, ~values.isnan(), values[:, None], *self._reduction(options), needs, other="")

    def extra_repr(self) -> str:
        """The options, for repr()."""
        scale = f", scale={self.scale}" if is_number(self.scale) else ""
        return f"similarity={self.similarity!r}, gather={self.gather}{scale}"


def _check_loss(loss: object) -> Callable[..., Any]:
    if isinstance(loss, type):
        raise TypeError(f"`loss` must be a loss, got the class {loss.__name__}. Build it first: {loss.__name__}().")
    if not callable(loss):
        raise TypeError(
            f"`loss` must be callable as loss(scores, relevant), got {describe(loss)}. For example sodeep.NTXentLoss()."
        )
    return loss


def _check_scale(scale: Any) -> Any:
    if scale is None or isinstance(scale, nn.Parameter):
        return scale
    if is_number(scale):
        return check_positive(scale, "scale")
    if isinstance(scale, (Tensor, type)) or not callable(scale):
        raise TypeError(
            "`scale` must be a number, an nn.Parameter, or a module or function that gives the factor when called "
            f"without arguments, got {describe(scale)}."
            + " Wrap it: nn.Parameter(scale) learns, float(scale) stays." * isinstance(scale, Tensor)
            + (f" Build it first: {scale.__name__}()." if isinstance(scale, type) else "")
        )
    return scale


def _is_mean_over_lists(loss: Callable[..., Any]) -> bool:
    """Whether `loss` gives the mean of what it gives with ``reduction="none"``: it says so."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    return bool(getattr(loss, "mean_over_lists", False))


def _takes_where(loss: Callable[..., Any]) -> bool:
    """Whether `loss` can be called with ``where=``, by its signature."""
    try:
        parameters = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == "where" or p.kind is p.VAR_KEYWORD for p in parameters)


def check_mask(where: object, like: Tensor, name: str) -> Tensor:
    """A boolean tensor on the device of the rows `like`."""
    if not isinstance(where, Tensor) or where.dtype != torch.bool:
        got, remedy = type(where).__name__, "Make it one: torch.as_tensor(where).bool()."
        if isinstance(where, Tensor):
            got, remedy = describe(where), "Convert it: where.bool()."
        raise TypeError(f"`where` must be a boolean tensor (True = a real row or pair), got {got}. {remedy}")
    check_device(where, like, "where", name)
    return where


def zero_masked(x: Tensor, real: Tensor | None) -> Tensor:
    """`x` with 0 in the rows that are masked out, NaN included."""
    return x if real is None else x.masked_fill(~real.view(-1, *[1] * (x.ndim - 1)), 0)
