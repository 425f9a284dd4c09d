"""Batch samplers that count their epochs, stay in step on several processes, and resume inside an epoch."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from sodeep._core.checks import check_at_least, describe, is_whole
from sodeep._core.warn import warn

if TYPE_CHECKING:
    from typing_extensions import Self


class _Position(NamedTuple):
    """A place in the sequence of all batches."""

    epoch: int
    batches: int
    """How many batches of the epoch were drawn."""


class EpochSampler(Sampler[list[int]]):
    """Deals the batches of an epoch, which a subclass makes as a function of its settings and the epoch's number.

    Args:
        settings: all that the batches depend on but for the epoch and `rank`, as plain values: what a state must have
            been taken with. `fingerprint` sums up the data.
        num_replicas: number of processes.
        rank: of this process.
    """

    def __init__(self, settings: Mapping[str, Any], num_replicas: int, rank: int) -> None:
        self.num_replicas = check_at_least(num_replicas, 1, "num_replicas")
        if not is_whole(rank) or not 0 <= rank < num_replicas:
            raise ValueError(f"`rank` must be a whole number from 0 to {num_replicas - 1}, got {describe(rank)}.")
        self.rank = int(rank)
        self._settings = {**settings, "num_replicas": self.num_replicas}
        self._position = _Position(0, 0)
        self._next: _Position | None = None  # where the next pass starts, if that was set
        self._passes = 0
        self._repeats = 0

    def __len__(self) -> int:
        raise NotImplementedError

    def _batches(self, epoch: int) -> Iterator[list[int]]:
        """The batches of this process in that epoch, as many as `__len__` says."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """The number of the pass under way, or else of the next."""
        return self._position.epoch

    @property
    def sampler(self) -> Self:
        """Itself: Lightning calls ``batch_sampler.sampler.set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next pass. Right after `load_state_dict` that epoch's own number changes nothing."""
        epoch = check_at_least(epoch, 0, "epoch")
        if self._next is None or self._next.epoch != epoch:
            self._go_to(_Position(epoch, 0))

    def state_dict(self) -> dict[str, Any]:
        """The epoch, how many of its batches were drawn, and the settings: the same on all processes."""
        return {**self._position._asdict(), "settings": dict(self._settings)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass be the rest of the one that `state_dict` was taken in, with the same data and settings."""
        known = isinstance(state_dict, Mapping) and set(state_dict) - {"settings"} == set(_Position._fields)
        given = state_dict.get("settings", self._settings) if known else None  # version 0.1 saved none
        if not isinstance(given, Mapping):
            raise ValueError(
                f"`state_dict` must be what state_dict() gave, with epoch and batches, got {describe(state_dict)}."
            )
        epoch, batches = (check_at_least(state_dict[field], 0, field) for field in _Position._fields)
        differ = [name for name in self._settings if given.get(name) != self._settings[name]]
        if differ:
            theirs, ours = (", ".join(f"{name}={of.get(name)!r}" for name in differ) for of in (given, self._settings))
            raise ValueError(
                f"`state_dict` must be of a sampler with the same data and settings, got {theirs}; here {ours}. Build "
                f"the sampler as it was, or start an epoch anew: set_epoch({epoch})."
            )
        if batches > len(self):
            raise ValueError(
                f"`state_dict` must be of a sampler with the same data and settings, got {batches} batches of an "
                f"epoch that has {len(self)} here."
            )
        self._go_to(_Position(epoch, batches))

    def __iter__(self) -> Iterator[list[int]]:
        # A generator runs from its first `next` on: a DataLoader with workers makes two of them and reads one.
        start = self._begin()
        self._passes += 1
        this = self._passes
        for drawn, batch in enumerate(islice(self._batches(start.epoch), start.batches, None), start.batches + 1):
            if this == self._passes:
                self._position = _Position(start.epoch, drawn)
            yield batch
        if this == self._passes:
            self._position = _Position(start.epoch + 1, 0)

    def _go_to(self, position: _Position) -> None:
        self._position = self._next = position

    def _begin(self) -> _Position:
        """Where the pass that begins now starts."""
        epoch, batches = self._position
        again = False
        if self._next is not None:
            start, self._next = self._next, None
        elif batches == 0:
            start = self._position
        elif self.num_replicas == 1 or batches == len(self):
            start = _Position(epoch + 1, 0)
        else:
            start, again = _Position(epoch, 0), True
        self._repeats = self._repeats + 1 if again else 0
        if self._repeats == 2:  # once may have been a look at the data
            warn(
                f"{type(self).__name__} deals epoch {epoch} for the third time: no pass was read to its end. "
                "With several processes call set_epoch before every pass, with a new number.",
            )
        self._position = start
        return start


def fingerprint(*arrays: NDArray[Any]) -> str:
    """A checksum of whole numbers."""
    crc = 0
    for array in arrays:
        crc = zlib.crc32(np.ascontiguousarray(array, dtype=np.int64).tobytes(), crc)
    return f"{crc:08x}"
