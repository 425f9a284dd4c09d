"""Detects that something has overwritten frozen weights.

Frameworks initialise modules that they did not build: `post_init` and `from_pretrained` of transformers, loops that
call `reset_parameters` or write to ``.data``, tools that give a module from the meta device memory without values.
None of them checks whether weights are frozen. transformers respects a marker; for the others, weights are compared.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

MARKER = "_is_hf_initialized"
"""The attribute that transformers reads on modules, parameters and buffers before it initialises them."""

OURS = "frozen"
"""Its value on tensors of frozen sorters. transformers sets True, on a tensor whose values it has loaded."""

SAMPLE = 16
"""How many numbers of each tensor are kept: whatever initialises a tensor changes all of them."""

TOLERANCE = 1e-2
"""Relative to the largest of them: no more than rounding to bfloat16, as mixed precision may do."""


class FrozenWeights:
    """A few numbers of each weight of a frozen module, to tell whether one was changed.

    The numbers are compared when a tensor was replaced, moved or written to since the last comparison.
    PyTorch counts no writes through ``.data``: call `look_again` for those to be seen.
    """

    def __init__(self, module: nn.Module) -> None:
        self.known = {name: _sample(tensor) for name, tensor in _tensors(module)}
        self.seen: list[tuple[dict[str, Any], str, Tensor, tuple[int, int]]] = []
        self._mark(module)

    def __getstate__(self) -> dict[str, Any]:
        return {"known": self.known, "seen": []}  # a copy has tensors of its own

    def look_again(self) -> None:
        """Compare the numbers at the next `changed` in any case."""
        self.seen = []

    def expect(self, name: str, tensor: Tensor) -> bool:
        """The tensor of that name is about to get these values. Whether it has them already, within rounding."""
        if name not in self.known:
            return True
        known, self.known[name] = self.known[name], _sample(tensor)
        self.seen = []
        return _alike(self.known[name], known)

    def changed(self, module: nn.Module) -> str | None:
        """The name of a tensor that has changed; None if there is none, or if it cannot be determined."""
        for holder, name, tensor, stamp in self.seen:
            if holder.get(name) is not tensor or tensor.requires_grad or _stamp(tensor) != stamp:
                break
        else:
            if self.seen:
                return None
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.requires_grad_(False)
        if torch._C._are_functorch_transforms_active():
            return None
        tensors = dict(_tensors(module))
        types = {type(tensor) for tensor in tensors.values()}
        if not types <= {nn.Parameter, Tensor} or any(type(weight) is Tensor for weight in module.parameters()):
            return None  # of another type, or put in place for one call: torch.func.functional_call, FSDP
        for name, tensor in tensors.items():
            if getattr(tensor, MARKER, None) is True:
                self.known[name] = _sample(tensor)
            elif name in self.known and not _alike(_sample(tensor), self.known[name]):
                return name
        self._mark(module)
        self.seen = [
            (holder, name, tensor, _stamp(tensor))
            for part in module.modules()
            for holder in (part._parameters, part._buffers)
            for name, tensor in holder.items()
            if tensor is not None
        ]
        return None

    def _mark(self, module: nn.Module) -> None:
        for part in module.modules():
            setattr(part, MARKER, True)
        for _, tensor in _tensors(module):
            if not tensor.is_meta:
                setattr(tensor, MARKER, OURS)


def unmark(module: nn.Module) -> None:
    """The weights of `module` are free to be initialised."""
    for part in module.modules():
        vars(part).pop(MARKER, None)
    for _, tensor in _tensors(module):
        vars(tensor).pop(MARKER, None)


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and floating-point buffers by name."""
    return [*module.named_parameters(), *((name, b) for name, b in module.named_buffers() if b.is_floating_point())]


def _stamp(tensor: Tensor) -> tuple[int, int]:
    """What changes when a tensor is written to, or gets other memory."""
    return 0 if tensor.is_inference() else tensor._version, tensor.data_ptr()


def _sample(tensor: Tensor) -> list[float] | None:
    """A few numbers from all over the tensor; None where it has none, on the meta device."""
    if tensor.is_meta:
        return None
    step = max(1, tensor.numel() // SAMPLE)
    numbers: list[float] = tensor.detach().reshape(-1)[::step][:SAMPLE].tolist()
    return numbers


def _alike(one: list[float] | None, other: list[float] | None) -> bool:
    if one is None or other is None or len(one) != len(other):
        return False
    limit = TOLERANCE * max(map(abs, other), default=0.0)
    return all(abs(a - b) <= limit for a, b in zip(one, other, strict=True))
