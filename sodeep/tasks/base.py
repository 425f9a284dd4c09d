"""The base class of the tasks: data, an encoder, a training step for any loss, and exact evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sodeep._core.checks import check_at_least, check_choice, describe
from sodeep._core.search import Ranges
from sodeep.datasets.layouts import Layout, read_data
from sodeep.datasets.splits import indices_of, with_train_fraction
from sodeep.datasets.types import Array, Data, checksum

BATCH_SIZE = 100
"""Items per step, and the length of list that the shipped fixed-length sorters take."""

Loss = Callable[..., Any]
"""A loss as a task calls it, with the arguments of its call signature."""


@dataclass(frozen=True)
class TaskMetrics:
    """The metrics of an evaluation, and arrays for figures.

    Attributes:
        metrics: name -> value.
        details: small arrays for figures, saved as the ``.npz`` of a run; each task's docstring lists its own.
    """

    metrics: dict[str, float]
    details: dict[str, Array] = field(default_factory=dict)


AnyTask = TypeVar("AnyTask", bound="Task")


class Task(ABC):
    """Data, an encoder and its evaluation; the same for every loss.

    A seed fixes the split (where the data have none), the initialisation and the batches, so that trainings with one
    seed differ in the loss alone: their differences are paired.
    """

    name: ClassVar[str]
    metrics: ClassVar[dict[str, bool]]
    """Every metric `evaluate` may give, most important first -> whether higher is better."""
    primary_metric: ClassVar[str]
    """The metric that settings are chosen by, on the validation split, unless the user says another; higher is
    better."""
    baseline: ClassVar[str]
    """The loss that others are compared with, unless the user says another."""
    losses: ClassVar[tuple[str, ...]]
    """The losses compared by default, the baseline among them; those on a sorter only where it is shipped."""
    accepts: ClassVar[tuple[str, ...]]
    """Call signatures of the losses that fit, of `sodeep.comparison.losses_by_name.CALL_SIGNATURES`; the first is that
    of a loss given as ``module:attribute``."""
    options: ClassVar[tuple[str, ...]] = ()
    """Arguments that `load` takes beyond those of every task; None is the default of each."""
    reading: ClassVar[tuple[str, ...]] = ()
    """Those of `options` that `read` takes; the others are for the task itself."""
    counted: ClassVar[str] = ""
    """What `size_of` counts, if not items."""
    may_lack_training: ClassVar[bool] = False
    """Whether data may be of the test split alone, to evaluate encoders that are trained elsewhere, or not at all."""
    layouts: ClassVar[Mapping[str, Layout]] = {}
    """What `--data` may be, the first that fits: name -> layout. Empty: the task draws its own data."""
    tensors: ClassVar[tuple[str, ...]]
    """Attributes that steps and evaluations read, which move to the device; they may be None."""
    max_steps: ClassVar[int]
    """Steps after which a training ends by default, if the validation metric still rises."""
    validate_every: ClassVar[int]
    """Steps between two validations."""
    ranges: ClassVar[Ranges]
    """Settings of the optimiser (AdamW) that are searched for every loss: "lr", and "weight_decay" where it matters."""
    methods: ClassVar[Mapping[str, Ranges]] = {"untrained": {}}
    """Models without training steps -> the ranges of their settings (`fit`)."""

    epsilon: ClassVar[float] = 1e-8
    """Of AdamW, on gradients scaled to norm 1; entries far below it are not blown up."""

    metric: str
    """The one they are chosen by. `evaluate` gives it for every split."""
    data_name: str
    """The data in reports. It names the options that change them (a fraction of the training split, say), so that runs
    on different data are not mixed."""
    checksum: int
    """Of the data before they are split."""

    def __init__(
        self,
        data: Data,
        seed: int = 0,
        *,
        batch_size: int = BATCH_SIZE,
        train_fraction: float = 1.0,
        metric: str | None = None,
    ) -> None:
        check_at_least(batch_size, 4, "batch_size")
        rising = [name for name, higher in self.metrics.items() if higher]
        self.metric = check_choice(self.primary_metric if metric is None else metric, rising, "metric")
        if not isinstance(train_fraction, (int, float)) or not 0 < train_fraction <= 1:
            raise ValueError(f"`train_fraction` must be a number above 0, up to 1, got {describe(train_fraction)}.")
        self.data_name = (
            data.name if train_fraction == 1 else f"{data.name}, {train_fraction:.4g} of the training split"
        )
        self.checksum = checksum(data)
        split = with_train_fraction(self.split_of(data, seed), seed, train_fraction, self.groups_of(data))
        self.index = indices_of(split, self.may_lack_training)
        self.seed = seed
        self.batch_size = min(batch_size, len(self.index["train"]))

    @classmethod
    def load(cls: type[AnyTask], data: str | Path | None = None, seed: int = 0, **options: Any) -> AnyTask:
        """The task on the data at a path, or on a small set for None.

        Args:
            data: a file or folder in one of the `layouts`; None: those of `generated`.
            seed: of all that is drawn: the split, where the data have none, and the batches.
            **options: `batch_size`, `train_fraction` (the fraction of the training split that is trained on), `metric`
                (what settings are chosen by, one of `metrics` of which higher is better), and what `options` names.

        Raises:
            FileNotFoundError: `data` does not exist.
            ValueError: `data` has none of the `layouts`, or does not suffice for the task.
        """
        reading = {name: options.pop(name) for name in cls.reading if name in options}
        return cls(cls.read(data, seed, **reading), seed, **options)

    @classmethod
    def read(cls, data: str | Path | None, seed: int) -> Any:
        """The data at a path; for None, those of `generated`. Takes the options that `reading` names."""
        if data is None:
            return cls.generated(seed)
        if not cls.layouts:
            raise ValueError(
                f"`data` must not be given for the {cls.name} task, which draws its own, got {str(data)!r}."
            )
        return read_data(data, cls.layouts, cls.name)

    @staticmethod
    @abstractmethod
    def generated(seed: int) -> Data:
        """A small set that is drawn with the seed, or comes with a package."""

    @classmethod
    @abstractmethod
    def split_of(cls, data: Any, seed: int) -> Array:
        """The split of every item, "train", "val" or "test"; what the data do not give is drawn with the seed."""

    @classmethod
    def groups_of(cls, data: Any) -> Array | None:
        """An id for each item, (N,), where items of one id belong together in a split; None: each is alone."""
        return None

    def size_of(self, split: str) -> int:
        """How many draws a split is made of, for statistics: its items."""
        return len(self.index[split])

    def to(self, device: torch.device) -> None:
        """Move there what steps and evaluations read."""
        for name in self.tensors:
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.to(device))

    def lacks(self, needed: str) -> str | None:
        """What a loss with this call signature, or this method, needs and the data lack; None: nothing."""
        return None

    def batches(self, epoch: int) -> Iterator[Array]:
        """Training items of each batch of an epoch, a function of the seed and the epoch alone.

        Full batches of a shuffle; the items left over are not used in this epoch.
        """
        order = np.random.default_rng([self.seed, epoch]).permutation(self.index["train"].numpy())
        for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
            yield order[start : start + self.batch_size]

    @abstractmethod
    def model(self) -> nn.Module:
        """A new encoder. Draws its weights from torch's global generator."""

    def fit(self, method: str, **settings: Any) -> nn.Module:
        """A model without training steps, to compare with: "untrained", the encoder as it is initialised.

        Further `methods` are those of a subclass.
        """
        check_choice(method, self.methods, "method")
        return self.model()

    def fine_tuning(self, model: nn.Module) -> tuple[Task, nn.Module] | None:
        """One more training before the test: of a trained `model`, and of the last blocks of a pretrained network.

        The task on what these blocks are given, and the model on top of them; None: nothing is to be fine-tuned.
        """
        return None

    @abstractmethod
    def forward(self, model: nn.Module, batch: Array) -> dict[str, Callable[[Loss], Tensor]]:
        """Encode a batch; for each call signature in `accepts`, a function that applies a loss to it."""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> TaskMetrics:
        """Exact metrics on a split, and with `details` the arrays for figures."""
