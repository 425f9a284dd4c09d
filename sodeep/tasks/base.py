"""The base class of the tasks: data, an encoder, a training step for any loss, and exact evaluation."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sodeep._core.by_name import name_of
from sodeep._core.checks import check_at_least, check_choice, describe, is_number
from sodeep._core.search import Range, Ranges, declared_range
from sodeep.datasets.layouts import Layout, read_data
from sodeep.datasets.own_arrays import ARRAYS, NO_ATTRIBUTES, as_attribute, own_arrays, split_of_arrays
from sodeep.datasets.splits import indices_of, with_train_fraction
from sodeep.datasets.types import Array, Data, check_numbers, checksum

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

    A task of your own says `metrics`, `model`, `forward` and `evaluate`; and `accepts`, if its losses are called in
    another way than ``loss(scores, target)``. All else has a default.

    Args:
        data: arrays by name, as many rows in each: numpy arrays, tensors or lists. They become attributes of the task:
            numbers tensors (floating point ones float32), texts numpy arrays. "split" (N,) of "train", "val" and
            "test", and "group" (N,), ids of what belongs in one split, are optional; "name" is that of the data in
            reports. Or a dataclass with a field `name`, for a class that defines `split_of`.
        seed: of all that is drawn: the split, where the data have none, and the batches.
        batch_size: items per step.
        train_fraction: how much of the training split is trained on.
        metric: what settings are chosen by; None: `primary_metric`.

    Raises:
        TypeError: data of another kind, or a class without `model`, `forward` or `evaluate`.
        ValueError: arrays of unequal length, NaN or infinite values (but in the arrays that `may_be_nan` names), a
            split without items, or a class that declares no metric.

    Example:
        >>> class Doubled(Task):
        ...     metrics = {"MAE": False, "Spearman": True}
        ...
        ...     def model(self):
        ...         return nn.Linear(1, 1)
        ...
        ...     def forward(self, model, batch):
        ...         scores = model(self.x[batch]).squeeze(1)
        ...         return {"target": lambda loss: loss(scores, self.y[batch])}
        ...
        ...     def evaluate(self, model, split):
        ...         where = self.index[split]
        ...         scores, y = model(self.x[where]).squeeze(1), self.y[where]
        ...         return {"MAE": (scores - y).abs().mean(), "Spearman": sodeep.spearman_corr(scores, y)}
        >>> import sodeep
        >>> x = np.random.default_rng(0).random((50, 1))
        >>> task = Doubled({"x": x, "y": 2 * x[:, 0]})
        >>> task.primary_metric, task.data_name, [len(items) for items in task.index.values()]
        ('Spearman', '50 items', [30, 10, 10])
    """

    name: ClassVar[str]
    """Of a task of this package; one of your own is called ``module:class``, and need not say it."""
    metrics: ClassVar[dict[str, bool]] = {}
    """Every metric `evaluate` may give, most important first -> whether higher is better."""
    primary_metric: ClassVar[str] = ""
    """The metric that settings are chosen by, on the validation split, unless the user says another; higher is
    better. Unless the class says it, the first such of `metrics`."""
    baseline: ClassVar[str] = ""
    """The loss that others are compared with, unless the user says another. Of a task of your own it is the first that
    is compared."""
    losses: ClassVar[tuple[str, ...]] = ()
    """The losses compared by default, the baseline among them; those on a sorter only where it is shipped."""
    accepts: ClassVar[tuple[str, ...]] = ("target",)
    """Call signatures of the losses that fit, of `sodeep.comparison.losses_by_name.CALL_SIGNATURES`; the first is that
    of a loss given as ``module:attribute``."""
    options: ClassVar[tuple[str, ...]] = ()
    """Arguments that `load` takes beyond those of every task; None is the default of each."""
    reading: ClassVar[tuple[str, ...]] = ()
    """Those of `options` that `read` takes; the others are for the task itself."""
    counted: ClassVar[str] = ""
    """What `size_of` counts, if not items; for tasks of this package."""
    may_lack_training: ClassVar[bool] = False
    """Whether data may be of the test split alone, to evaluate encoders that are trained elsewhere, or not at all."""
    may_be_nan: ClassVar[Collection[str]] = ()
    """Names of arrays that may hold NaN and infinite values, which the class allows for: unknown targets, say."""
    layouts: ClassVar[Mapping[str, Layout]] = {"arrays": ARRAYS}
    """What `--data` may be, the first that fits: name -> layout. Empty: the task draws its own data."""
    tensors: ClassVar[tuple[str, ...]] = ()
    """Attributes that steps and evaluations read, which move to the device; they may be None. Empty: all tensors."""
    max_steps: ClassVar[int] = 5000
    """Steps after which a training ends by default, if the validation metric still rises."""
    validate_every: ClassVar[int] = 50
    """Steps between two validations."""
    ranges: ClassVar[Ranges] = {"lr": Range(3e-4, 3e-2, 3e-3)}
    """Settings of the optimiser (AdamW) that are searched for every loss: "lr", and "weight_decay" where it matters. A
    class may write a range as a pair of numbers."""
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
    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        declared = vars(cls)
        if "name" not in declared:
            cls.name = name_of(cls)
        if "ranges" in declared:
            cls.ranges = {setting: _range_of(cls, setting, values) for setting, values in cls.ranges.items()}
        if "primary_metric" not in declared and cls.primary_metric not in cls.metrics:
            cls.primary_metric = next((name for name, higher in cls.metrics.items() if higher), "")

    def __new__(cls: type[AnyTask], *arguments: Any, **options: Any) -> AnyTask:
        """Keep what the task is made with: a comparison makes it anew for each seed."""
        task: AnyTask = super().__new__(cls)
        task._made_with = arguments, options
        return task

    def __init__(
        self,
        data: Data | Mapping[str, Any],
        seed: int = 0,
        *,
        batch_size: int = BATCH_SIZE,
        train_fraction: float = 1.0,
        metric: str | None = None,
    ) -> None:
        check_declared(type(self))
        check_at_least(batch_size, 4, "batch_size")
        rising = [name for name, higher in self.metrics.items() if higher]
        self.metric = check_choice(self.primary_metric if metric is None else metric, rising, "metric")
        if not isinstance(train_fraction, (int, float)) or not 0 < train_fraction <= 1:
            raise ValueError(f"`train_fraction` must be a number above 0, up to 1, got {describe(train_fraction)}.")
        if isinstance(data, Mapping):
            data = own_arrays(data, {*dir(self), "batch_size", "checksum", "data_name", "index", "metric", "seed"})
            for name, array in data.items():
                if name not in NO_ATTRIBUTES:
                    setattr(self, name, as_attribute(array))
        elif not (is_dataclass(data) and "name" in {part.name for part in fields(data)}):
            raise TypeError(f"`data` must be arrays by name, or a dataclass with a name, got {describe(data)}.")
        check_numbers(data, self.may_be_nan if ":" in self.name else None)
        data_name: str = data["name"] if isinstance(data, dict) else data.name
        self.data_name = (
            data_name if train_fraction == 1 else f"{data_name}, {train_fraction:.4g} of the training split"
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
            try:
                return cls.generated(seed)
            except NotImplementedError:
                raise ValueError(f"`data` must be given for the {cls.name} task, which has none of its own.") from None
        if not cls.layouts:
            raise ValueError(
                f"`data` must not be given for the {cls.name} task, which draws its own, got {str(data)!r}."
            )
        return read_data(data, cls.layouts, cls.name)

    @staticmethod
    def generated(seed: int) -> Any:
        """A small set that is drawn with the seed, or comes with a package; by default there is none."""
        raise NotImplementedError

    @classmethod
    def split_of(cls, data: Any, seed: int) -> Array:
        """The split of every item, "train", "val" or "test"; what the data do not give is drawn with the seed."""
        if not isinstance(data, Mapping):
            raise TypeError(f"`data` must be arrays by name, unless {cls.name} defines split_of, got {describe(data)}.")
        return split_of_arrays(data, seed)

    @classmethod
    def groups_of(cls, data: Any) -> Array | None:
        """An id for each item, (N,), where items of one id belong together in a split; None: each is alone."""
        return np.asarray(data["group"]) if isinstance(data, Mapping) and "group" in data else None

    def size_of(self, split: str) -> int:
        """How many draws a split is made of, for statistics: its items."""
        return len(self.index[split])

    def to(self, device: torch.device) -> None:
        """Move there what steps and evaluations read."""
        for name in self.tensors or [name for name, value in vars(self).items() if isinstance(value, Tensor)]:
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
        """Encode a batch; for each call signature in `accepts`, a function that applies a loss to it.

        The batch is what `batches` gives, by default the numbers of items (B,).
        """

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str) -> TaskMetrics | Mapping[str, Any]:
        """Exact metrics on a split, by name; `primary_metric` among them.

        `measure` calls it, with the model in evaluation mode and without gradients. One with a third parameter
        `details` gives `TaskMetrics`, and for True the arrays for figures.
        """

    def measure(self, model: nn.Module, split: str, details: bool = False) -> TaskMetrics:
        """What `evaluate` gives, with the model in evaluation mode, after a check that it is what `metrics` declares.

        Raises:
            TypeError: something else than numbers by name.
            ValueError: a metric that is not declared, or none to choose settings by.
        """
        training = model.training
        model.eval()
        evaluate: Callable[..., Any] = self.evaluate
        options = {"details": details} if "details" in inspect.signature(evaluate).parameters else {}
        try:
            with torch.no_grad():
                result = evaluate(model, split, **options)
        finally:
            model.train(training)
        if isinstance(result, TaskMetrics):
            return result if ":" not in self.name else TaskMetrics(self._checked(result.metrics), result.details)
        return TaskMetrics(self._checked(result))

    def _checked(self, values: Any) -> dict[str, float]:
        """The metrics of a task of the user's own: first `metric`, then in the order of `metrics`."""
        if not isinstance(values, Mapping):
            raise TypeError(f"`evaluate` of {self.name} must give a dict of metrics, got {describe(values)}.")
        unknown = [name for name in values if name not in self.metrics]
        if unknown or self.metric not in values:
            raise ValueError(
                f"`evaluate` of {self.name} must give {self.metric} and no metric but {', '.join(self.metrics)}, got "
                f"{', '.join(map(str, values)) or 'none'}. Add what is missing to it, or to metrics."
            )
        numbers = {name: x.item() if isinstance(x, Tensor) and x.numel() == 1 else x for name, x in values.items()}
        for name, value in numbers.items():
            if not is_number(value):
                raise TypeError(f"`evaluate` of {self.name} must give numbers, got {describe(value)} for {name}.")
            if math.isinf(value):
                raise ValueError(
                    f"`evaluate` of {self.name} must give finite numbers, or NaN where a metric is undefined, got "
                    f"{value} for {name}."
                )
        return {name: float(numbers[name]) for name in dict.fromkeys([self.metric, *self.metrics]) if name in numbers}


def _range_of(task: type[Task], setting: str, values: Any) -> Any:
    try:
        if setting not in ("lr", "weight_decay"):
            raise ValueError("Settings of the optimiser are lr and weight_decay; losses declare their own.")
        return declared_range(values)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`ranges` of {task.name} must be lr and weight_decay as name: (low, high), got {describe(values)} for "
            f"{setting}. {error}"
        ) from None


def check_declared(task: type[Task]) -> None:
    """Raise unless a class says what every task must."""
    metrics: Any = task.metrics
    if not isinstance(metrics, Mapping) or not any(value is True for value in metrics.values()):
        raise ValueError(
            f"`metrics` of {task.name} must name at least one metric of which higher is better, as in "
            f'{{"Spearman": True, "MAE": False}}, got {describe(metrics)}.'
        )
    if metrics.get(task.primary_metric) is not True:
        raise ValueError(
            f"`primary_metric` of {task.name} must be one of metrics of which higher is better, got "
            f"{task.primary_metric!r}."
        )
    if missing := sorted(getattr(task, "__abstractmethods__", ())):
        raise TypeError(f"{task.name} must define {', '.join(missing)} to be a task.")
