"""Sorters as programs that run without sodeep: ``torch.export`` files (.pt2) and ONNX files (.onnx)."""

from __future__ import annotations

import copy
import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sodeep._core.checks import check_at_least, check_bool, check_writable, user_path
from sodeep._core.extras import MissingPackageError, check_installed
from sodeep._core.files import write_atomic
from sodeep._version import __version__
from sodeep.sorters.base import Sorter

ONNX_PACKAGES = ("onnx", "onnxscript")
"""What torch's exporter to ONNX imports."""


def export_sorter(path: str | os.PathLike[str], sorter: Sorter, n: int | None = None, *, mask: bool = False) -> None:
    """Write a sorter as a program without sodeep: scores (lists, n) -> ranks (lists, n), any number of lists.

    The ending of `path` says which. A ``torch.export`` program (.pt2) is read with ``torch.export.load(path).module()``
    where torch is but sodeep is not, and gradients reach its scores. An ONNX file (.onnx) is for inference without
    torch: from ``scores``, and ``mask`` if there is one, to ``ranks``, with float32 weights. Its metadata are
    ``sodeep.sorter``, the name in `SORTERS`; ``sodeep.length``, of the lists, "any" or a number; ``sodeep.lengths``,
    those of `Sorter.known_lengths`; ``sodeep.scores``, the lowest and highest score it was trained on, if it does not
    normalise them; and ``sodeep.version``. Both take float32 scores alone: half precision loses nothing by a cast to
    it. Neither checks its scores: NaN in gives NaN out.

    Args:
        path: the .pt2 or .onnx file.
        sorter: a sorter, frozen or not; its weights become constants.
        n: fix the length of the lists. None: any length from 2 on, or the one of a fixed-length sorter. The
            recurrent sorters that take any length need it: the exporters unroll their loop.
        mask: give the program a second input, a boolean mask (lists, n), True = a real item, for lists of unequal
            length. A masked item has rank 0 and gradient 0, whatever its score. For networks that read masks: "set".

    Raises:
        TypeError: not a sorter.
        OSError: `path` cannot be written.
        ValueError: a `path` of another kind of file; a recurrent sorter without `n`, or an `n` that is not the
            sorter's; `mask` with a network that reads none.
        MissingPackageError: .onnx without the extra `onnx`, or with a torch before 2.9.

    Example:
        >>> import sodeep, tempfile
        >>> sorter = sodeep.build_sorter("set")
        >>> with tempfile.NamedTemporaryFile(suffix=".pt2") as file:
        ...     export_sorter(file.name, sorter)
        ...     program = torch.export.load(file.name).module()
        >>> scores = torch.randn(3, 12)
        >>> torch.allclose(program(scores), sorter(scores))
        True
        >>> with tempfile.NamedTemporaryFile(suffix=".pt2") as file:
        ...     export_sorter(file.name, sorter, mask=True)
        ...     program = torch.export.load(file.name).module()
        >>> mask = torch.arange(12) < torch.tensor([[12], [5], [1]])
        >>> torch.allclose(program(scores, mask), sorter(scores, where=mask))
        True
    """
    if not isinstance(sorter, Sorter):
        raise TypeError(
            f"`sorter` must be a sodeep Sorter, got {type(sorter).__name__}. Export the sorter itself, not its name "
            "(load_sorter gives it) nor a compiled or wrapped one."
        )
    path = user_path(path)
    if path.suffix not in (".pt2", ".onnx"):
        raise ValueError(
            f"`path` must end in .pt2, a torch.export program, or .onnx, got {path}. For another format write one of "
            "them, and convert it."
        )
    recurrent = any(isinstance(module, nn.RNNBase) for module in sorter.modules())
    if sorter.seq_len is not None and n not in (None, sorter.seq_len):
        raise ValueError(f"`n` must be {sorter.seq_len}, the length this {sorter.name} sorter was built for, got {n}.")
    if n is not None:
        check_at_least(n, 1, "n")
    n = sorter.seq_len if n is None else n
    if n is None and recurrent:
        raise ValueError(
            f"`n` must be given for the {sorter.name} sorter, whose loop over the list is unrolled, got None. "
            "Name the length of your lists."
        )
    if check_bool(mask, "mask") and not sorter.reads_masks:
        raise ValueError(
            f"`mask` must be False for the {sorter.name} sorter, whose network reads no masks, got True. Export one "
            "that does, such as 'set', or give the program lists of one length at a time."
        )
    check_writable(path, "path")
    shape = {0: torch.export.Dim("lists")}
    if n is None:
        shape[1] = torch.export.Dim("n", min=2)
    sorter = copy.deepcopy(sorter).freeze()  # or BatchNorm would go on taking its statistics from the batch
    inputs = [torch.zeros(3, n or 7, device=next(sorter.parameters()).device)]
    if mask:
        inputs.append(torch.ones_like(inputs[0], dtype=torch.bool))
    write = _write_torch if path.suffix == ".pt2" else _write_onnx
    with warnings.catch_warnings():
        # RNN modules keep their weights in a second, unregistered list
        warnings.filterwarnings("ignore", message=r"The tensor attributes? self\.rnn\._flat_weights")
        write(path, sorter, tuple(inputs), shape)


def _write_torch(path: Path, sorter: Sorter, inputs: tuple[Tensor, ...], shape: dict[int, Any]) -> None:
    with torch.enable_grad():
        program = torch.export.export(sorter, inputs, dynamic_shapes=(shape,) * len(inputs))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    write_atomic(path, buffer.getvalue())


class _Values(nn.Module):
    """A sorter without what only makes its gradient."""

    def __init__(self, sorter: Sorter) -> None:
        super().__init__()
        self.sorter = sorter

    def forward(self, scores: Tensor, where: Tensor | None = None) -> Tensor:
        return self.sorter.values(scores, where)


def _write_onnx(path: Path, sorter: Sorter, inputs: tuple[Tensor, ...], shape: dict[int, Any]) -> None:
    for package in ONNX_PACKAGES:
        check_installed(package, "An .onnx file")
    if torch.torch_version.TorchVersion(torch.__version__) < "2.9":
        raise MissingPackageError(
            f"An .onnx file needs torch 2.9 or newer, got {torch.__version__}. Update torch, or write a .pt2 file."
        )
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            _Values(sorter).float().eval(),  # onnxruntime lacks some functions in float64, such as atan
            inputs,
            dynamo=True,
            dynamic_shapes=(shape,) * len(inputs),
            input_names=["scores", "mask"][: len(inputs)],
            output_names=["ranks"],
            verbose=False,
        )
    assert program is not None  # as it is where dynamo=True
    model = program.model_proto
    properties = {"sorter": sorter.name, "length": "any" if 1 in shape else str(inputs[0].shape[1])}
    if 1 in shape and sorter.known_lengths is not None:
        properties["lengths"] = "{} to {}".format(*sorter.known_lengths)
    if not sorter.normalize and sorter.trained_range is not None:
        properties["scores"] = "{:g} to {:g}".format(*sorter.trained_range)
    for key, value in {**properties, "version": __version__}.items():
        model.metadata_props.add(key=f"sodeep.{key}", value=value)
    write_atomic(path, model.SerializeToString())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says of torch's own insides, and of torchvision."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", "# The axis name")  # that two inputs share
            yield
    finally:
        logger.setLevel(level)
