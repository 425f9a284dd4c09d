"""Batch sampling for metric learning: P classes with K samples each, so that every sample has positives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sodeep._core.checks import check_at_least, check_choice
from sodeep._core.epochs import EpochSampler, fingerprint
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


class BalancedBatchSampler(EpochSampler):
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
    workers draws some in advance. The state is the same on all processes; one of other labels or options is refused.

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
        self.classes_per_batch = classes_per_batch = check_at_least(classes_per_batch, 2, "classes_per_batch")
        self.samples_per_class = samples_per_class = check_at_least(samples_per_class, 2, "samples_per_class")
        check_choice(small_classes, ("repeat", "drop"), "small_classes")
        self.seed = check_at_least(seed, 0, "seed")
        check_at_least(num_replicas, 1, "num_replicas")
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
        self.num_batches = check_at_least(num_batches, 1, "num_batches")
        sizes, items = np.array([len(indices) for indices in self.members]), np.concatenate(self.members)
        settings = {
            "labels": f"{len(items)} samples of {len(sizes)} classes, {fingerprint(sizes, items)}",
            "classes_per_batch": classes_per_batch,
            "samples_per_class": samples_per_class,
            "num_batches": self.num_batches,
            "seed": self.seed,
        }
        super().__init__(settings, num_replicas, rank)

    def __len__(self) -> int:
        return self.num_batches

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
