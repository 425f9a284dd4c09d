"""Precision: ranks, targets and losses are computed in float32 or wider, under autocast too.

The whole numbers above 256 do not fit in bfloat16, nor those above 2,048 in float16: ranks in half precision are wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")

R = TypeVar("R")


PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""What networks compute in, by name: the second under autocast."""


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype to compute in: float64 when one of the tensors is float64, else float32."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def widened(x: Tensor) -> Tensor:
    """`x` in its `working_dtype`; a call of `to` takes as long as a small kernel, even where it has nothing to do."""
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype for sums that must not round: float64, where the device of `x` has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` outside autocast, on the devices of its tensor arguments."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.compiler.is_compiling() and not torch._C._is_any_autocast_enabled():
            return function(*args, **kwargs)
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, Tensor) and _in_autocast(argument.device.type):
                with torch.autocast(argument.device.type, enabled=False):
                    return function(*args, **kwargs)
        return function(*args, **kwargs)

    return wrapper


# once, at import: torch.compile of torch 2.4 cannot trace this call
_AUTOCAST = tuple(device for device in ("cpu", "cuda", "mps", "xpu", "hpu") if torch.amp.is_autocast_available(device))


def _in_autocast(device: str) -> bool:
    return device in _AUTOCAST and torch.is_autocast_enabled(device)
