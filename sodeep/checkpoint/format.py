"""Sorter files: one ``.safetensors`` file holds the weights and, as text, everything needed to rebuild the sorter.

The file's metadata has one entry, ``sodeep``, a JSON object: a `Header`, and the checksums of `sodeep._core.sealed`.

Nothing is ever unpickled, and the memory that reading a file takes is bounded by its size.
A checkpoint of the 2019 training script is a pickle: `import_sodeep2019` reads it without running code from it.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import torch
from torch import Tensor

from sodeep._core.checks import check_path, describe, plain, user_path
from sodeep._core.files import write_atomic
from sodeep._core.sealed import MOST_HEADER, DamagedError, check_header, check_tensors, header_end, parse_header, seal
from sodeep._version import __version__
from sodeep.checkpoint.hub import FILE, HUB, download
from sodeep.ranks import handcrafted
from sodeep.sorters import SORTERS, build_sorter
from sodeep.sorters.base import Sorter

FORMAT_VERSION = 1
METADATA_KEY = "sodeep"

STORED_DTYPES = (torch.float16, torch.float32, torch.float64)

_MOST_FAULTS = 8  # that a message lists


@dataclasses.dataclass(frozen=True)
class Header:
    """The metadata of a sorter file.

    Attributes:
        sorter, config: ``build_sorter(sorter, **config)`` is the network.
        n_parameters: how many weights it has.
        training: the record of the training run (seed, steps, lengths, score range, errors, ...).
        library_version: the version of sodeep that wrote it.
        format_version: a reader refuses a version newer than it supports.
        sha256: of the tensors' bytes; `seal` writes it.
    """

    sorter: str
    config: dict[str, Any]
    n_parameters: int
    training: dict[str, Any]
    library_version: str = __version__
    format_version: int = FORMAT_VERSION
    sha256: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return dict(vars(self))

    @classmethod
    def parse(cls, path: Path, data: bytes, size: int) -> Header:
        """That of the file at `path`, of `size` bytes, from its first bytes `data`.

        Raises:
            ValueError: there is none in the file, or a damaged one, or one of a newer version.
        """
        try:
            values = parse_header(data, size, METADATA_KEY)
            version = values.get("format_version")
            if isinstance(version, int) and version > FORMAT_VERSION:
                newer = f"its format version is {version}, and this sodeep ({__version__}) reads up to"
                raise not_a_sorter(path, f"{newer} {FORMAT_VERSION}", "Update sodeep.")
            types = {name: get_origin(hint) or hint for name, hint in get_type_hints(cls).items()}
            check_header(data, values, types)
            for field in ("lengths", "known_lengths", "scores"):
                if not _is_range(values["training"].get(field, [0, 0])):
                    raise DamagedError(f"its header has no valid 'training' (its '{field}' is not two numbers)")
        except DamagedError as error:
            if error.pickled:
                remedy = "If the 2019 training script wrote it: sodeep import-sorter, or import_sodeep2019(path)."
                raise not_a_sorter(path, str(error), remedy) from None
            raise not_a_sorter(path, str(error)) from None
        return cls(**{name: values[name] for name in types})


def _is_range(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(end) in (int, float) for end in value)


@dataclasses.dataclass(frozen=True)
class SorterCard:
    """A description of a sorter file, read without its weights.

    Attributes:
        name: the file's name without its ending; what `load_sorter` takes for a shipped one.
        path: the file.
        sorter: the network, a key of `SORTERS`.
        config: its options.
        seq_len: the one length of list it takes, or None for any.
        n_parameters: how many weights.
        bytes: size of the file.
        training: the record of its training run (see `save_sorter`).
        library_version: the version of sodeep that wrote it.
    """

    name: str
    path: Path
    sorter: str
    config: dict[str, Any]
    seq_len: int | None
    n_parameters: int
    bytes: int
    training: dict[str, Any]
    library_version: str


def save_sorter(
    path: str | os.PathLike[str],
    sorter: Sorter,
    training: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write `sorter` to `path`, whole or not at all; a file already there is replaced.

    Args:
        path: where; by convention it ends in ``.safetensors``.
        sorter: a sorter of this library, trained or not, frozen or not.
        training: plain JSON values to keep beside it: seed, steps, ``lengths`` [shortest, longest], ``scores``
            [lowest, highest], errors per distribution, ... Default: ``sorter.trained``.
        dtype: how to store the weights: torch.float16 halves the file and is read back as float32. Biases and other
            vectors are few and do not bear rounding: they are stored in float32 at least. Default: as they are.

    Returns:
        The path.

    Raises:
        TypeError: not a sorter; values in `training` that are not JSON.
        ValueError: weights that are not finite, or do not fit `dtype`.
        FileNotFoundError: the folder does not exist.

    Example:
        >>> import tempfile
        >>> from sodeep.sorters import build_sorter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_sorter(f"{folder}/mine.safetensors", build_sorter("gru-sum"), training={"steps": 0})
        ...     sorter = load_sorter(path)
        >>> sorter.name, sorter.trained, sorter.frozen
        ('gru-sum', {'steps': 0}, True)
    """
    if not isinstance(sorter, Sorter):
        raise TypeError(
            f"`sorter` must be a sodeep Sorter, got {type(sorter).__name__}. "
            "Save the sorter itself, not a compiled or wrapped one."
        )
    if SORTERS.get(sorter.name) is not type(sorter):
        raise TypeError(
            f"`sorter` must be of a class in SORTERS, got {type(sorter).__name__}, which no file can name. "
            f"Add it first: SORTERS[{sorter.name!r}] = {type(sorter).__name__}."
        )
    if dtype is not None and dtype not in STORED_DTYPES:
        raise ValueError(f"`dtype` must be torch.float16, torch.float32, torch.float64 or None, got {dtype}.")
    tensors = _stored(sorter, dtype)
    header = Header(
        sorter=sorter.name,
        config=sorter.config,
        n_parameters=sum(weight.numel() for weight in sorter.parameters()),
        training=dict(sorter.trained if training is None else training),
    )
    try:
        json.dumps(header.to_json(), allow_nan=False, default=plain)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`training` must hold plain JSON values (text, finite numbers, lists, dicts), got {describe(training)}: "
            f"{error}."
        ) from None
    return write_atomic(path, seal(tensors, METADATA_KEY, header.to_json()))


def _stored(sorter: Sorter, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The weights of a sorter, in `dtype`, and its buffers: batch statistics and frequencies do not bear rounding."""
    weights = dict(sorter.named_parameters())
    tensors = {}
    vector_dtype = None if dtype is None else torch.promote_types(dtype, torch.float32)
    for key, tensor in sorter.state_dict().items():
        stored_dtype = dtype if key in weights and tensor.ndim > 1 else vector_dtype
        stored = tensor.detach().to("cpu", stored_dtype if tensor.is_floating_point() else None).clone().contiguous()
        bad = int((~torch.isfinite(stored)).sum())
        if bad:
            raise ValueError(
                f"`sorter` must have finite weights, got {bad} NaN or infinite of {stored.numel()} in '{key}'"
                f"{' once stored as ' + str(dtype).removeprefix('torch.') if dtype else ''}. "
                "The training diverged (lower the learning rate), or the weights do not fit the dtype."
            )
        tensors[key] = stored
    return tensors


def load_sorter(name_or_path: str | os.PathLike[str]) -> Sorter:
    """A sorter from a file, frozen, on the CPU: ready to be the ``rank_fn`` of a loss.

    The file is read once and kept as long as it does not change, so that calling this in a loop is cheap; every call
    returns a sorter of its own. PyTorch's random numbers are not touched.

    Args:
        name_or_path: the name of a shipped sorter (see `list_sorters`), such as "set"; the path of a file, or of a
            folder that `save_pretrained` wrote; or a repository of the Hugging Face Hub, "hf://user/name", with
            "@revision" or "/file.safetensors" after it if need be, which huggingface_hub (extra `hub`) fetches.

    Raises:
        TypeError: neither a name nor a path.
        FileNotFoundError: no such file, shipped sorter or repository; no connection to the Hub.
        MissingPackageError: a repository, without huggingface_hub.
        ValueError: a file that is not a sorter's, or is damaged, or was written by a newer version; the message says
            what was found and what to do.

    Example:
        >>> load_sorter("set")(torch.tensor([0.2, 0.9, 0.5])).round()
        tensor([3., 1., 2.])
    """
    path = _find(name_or_path)
    with torch.inference_mode(False):  # a tensor made in it could never be part of a graph
        header, tensors = _read(path, *_stamp(path))
        sorter = restore(path, header.sorter, header.config, tensors)
    sorter.trained = json.loads(json.dumps(header.training))
    sorter.source = os.fspath(name_or_path)
    return sorter.freeze()


def list_sorters() -> list[SorterCard]:
    """The sorters that ship with the library, by name.

    Example:
        >>> for card in list_sorters():
        ...     sorter = load_sorter(card.name)
    """
    return [read_header(path) for path in _shipped().values()]


def read_header(name_or_path: str | os.PathLike[str]) -> SorterCard:
    """The description of a sorter file; its weights are not read.

    Args:
        name_or_path: as for `load_sorter`.

    Raises:
        FileNotFoundError, ValueError: as for `load_sorter`.
    """
    path = _find(name_or_path)
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        data = start + file.read(header_end(start) - 8 if header_end(start) <= MOST_HEADER else 512)
    header = Header.parse(path, data, size)
    return SorterCard(
        name=path.stem,
        path=path,
        sorter=header.sorter,
        config=header.config,
        seq_len=header.config.get("seq_len"),
        n_parameters=header.n_parameters,
        bytes=size,
        training=header.training,
        library_version=header.library_version,
    )


def _shipped() -> dict[str, Path]:
    """Shipped sorters by name: in the package once installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "pretrained", package.parent / "pretrained"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}
    return {}


def _find(name_or_path: str | os.PathLike[str]) -> Path:
    """The file that `name_or_path` means."""
    shipped = _shipped()
    remedy = "It is a rank function as it is." if callable(name_or_path) else ""
    check_path(name_or_path, "name_or_path", remedy, what="a name or a path")
    name = os.fspath(name_or_path)
    if name in shipped and isinstance(name_or_path, str):
        return shipped[name]
    if name.startswith(HUB):
        return download(name)
    path = user_path(name)
    if (path / FILE).is_file():
        return path / FILE
    if path.is_dir():
        raise ValueError(f"{path} is not a sorter file: it is a folder. Give the .safetensors file in it.")
    if not path.exists():
        near = difflib.get_close_matches(path.name.removesuffix(".safetensors"), shipped, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        if (function := handcrafted(name)) is not None:
            hint = f" {function} is a function, and is not loaded."
        raise FileNotFoundError(
            "`name_or_path` must be a sorter file or a shipped sorter "
            f"({', '.join(shipped) or 'none in this installation'}), got '{name}', which is neither.{hint}"
        )
    if not path.is_file():  # some have no end
        raise ValueError(f"{path} is not a sorter file: it is a device or a pipe. Give the .safetensors file.")
    return path


def _stamp(path: Path) -> tuple[int, int, int]:
    """What changes when a file does."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


@functools.lru_cache(maxsize=8)
def _read(path: Path, *stamp: int) -> tuple[Header, dict[str, Tensor]]:
    """Header and tensors of a file, kept while its `_stamp` is the same. Read whole, so that both are of one file."""
    data = path.read_bytes()
    header = Header.parse(path, data, len(data))
    try:
        return header, check_tensors(data, header.sha256)
    except DamagedError as error:
        raise not_a_sorter(path, str(error)) from None


def not_a_sorter(path: Path, reason: str, remedy: str = "Get the file again, or train one.") -> ValueError:
    """The error that `path` is no sorter file, and what to do."""
    return ValueError(f"{path} is not a sorter file: {reason}. {remedy}")


def restore(path: Path, name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Sorter:
    """The sorter that the file at `path` names, with the weights `tensors`, all of them and no others."""
    if name not in SORTERS:
        raise not_a_sorter(
            path,
            f"its network {describe(name)} is not one of {', '.join(SORTERS)}",
            "Update sodeep, or add the class that wrote it to SORTERS.",
        )
    # the option was called so before 0.1.0
    config = {"init" if option == "start" else option: value for option, value in config.items()}
    try:
        # On the meta device nothing is allocated and no random number drawn: a wrong config costs nothing.
        with torch.device("meta"):
            sorter = build_sorter(name, **config)
    except (ValueError, TypeError, RuntimeError, OverflowError, MemoryError) as error:
        reason = str(error).removesuffix(".")
        raise not_a_sorter(path, f"its config does not build a {name} sorter: {reason}") from None
    expected = sorter.state_dict()
    faults = misfits(expected, tensors)
    faults = faults or [f"{key} {fault}" for key in expected if (fault := _tensor_fault(tensors[key], expected[key]))]
    if faults:
        raise not_a_sorter(path, f"its tensors are not those of this {name} sorter: {listed(faults)}")
    wide = torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors.values()) else torch.float32
    state = {key: tensor.to(wide if tensor.is_floating_point() else None, copy=True) for key, tensor in tensors.items()}
    sorter.load_state_dict(state, assign=True)
    return sorter


def misfits(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """What keeps tensors from being those expected, by name and shape."""
    faults = [f"{key} is missing" for key in expected if key not in given]
    faults += [f"{key} is unexpected" for key in given if key not in expected]
    return faults + [
        f"{key} has shape {tuple(given[key].shape)} instead of {tuple(tensor.shape)}"
        for key, tensor in expected.items()
        if key in given and given[key].shape != tensor.shape
    ]


def listed(faults: Sequence[str]) -> str:
    """The first few, for a message."""
    more = len(faults) - _MOST_FAULTS
    return "; ".join(faults[:_MOST_FAULTS]) + (f"; and {more} more" if more > 0 else "")


def _tensor_fault(tensor: Tensor, expected: Tensor) -> str | None:
    """What keeps a tensor of the right shape from being the weight or buffer `expected` of a sorter."""
    if tensor.dtype not in (STORED_DTYPES if expected.is_floating_point() else (expected.dtype,)):
        return f"has dtype {str(tensor.dtype).removeprefix('torch.')}"
    bad = int((~tensor.isfinite()).sum())
    return f"has {bad} NaN or infinite of {tensor.numel()} values" if bad else None
