"""Batch sampling for metric learning: P classes with K samples each, so that every sample has positives."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Sampler

from sodeep._core.checks import check_at_least, check_choice, describe, is_whole
from sodeep._core.labels import as_labels, label_tensor


class _Deck:
    """Deals items in shuffled rounds: every item once before any comes again."""

    def __init__(self, items: list[int], rng: np.random.Generator) -> None:
        self.items = items
        self.rng = rng
        self.left: list[int] = []

    def deal(self, count: int) -> list[int]:
        """The next `count` items, all different if there are that many."""
        hand: list[int] = []
        while len(hand) < count:
            if not self.left:
                # those in the hand go to the end of the new round, so that it completes without a repeat
                self.left = sorted(self.rng.permutation(self.items).tolist(), key=set(hand).__contains__)
            take = min(count - len(hand), len(self.left))
            hand += self.left[:take]
            self.left = self.left[take:]
        return hand


class _Position(NamedTuple):
    """A place in the sequence of all batches."""

    epoch: int
    batches: int
    """How many batches of the epoch were drawn."""


class BalancedBatchSampler(Sampler[list[int]]):
    """Batches of `classes_per_batch` different classes with `samples_per_class` samples each, for ``batch_sampler=``.

    An epoch is ``n // (classes_per_batch * samples_per_class * num_replicas)`` batches, at least one, where n counts
    the samples of the classes kept: about as many samples are drawn as there are. Classes are dealt in shuffled rounds:
    in an epoch every class appears equally often, give or take one, however large it is, and none is left out if the
    epoch has as many places for classes as there are classes. Within a class samples are dealt in shuffled rounds too:
    in an epoch all of a class are seen before one comes again. A sample of a large class may wait some epochs.

    Every epoch is shuffled anew, as a function of `seed` and of the number of the epoch alone. Epochs count up by
    themselves: a pass begins when its first batch is drawn, and has the number given to `set_epoch`, or else the
    one after that of the last pass. With several processes all must be in the same epoch, or they share classes: call
    `set_epoch` before every pass, as with ``DistributedSampler`` (Lightning does). Without it only a pass that was read
    to its end counts there, so that a process may look at a batch by itself.

    `state_dict` and `load_state_dict` resume in the middle of an epoch, as torchdata's ``StatefulDataLoader`` and
    Lightning with it do by themselves. They count batches drawn from the sampler: a plain ``DataLoader`` with
    workers draws some in advance.

    Args:
        labels: one label for each sample of the data set: numbers or strings, tensor, array or list.
        classes_per_batch: P, at least 2, or there are no negatives.
        samples_per_class: K, at least 2, or there are no positives.
        num_batches: batches in an epoch; None for the number above.
        small_classes: what to do with a class of fewer than K samples: "repeat" its samples in the batch (equal
            rows, which are trivial positives unless augmented), or "drop" the class.
        seed: of the shuffling.
        num_replicas: number of processes. The classes of a step are different on all of them. In Lightning, build the
            loader in ``train_dataloader``, with ``self.trainer.world_size`` and ``self.trainer.global_rank``, and give
            the trainer ``use_distributed_sampler=False``.
        rank: of this process. All processes need the same labels and seed.

    Raises:
        TypeError: labels that are neither numbers nor strings.
        ValueError: labels of a wrong shape, fewer classes than ``classes_per_batch * num_replicas``, and numbers out
            of range.

    Example:
        >>> import torch
        >>> sampler = BalancedBatchSampler(["cat", "cat", "dog", "dog", "dog", "cow", "cow"], 2, 2)
        >>> len(sampler), [len(batch) for batch in sampler]
        (1, [4])
        >>> loader = torch.utils.data.DataLoader(range(7), batch_sampler=sampler)
    """

    def __init__(
        self,
        labels: Any,
        classes_per_batch: int,
        samples_per_class: int,
        *,
        num_batches: int | None = None,
        small_classes: str = "repeat",
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        check_at_least(classes_per_batch, 2, "classes_per_batch")
        check_at_least(samples_per_class, 2, "samples_per_class")
        check_choice(small_classes, ("repeat", "drop"), "small_classes")
        check_at_least(seed, 0, "seed")
        check_at_least(num_replicas, 1, "num_replicas")
        if not is_whole(rank) or not 0 <= rank < num_replicas:
            raise ValueError(f"`rank` must be a whole number from 0 to {num_replicas - 1}, got {describe(rank)}.")
        members: dict[Any, list[int]] = {}
        values = as_labels(label_tensor(labels))
        if values.ndim != 1:
            raise ValueError(f"`labels` must have shape (n,), one label a sample, got shape {tuple(values.shape)}.")
        for index, label in enumerate(values.tolist()):
            members.setdefault(label, []).append(index)
        least = samples_per_class if small_classes == "drop" else 1
        self.members = [indices for indices in members.values() if len(indices) >= least]
        per_step = classes_per_batch * num_replicas
        if len(self.members) < per_step:
            kept = f" with {least} samples or more" if least > 1 else ""
            raise ValueError(
                f"`labels` must have at least classes_per_batch * num_replicas = {per_step} classes{kept}, "
                f"got {len(self.members)}. Lower classes_per_batch."
            )
        if num_batches is None:
            num_batches = max(sum(map(len, self.members)) // (per_step * samples_per_class), 1)
        check_at_least(num_batches, 1, "num_batches")
        self.classes_per_batch = classes_per_batch
        self.samples_per_class = samples_per_class
        self.num_batches = num_batches
        self.seed = seed
        self.num_replicas = num_replicas
        self.rank = rank
        self._position = _Position(0, 0)
        self._next: _Position | None = None  # where the next pass starts, if that was set
        self._passes = 0
        self._repeats = 0

    def __len__(self) -> int:
        return self.num_batches

    @property
    def epoch(self) -> int:
        """The number of the pass under way, or else of the next."""
        return self._position.epoch

    @property
    def sampler(self) -> BalancedBatchSampler:
        """Itself: Lightning calls ``batch_sampler.sampler.set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next pass. Right after `load_state_dict` that epoch's own number changes nothing."""
        epoch = check_at_least(epoch, 0, "epoch")
        if self._next is None or self._next.epoch != epoch:
            self._go_to(_Position(epoch, 0))

    def state_dict(self) -> dict[str, int]:
        """The epoch and how many of its batches were drawn, for a sampler with the same labels and options."""
        return self._position._asdict()

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Let the next pass be the rest of the one that `state_dict` was taken in."""
        if not isinstance(state_dict, Mapping) or set(state_dict) != set(_Position._fields):
            raise ValueError(
                f"`state_dict` must be what state_dict() gave, with epoch and batches, got {describe(state_dict)}."
            )
        epoch, batches = (check_at_least(state_dict[field], 0, field) for field in _Position._fields)
        if batches > self.num_batches:
            raise ValueError(
                f"`state_dict` must be of a sampler with the same labels and options, got {batches} batches of an "
                f"epoch that has {self.num_batches} here."
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
        elif self.num_replicas == 1 or batches == self.num_batches:
            start = _Position(epoch + 1, 0)
        else:
            start, again = _Position(epoch, 0), True
        self._repeats = self._repeats + 1 if again else 0
        if self._repeats == 2:  # once may have been a look at the data
            warnings.warn(
                f"BalancedBatchSampler deals epoch {epoch} for the third time: no pass was read to its end. "
                "With several processes call set_epoch before every pass, with a new number.",
                stacklevel=3,
            )
        self._position = start
        return start

    def _batches(self, epoch: int) -> Iterator[list[int]]:
        rng = np.random.default_rng([self.seed, epoch])
        classes = _Deck(list(range(len(self.members))), rng)
        samples = [_Deck(indices, rng) for indices in self.members]
        first = self.rank * self.classes_per_batch
        for _ in range(self.num_batches):
            # every process deals for all of them, so that they stay in step
            dealt = [
                samples[c].deal(self.samples_per_class)
                for c in classes.deal(self.classes_per_batch * self.num_replicas)
            ]
            yield [index for hand in dealt[first : first + self.classes_per_batch] for index in hand]
