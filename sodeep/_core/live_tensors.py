"""How much memory the tensors of a computation take at its peak, on a CPU, where torch keeps no count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that operators make inside and that are still alive.

    Memory that a kernel takes and gives back within one call is not seen, nor what numpy takes.

    Attributes:
        peak: the most bytes so far.

    Example:
        >>> with LiveTensors() as live:
        ...     x = torch.zeros(1000)
        ...     y = x + 1
        ...     del x, y
        ...     z = torch.zeros(500)
        >>> live.peak
        8000
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[StorageWeakRef, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {ref for ref, _ in self._storages((args, kwargs))}
        self.sizes = {ref: size for ref, size in self.sizes.items() if not ref.expired()}  # type: ignore[no-untyped-call]
        self.sizes.update((ref, size) for ref, size in self._storages(result) if ref not in given)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return result

    @staticmethod
    def _storages(tree: Any) -> Iterator[tuple[StorageWeakRef, int]]:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                storage = leaf.untyped_storage()
                yield StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]
