"""What the processes of one training exchange: gradients, and the decisions that all must take alike."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sodeep.distributed import several_processes

T = TypeVar("T")


class Processes:
    """The processes of torch.distributed; where it is not initialised, this one alone, and nothing is exchanged."""

    def __init__(self) -> None:
        self.count, self.rank = (dist.get_world_size(), dist.get_rank()) if several_processes() else (1, 0)

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes files and speaks."""
        return self.rank == 0

    def device(self, device: torch.device) -> torch.device:
        """The GPU of this process, where they share a machine; any other device as it is."""
        if self.count == 1 or str(device) != "cuda":
            return device
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", self.rank % torch.cuda.device_count())))

    def share(self, total: int) -> int:
        """How many of `total` lists are this process's; one at least."""
        return max(1, total * (self.rank + 1) // self.count - total * self.rank // self.count)

    def stream(self, own: torch.Generator, seed: int, step: int) -> torch.Generator:
        """What a step draws from: `own` of the first process, and another stream for each of the others.

        Theirs depend on the seed, the process and the step alone, so that nothing of them has to be saved.
        """
        if self.is_first:
            return own
        state = np.random.SeedSequence([seed, self.rank, step]).generate_state(1, np.uint64)
        return torch.Generator(own.device).manual_seed(int(state[0] >> 1))

    def average(self, parameters: Iterable[Tensor], weight: float) -> None:
        """The gradients of all processes in place of those of this one: their mean, weighted."""
        if self.count == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients] + [torch.ones(1, device=gradients[0].device)]) * weight
        dist.all_reduce(flat)
        parts = (flat[:-1] / flat[-1]).split([g.numel() for g in gradients])  # type: ignore[no-untyped-call]
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def agree(self, stop: bool, clock: float, device: torch.device) -> tuple[bool, float]:
        """Whether any process is to stop, and the clock of the first."""
        if self.count == 1:
            return stop, clock
        values = torch.tensor([float(stop), clock if self.is_first else 0.0], device=device, dtype=torch.float64)
        dist.all_reduce(values)
        return bool(values[0] > 0), float(values[1])

    def from_first(self, function: Callable[[], T]) -> T:
        """What `function` gives in the first process, or its error, in all of them."""
        if self.count == 1:
            return function()
        sent: list[Any] = [None, None]
        if self.is_first:
            try:
                sent[0] = function()
            except Exception as error:  # raised below, in every process
                sent[1] = error
        dist.broadcast_object_list(sent)
        if sent[1] is not None:
            raise sent[1]
        result: T = sent[0]
        return result


@contextlib.contextmanager
def of_torchrun() -> Iterator[Processes]:
    """Those that torchrun has started, put together for as long as the context lasts; else this one alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not dist.is_available() or dist.is_initialized():
        yield Processes()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Processes()
    finally:
        dist.destroy_process_group()
