"""Labels of samples in any form: numbers, strings or multi-hot; tensors, arrays or lists.

Every form becomes a tensor once, at the public function. Whole numbers become int64, never float32, in which
10¹² + 1 and 10¹² + 2 are the same label.
"""

from __future__ import annotations

import hashlib
import numbers
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sodeep._core.checks import ask, describe, is_whole, readable


def label_tensor(labels: Any, name: str = "labels") -> Tensor:
    """`labels` as a tensor: floating point and bool as they are, other numbers as int64, strings as int64 codes."""
    values = labels.detach() if isinstance(labels, Tensor) else _from_python(labels, name)
    if values.is_complex():
        raise TypeError(f"`{name}` must be numbers or strings, got {describe(labels)}.")
    if values.dtype in (torch.int64, torch.bool) or values.is_floating_point():
        return values
    return values.long()


def _from_python(labels: Any, name: str) -> Tensor:
    try:
        array = np.asarray(labels)
    except (TypeError, ValueError, RuntimeError):
        array = np.empty((), dtype="V")
    listed = isinstance(labels, (list, tuple))
    if listed and array.size == 0:
        return torch.zeros(array.shape, dtype=torch.int64)  # numpy takes an empty list for floats
    # numpy makes strings of [0, "a"], and floats of whole numbers when no dtype of 64 bits holds them all
    if listed and (array.dtype.kind in "US" or (array.dtype.kind == "f" and np.abs(array).max() >= 2**53)):
        array = np.asarray(labels, dtype=object)
    if array.dtype.kind in "OT" and array.ndim:
        array = _uniform(array, name)
    if array.dtype.kind in "biu":
        # big-endian arrays have no torch dtype; whole numbers above int64 wrap, one to one
        return torch.from_numpy(array.astype(bool if array.dtype.kind == "b" else np.int64))
    if array.dtype.kind == "f":
        return torch.tensor(array.astype(np.float64))  # longdouble has no torch dtype
    if array.dtype.kind in "USOT" and array.ndim:
        return torch.tensor([_code(label) for label in array.flat], dtype=torch.int64).reshape(array.shape)
    raise TypeError(
        f"`{name}` must be numbers or strings, of one kind (a tensor, an array or a list), got {describe(labels)}."
    )


def _uniform(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Python objects as an array of bools, whole numbers or floats if all are numbers; as they are if all are strings.

    The first that does not go with the others is named.
    """

    def at(place: tuple[int, ...]) -> str:
        return f"{describe(array[place])} at index {place[0] if len(place) == 1 else place}"

    strings: dict[tuple[int, ...], Any] = {}
    reals: dict[tuple[int, ...], Any] = {}
    for place, label in np.ndenumerate(array):
        if isinstance(label, (str, bytes)):
            strings[place] = label
        elif isinstance(label, (numbers.Real, np.bool_)) and (label == label or not strings):
            reals[place] = label
        else:  # None, or NaN among strings, as a table has them where a value is missing
            absent = label is None or isinstance(label, numbers.Real)
            remedy = "Drop such rows, or give them a label of their own." if absent else "Convert them, with str() say."
            raise TypeError(f"`{name}` must be numbers or strings, got {at(place)}. {remedy}")
    if not reals:
        return array
    if strings:
        raise TypeError(
            f"`{name}` must be all numbers or all strings, got {at(next(iter(reals)))} and {at(next(iter(strings)))}. "
            "Make them of one kind, for example with str()."
        )
    types = {bool if isinstance(x, (bool, np.bool_)) else int if is_whole(x) else float for x in reals.values()}
    common = float if float in types else int if int in types else bool
    values = [common(x) for x in reals.values()]
    low = 0 if common is int and min(values) >= 0 else -(2**63)
    for place, value in zip(reals, values, strict=True):
        if (value == value != reals[place]) if common is float else not low <= value < low + 2**64:
            held = "a float64" if common is float else "one dtype of 64 bits"
            raise ValueError(f"`{name}` must be numbers that {held} can hold, got {at(place)}. Give them as strings.")
    if common is int:
        values = [(value + 2**63) % 2**64 - 2**63 for value in values]  # as torch makes int64 of uint64
    return np.array(values).reshape(array.shape)


def _code(label: str | bytes) -> int:
    """63 bits of a hash: the same in every process, batch and run, so that gather and a memory take strings too.

    Bytes are text in UTF-8. Two of a million distinct strings collide with a chance of one in ten million.
    """
    text = label if isinstance(label, bytes) else label.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def as_labels(values: Tensor, name: str = "labels", rows: int | None = None, rows_of: str = "embeddings") -> Tensor:
    """Checked labels: (n,) int64 or floating point, or multi-hot (n, c) int64. A column (n, 1) counts as (n,).

    Args:
        values: what `label_tensor` made of them.
        name: the argument, for messages.
        rows: the number of rows there must be; None takes any.
        rows_of: the argument that has these rows, for messages.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values.squeeze(1)
    if values.ndim not in (1, 2) or (rows is not None and values.shape[0] != rows):
        expected = "(n,) or multi-hot (n, c)" if rows is None else f"({rows},) or multi-hot ({rows}, c)"
        per_row = "" if rows is None else f", one label for each row of `{rows_of}`"
        raise ValueError(
            f"`{name}` must have shape {expected}{per_row}, "
            f"got shape {tuple(values.shape)} and dtype {str(values.dtype).removeprefix('torch.')}."
        )
    if values.ndim == 2:

        def judge(binary: float) -> None:
            if not binary:
                raise ValueError(
                    f"`{name}` with two axes must be multi-hot (0 and 1 only), got {describe(values)} with other "
                    "values. One label a row goes in shape (n,)."
                )

        if readable(values):
            ask(((values == 0) | (values == 1)).all(), judge)
        return (values != 0).long()
    if values.is_floating_point():
        nan = values.isnan()

        def judge_nan(count: float) -> None:
            if count:
                raise ValueError(
                    f"`{name}` must not be NaN, got {int(count)} NaN of {values.numel()} labels, "
                    f"the first at index {int(nan.nonzero()[0])}. NaN equals nothing, not even itself: drop those rows."
                )

        if readable(values):
            ask(nan.sum(), judge_nan)
        return values
    return values.long()


def same_label(labels: Tensor, ref_labels: Tensor) -> Tensor:
    """Which pairs share a label, (n, m) bool, from two results of `as_labels`."""
    if labels.ndim != ref_labels.ndim or labels.shape[1:] != ref_labels.shape[1:] or labels.dtype != ref_labels.dtype:
        raise ValueError(
            f"`ref_labels` must be of the form of `labels` (axes, classes and dtype), got {describe(ref_labels)} "
            f"against {describe(labels)}."
        )
    if labels.ndim == 1:
        return labels.unsqueeze(1) == ref_labels
    # float32 counts shared labels exactly up to 2²⁴ classes; boolean matrix products do not exist
    return labels.float() @ ref_labels.float().T > 0
