"""Argument checks shared by every public function: one wording, checked once, at the public function.

A message names the argument, says what it must be, what it was, and what to do next.
TypeError is for the wrong kind of object or dtype, ValueError for a wrong shape or value.
"""

from __future__ import annotations

import contextlib
import functools
import math
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from sodeep._core.precision import wide_dtype


def describe(value: object) -> str:
    """How an error message shows a value: ``tensor of shape (3, 2), dtype int64`` or its repr."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def compiling() -> bool:
    """True while ``torch.compile`` or ``torch.export`` traces: checks that read values would break the graph."""
    return torch.compiler.is_compiling()


def traces_no_gradient(x: Tensor) -> bool:
    """True while ``torch.compile`` traces what has no gradient in `x`: there torch 2.4 fails on a setup_context."""
    return compiling() and not (x.requires_grad and torch.is_grad_enabled())


def in_forward_mode() -> bool:
    """True inside `torch.func.jvp`, `torch.func.jacfwd` and `torch.autograd.forward_ad.dual_level`."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def untransformed(x: Tensor) -> bool:
    """Whether what is done to `x` is done at once, as it comes: not under torch.compile or torch.func.

    Inside a transform `x` itself may be an ordinary tensor while another argument (its mask, say) is not. Forward mode
    takes the same code paths, which consist of operations that torch can differentiate.
    """
    return not (  # without further calls: a loss of a small batch asks often
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or x.is_meta
    )


def capturing(x: Tensor) -> bool:
    """True while a CUDA graph is captured: work is written down for later, and there are no values yet."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def readable(x: Tensor) -> bool:
    """Whether values of `x` may be read now."""
    return untransformed(x) and not capturing(x)


P = ParamSpec("P")

R = TypeVar("R")

_Judge = Callable[[float], None]
"""Raises an error if a number is not what it must be."""

_put_off: ContextVar[list[tuple[Tensor, _Judge]] | None] = ContextVar("put_off", default=None)
"""Numbers of a device that wait to be read; None where none may wait."""


def on_device(x: object) -> bool:
    """Whether values of `x` may be read, and to read one the host waits for a GPU.

    It waits until all is done that the GPU was given, and gives it nothing meanwhile.
    """
    return isinstance(x, Tensor) and not x.is_cpu and readable(x)


@contextlib.contextmanager
def one_read() -> Iterator[None]:
    """What is asked of values on a device inside waits for the next `read_number`, or for the end."""
    if _put_off.get() is not None:
        yield
        return
    token = _put_off.set([])
    try:
        yield
        settle()
    except Exception:
        settle()  # an error that follows from a wrong value is told by that value
        raise
    finally:
        _put_off.reset(token)


def ask(number: Tensor, judge: _Judge) -> None:
    """Read a number and `judge` it: at once, or in `one_read` with others."""
    waiting = _put_off.get()
    if waiting is None or number.is_cpu:
        judge(number.item())
    else:
        waiting.append((number, judge))


def read_number(number: Tensor) -> float:
    """The number; and whatever waits is judged with it."""
    waiting = _put_off.get()
    if not waiting or number.is_cpu:
        return number.item()
    numbers, judges = zip(*waiting, strict=True)
    waiting.clear()
    # without float64, on MPS, whole numbers above 2^24 are rounded
    values = torch.stack([x.to(wide_dtype(x)) for x in (number, *numbers)]).tolist()
    for value, judge in zip(values[1:], judges, strict=True):
        judge(value)
    return float(values[0])


def in_one_read(forward: Callable[P, R]) -> Callable[P, R]:
    """Decorator of a Module's ``forward(self, x, ...)``: `one_read`, where `x` is on a device."""

    @functools.wraps(forward)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) > 1 and on_device(args[1]):
            with one_read():
                return forward(*args, **kwargs)
        return forward(*args, **kwargs)

    return wrapper


def settle() -> None:
    """Judge what waits in `one_read`."""
    if waiting := _put_off.get():
        number, judge = waiting.pop()
        judge(read_number(number))


def ordinary(x: Tensor) -> Tensor:
    """`x`, or a copy of it if it was made in inference mode: a graph outside that mode cannot hold such a tensor."""
    return (
        x.clone()
        if not torch.compiler.is_compiling() and x.is_inference() and not torch.is_inference_mode_enabled()
        else x
    )


def check_scores(scores: object, name: str = "scores") -> Tensor:
    """`scores` as a floating-point tensor with a last axis of at least one item."""
    if not isinstance(scores, Tensor):
        raise TypeError(
            f"`{name}` must be a torch.Tensor, got {type(scores).__name__}. Convert it first: torch.as_tensor({name})."
        )
    if not scores.is_floating_point():
        raise TypeError(
            f"`{name}` must be real floating point, got dtype {str(scores.dtype).removeprefix('torch.')}. "
            f"Convert it first: {name}.{'real' if scores.is_complex() else 'float()'}."
        )
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(
            f"`{name}` must have a last axis of at least one item, got shape {tuple(scores.shape)}. "
            "The last axis is the list; leading axes are batch."
        )
    return scores


def check_where(where: object, like: Tensor, name: str = "scores") -> Tensor | None:
    """`where` as a boolean mask of the shape of `like` (broadcast if it can be), or None."""
    if where is None:
        return None
    if not isinstance(where, Tensor) or where.dtype != torch.bool:
        got = f"dtype {str(where.dtype).removeprefix('torch.')}" if isinstance(where, Tensor) else type(where).__name__
        raise TypeError(f"`where` must be a boolean tensor (True = a real item), got {got}. Convert it: where.bool().")
    if where.shape != like.shape:
        try:
            where = where.expand(like.shape)
        except RuntimeError:
            raise ValueError(
                f"`where` must have the shape of `{name}` {tuple(like.shape)}, got {tuple(where.shape)}."
            ) from None
    check_device(where, like, "where", name)
    return ordinary(where)


def check_device(x: Tensor, like: Tensor, name: str, like_name: str) -> None:
    """Both on one device."""
    if x.device != like.device:
        raise ValueError(
            f"`{name}` must be on the device of `{like_name}` ({like.device}), got {x.device}. "
            f"Move it: {name}.to({like_name}.device)."
        )


def check_same_shape(x: Tensor, like: Tensor, name: str, like_name: str) -> None:
    """Equal shapes: nothing is broadcast, since (n, 1) against (n,) would silently become (n, n)."""
    if x.shape != like.shape:
        hint = (
            f" Drop the extra axis: {name}.squeeze(-1)."
            if x.shape == (*like.shape, 1)
            else f" Drop the extra axis: {like_name}.squeeze(-1)."
            if like.shape == (*x.shape, 1)
            else ""
        )
        raise ValueError(
            f"`{name}` must have the shape of `{like_name}` {tuple(like.shape)}, got {tuple(x.shape)}.{hint}"
        )


FIND_THE_STEP = "find the step that made them (torch.autograd.set_detect_anomaly)."


def check_finite(
    x: Tensor,
    where: Tensor | None = None,
    name: str = "scores",
    remedy: str = f"Mask such items out with where=, or {FIND_THE_STEP}",
) -> None:
    """No NaN or infinity among the real items. The message gives the count and the first position, then `remedy`.

    Reads the values, so it is skipped under torch.compile and torch.func, where NaN in gives NaN out.
    """
    if not readable(x):
        return
    total = x.detach().sum()
    if not (total.is_cpu and math.isfinite(total.item())):  # a finite sum has finite terms: one quick pass
        ask(total, partial(_judge_finite, x, where, name, remedy))


def _judge_finite(x: Tensor, where: Tensor | None, name: str, remedy: str, total: float) -> None:
    if math.isfinite(total):
        return
    bad = ~torch.isfinite(x)
    if where is not None:
        bad = bad & where
    if bool(bad.any()):
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise ValueError(
            f"`{name}` must be finite, got {int(bad.sum())} NaN or infinite of {x.numel()} values, "
            f"the first ({x[first].item()}) at index {first}. {remedy}"
        )


def is_whole(value: object) -> bool:
    """A whole number, numpy's included; True and False are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """A real number, numpy's included; True and False are none."""
    if type(value) is float or type(value) is int:  # an abstract class takes longer to ask
        return True
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def plain(value: object) -> int | float:
    """A number as Python's own: JSON and operator schemas do not take numpy's. Fits ``json.dumps(default=plain)``."""
    if is_whole(value):
        return int(value)  # type: ignore[call-overload, no-any-return]
    if is_number(value):
        return float(value)  # type: ignore[arg-type]
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


LARGEST = torch.finfo(torch.float32).max
"""The largest number that an option may be: what is computed with it is float32 at least."""


def check_number(value: float, name: str, low: float = -math.inf) -> float:
    """A finite number of at least `low` that float32 can hold, as Python's own."""
    if not is_number(value) or not -math.inf < value < math.inf or value < low:
        requirement = "a finite number" if low == -math.inf else f"a finite number of at least {low:g}"
        raise ValueError(f"`{name}` must be {requirement}, got {describe(value)}.")
    number = plain(value)
    if not -LARGEST <= number <= LARGEST:
        raise ValueError(f"`{name}` must be within float32's range, +-{LARGEST:.2g}, got {describe(value)}.")
    return number


def check_positive(value: float, name: str) -> float:
    """A finite number above zero that float32 can hold, as Python's own."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"`{name}` must be a positive number, got {describe(value)}.")
    return check_number(value, name)


def check_at_least(value: int, low: int, name: str) -> int:
    """A whole number of at least `low`, as Python's own."""
    if not is_whole(value) or value < low:
        raise ValueError(f"`{name}` must be a whole number of at least {low}, got {describe(value)}.")
    return int(value)


def check_bool(value: bool, name: str) -> bool:
    """True or False, numpy's included, as Python's own."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"`{name}` must be True or False, got {describe(value)}.")
    return bool(value)


def check_choice(value: str, choices: Iterable[str], name: str) -> str:
    """One of the named choices; the message lists them all."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(choices)}, got {describe(value)}.")
    return value


_Error = TypeVar("_Error", bound=Exception)


def with_remedy(error_type: type[_Error], fault: str, remedy: str, **arguments: object) -> _Error:
    """An error whose `remedy` has a ``{name}`` for each of the `arguments` to give (None: to leave out).

    Its message names them as in Python, ``overwrite=True``; `reworded` does so for a caller with another syntax.
    """
    error = error_type(f"{fault} {_filled_in(remedy, arguments, _in_python)}")
    error.remedy = fault, remedy, arguments  # type: ignore[attr-defined]
    return error


def reworded(error: Exception, word: Callable[[str, object], str]) -> str:
    """The message of an error, with the arguments of its remedy as `word` makes them of name and value."""
    if not hasattr(error, "remedy"):
        return str(error)
    fault, remedy, arguments = error.remedy
    return f"{fault} {_filled_in(remedy, arguments, word)}"


def _filled_in(remedy: str, arguments: Mapping[str, object], word: Callable[[str, object], str]) -> str:
    return remedy.format(**{name: word(name, value) for name, value in arguments.items()})


def _in_python(name: str, value: object) -> str:
    return name if value is None else f"{name}={value!r}"


def check_path(path: object, name: str, remedy: str = "", what: str = "a path") -> Path:
    """A path that a user gave, as `user_path`."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"`{name}` must be {what}, got {describe(path)}.{remedy and ' ' + remedy}")
    return user_path(path)


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path that a user gave: ``~`` and ``~name`` at its start are home folders."""
    return Path(os.path.expanduser(path))


def check_free(path: Path, overwrite: bool, name: str = "out") -> None:
    """No file is at `path`, or it may be replaced."""
    if path.exists() and not overwrite:
        fault = f"`{name}` {path} exists."
        raise with_remedy(FileExistsError, fault, "Choose another name, or replace it: {overwrite}.", overwrite=True)


def check_writable(path: Path, name: str = "out", make_folder: bool = False) -> None:
    """A file can be written at `path`: checked before long work whose result it will hold.

    Makes nothing but, with `make_folder`, the folder.
    """
    folder = path.parent
    if make_folder:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(
                error.errno, f"`{name}` must be in a folder that can be written to: {error.strerror}", str(path)
            ) from None
    if path.is_dir():
        raise IsADirectoryError(f"`{name}` must be a file, got the folder {path}. Add a name.")
    if not folder.is_dir():
        raise FileNotFoundError(f"`{name}` must be in a folder that exists, got {path}. Make it first: {folder}.")
    probe = folder / f".{path.name}.probe"
    try:
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():  # else a device or a pipe, which opening may disturb
            probe.touch()
            probe.unlink()
    except OSError as error:
        raise type(error)(f"`{name}` must be a file that can be written, got {path}: {error.strerror}.") from None


def check_computes(name: str) -> None:
    """PyTorch can compute on the device of that name, here."""
    try:
        torch.Generator(name)
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        if name.startswith("cuda") and torch.version.cuda is None and torch.version.hip is None:
            reason = f"torch {torch.__version__} is built without CUDA"
        elif name.startswith("cuda") and not torch.cuda.is_available():
            reason = "no GPU is found"
        else:
            reason = str(error).partition("\n")[0].partition(". ")[0].removesuffix(".")
        raise ValueError(
            f"`device` must be one that PyTorch can compute on here, got {name!r} ({reason}). Use 'auto' or 'cpu'."
        ) from None
