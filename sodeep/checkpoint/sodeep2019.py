"""Checkpoints of the 2019 training script (Engilberge et al., CVPR 2019), read without running their pickle."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from sodeep._core.checks import describe, user_path
from sodeep._core.pickle_stream import NotPlainError
from sodeep._core.sealed import recognise
from sodeep.checkpoint._torch_file import read_torch_file
from sodeep.checkpoint.format import restore
from sodeep.sorters import SORTERS
from sodeep.sorters.base import Sorter


def import_sodeep2019(path: str | os.PathLike[str]) -> Sorter:
    """A sorter from a checkpoint of the 2019 training script (``best_*.pth.tar``), without running code from it.

    Such a file is a pickle of a dict: the weights as ``state_dict``, the command line as an `argparse.Namespace` under
    ``args_dict``. It is not unpickled: a reader of such files reads it, and refuses one that holds anything but dense
    tensors, plain values and that one class. Its weights may lie on a GPU and carry the ``module.`` prefix of
    `DataParallel`.

    Args:
        path: the file.

    Returns:
        The same network, frozen, on the CPU. Its ranks are n times the outputs of the original, which sees raw scores:
        keep them between about -1 and 1; outside -4 to 4 there is a warning.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file; the message says what was found.
    """
    path = user_path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`path` must be a 2019 checkpoint, got {path}, not a file.")
    checkpoint = _read_2019(path)
    args, weights = checkpoint["args_dict"], checkpoint["state_dict"]
    model = args.get("model_type")
    if not isinstance(model, str) or model not in _MODELS_2019:
        raise ValueError(
            f"{path} must hold one of the models {', '.join(_MODELS_2019)}, got {describe(model)}. "
            "The 2019 'exa' has no weights: use sigmoid_rank."
        )
    name, sized = _MODELS_2019[model]
    tensors = {_rename_2019(str(key)): tensor for key, tensor in weights.items() if isinstance(tensor, Tensor)}
    seq_len = int(tensors[sized].shape[-1]) if sized in tensors and tensors[sized].ndim else args.get("seq_len")
    config: dict[str, Any] = {"seq_len": seq_len, "normalize": False}
    if "init" in inspect.signature(SORTERS[name]).parameters:
        config["init"] = "random"
    sorter = restore(path, name, config, tensors)
    sorter.trained = {"source": "sodeep 2019", "scores": _RANGE_2019}
    if seq_len:
        sorter.trained["lengths"] = [seq_len, seq_len]
    for key, ours in (("epoch", "epoch"), ("best_rec", "validation_error")):
        if isinstance(checkpoint.get(key), (int, float)):
            sorter.trained[ours] = checkpoint[key]
    return sorter.freeze()


def _read_2019(path: Path) -> dict[str, Any]:
    """What a checkpoint of 2019 holds: 'args_dict' and 'state_dict', dicts both, and more."""
    try:
        checkpoint = read_torch_file(path)
    except NotPlainError as error:
        with path.open("rb") as file:
            known = recognise(file.read(512))
        raise ValueError(
            f"{path} is not a 2019 checkpoint: {known or error}. It should be a torch.save file of a dict "
            "with the weights, plain values and the argparse.Namespace of the command line, nothing else. "
            "If it was copied, copy it again."
        ) from None
    if not isinstance(checkpoint, dict) or not {"args_dict", "state_dict"} <= checkpoint.keys():
        keys = f" with {sorted(map(str, checkpoint))[:8]}" if isinstance(checkpoint, dict) else ""
        raise ValueError(
            f"{path} is not a 2019 checkpoint: it should be a dict with 'args_dict' and 'state_dict', "
            f"found {type(checkpoint).__name__}{keys}. "
            "Use the file that the training script wrote, not the bare weights."
        )
    if not all(isinstance(checkpoint[key], dict) for key in ("args_dict", "state_dict")):
        raise ValueError(f"{path} is not a 2019 checkpoint: its 'args_dict' or 'state_dict' is of another type.")
    return checkpoint


# name in 2019 -> name here, and of a fixed-length network a weight (by its name here) whose last axis is the length
_MODELS_2019 = {
    "cnn": ("cnn", "head.bias"),
    "lstm": ("lstm", "head.bias"),
    "lstmla": ("lstm-large", "head.bias"),
    "lstme": ("lstm-end", "rnn.weight_ih_l0"),
    "gruc": ("gru", None),
    "grup": ("gru-proj", "head.bias"),
    "grus": ("gru-sum", None),
    "mlp": ("mlp", "layers.4.bias"),
}

# the script draws its scores from U(-1, 1) and N(0, 1); one normal score in 16,000 lies outside
_RANGE_2019 = (-4.0, 4.0)


def _rename_2019(key: str) -> str:
    """Our name of a weight of a 2019 network."""
    key = key.removeprefix("module.")
    key = re.sub(r"^(lstm|rnn)\.", "rnn.", key)
    key = re.sub(r"^(conv1|layer10)\.", "head.", key)
    key = re.sub(r"^layer([1-9])\.", lambda match: f"layers.{int(match[1]) - 1}.", key)
    return re.sub(r"^lin([1-3])\.", lambda match: f"layers.{2 * int(match[1]) - 2}.", key)
