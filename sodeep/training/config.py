"""`TrainConfig`: everything a training run of a sorter depends on, as plain values."""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from sodeep._core.checks import (
    check_at_least,
    check_bool,
    check_choice,
    check_positive,
    describe,
    is_number,
    plain,
    user_path,
    with_remedy,
)
from sodeep.generators import DEFAULT, SODEEP2019, USER, check_mixture
from sodeep.sorters import SORTERS, check_options
from sodeep.training.objective import GRADIENT_TAU, VALUE_LOSSES

if TYPE_CHECKING:
    from typing_extensions import Self

LENGTHS = (2, 1000)
"""Default shortest and longest list of a sorter for any length."""

PUBLISHED_LENGTH = 100
"""Length of list of the networks of 2019: the default of a fixed-length sorter."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything a training run depends on. What is left None is filled in by `resolve`.

    On one machine the same config gives the same sorter, bit for bit. With another processor, number of threads or
    version of torch sums are rounded otherwise: weights differ, and the sorter is as good.

    Args:
        sorter: name in `SORTERS`.
        seq_len: the one length to train for. None: a sorter for any length is trained on all of `lengths`, a
            fixed-length one on 100.
        lengths: shortest and longest list of a sorter for any length, drawn log-uniformly, one length a step. The
            file also records up to where longer ones were measured to be as good: see `Sorter.known_lengths`. Must not
            be given beside `seq_len`, or for a fixed-length sorter.
        sorter_config: further arguments of the sorter's constructor.
        steps: optimisation steps. None: the sorter's recipe, as for `batch_size`, `lr`, `gradient_weight` and
            `gradient_step`.
        max_time: seconds that `train_sorter` may take, validations included, if `steps` are not done before; the parts
            of a resumed run are counted together. The last step and the last validation are begun early enough to end
            by then, give or take a step. The learning rate falls with the clock, so that a run ended by it is not
            reproducible. None: no limit.
        batch_size: lists a step. For a sorter for any length, lists of 100: fewer if longer, more if shorter.
        lr: peak learning rate of Adam.
        warmup: fraction of the run in which the learning rate rises.
        schedule: how it falls after that: "cosine", to zero along half a cosine; "step", halved after every 0.175 of
            the run, the 70 of 400 epochs of SoDeep.
        clip: largest gradient norm; None for no limit.
        ema: decay of the running average of the weights that is validated and kept; 0 keeps the weights themselves.
        value_loss: "l1", "l2" or "huber", on ranks / n.
        top_weighted: whether items count by 1 / rank, in values and gradient, instead of equally: for losses that look
            at the top of a list.
        gradient_weight: weight of the gradient term beside the value loss; 0 trains on values alone, and is the only
            choice for a sorter whose gradient is known in closed form.
        gradient_tau: width of the smooth rank whose gradient is the target, in the spread of the list (the mean
            distance from the median; standard deviations of a normal list). Lists shorter than 100 get n / 100 of it,
            and the term counts for less.
        gradient_fraction: fraction of each step's lists that the gradient term is taken on; it costs as much as three
            times the value loss.
        gradient_step: take the gradient term from differences, over that step to either side in the spread of the list;
            0 takes it by double backward. None: the sorter's recipe, 0.05 for recurrent networks, which have no fast
            kernels for that.
        distributions: weight of each distribution of `sodeep.DISTRIBUTIONS`, and of "user" for `scores_file`.
        scores_file: .npy or .csv of your own score lists, as `sodeep.generators.read_scores_file` reads them. They make
            up half of the lists unless `distributions` gives "user" another weight.
        seed: of the initial weights and of every draw.
        validate_every: steps between validations; each also saves the state of the run. None: 20 in a run.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ...
        precision: "float32", or "tf32" for matrix products with a 10-bit mantissa on a GPU. Half precision is not
            offered: the ranks of a list of 300 do not fit bfloat16.
        compile: run the network through torch.compile; needs gradient_weight=0, since a compiled network has no
            second derivative.

    Example:
        >>> config = TrainConfig(sorter="mlp", seq_len=32, steps=1000)
        >>> config.resolve().lr
        0.001
        >>> TrainConfig(sorter="quicksort")
        Traceback (most recent call last):
        ...
        ValueError: `sorter` must be one of cnn, lstm, ..., got 'quicksort'.
    """

    sorter: str = "set"
    seq_len: int | None = None
    lengths: tuple[int, int] = LENGTHS
    sorter_config: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None
    max_time: float | None = None
    batch_size: int | None = None
    lr: float | None = None
    warmup: float = 0.05
    schedule: str = "cosine"
    clip: float | None = 1.0
    ema: float = 0.0
    value_loss: str = "l1"
    top_weighted: bool = False
    gradient_weight: float | None = None
    gradient_tau: float = GRADIENT_TAU
    gradient_fraction: float = 0.25
    gradient_step: float | None = None
    distributions: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT))
    scores_file: str | os.PathLike[str] | None = None
    seed: int = 0
    validate_every: int | None = None
    device: str | torch.device = "auto"
    precision: str = "float32"
    compile: bool = False

    def __post_init__(self) -> None:
        self.resolve()  # errors at once, not when training starts

    @classmethod
    def sodeep2019(cls, sorter: str = "lstm-large", **changes: Any) -> Self:
        """The training run of the code released with SoDeep, 2019, for one of its networks.

        Random initial weights, scores as they are, 562,400 batches of 256 lists of 100 from the mixture of 2019, values
        alone, and Adam at 1e-3, halved after every 70 of 400 epochs, without a limit to the gradient.

        Args:
            sorter: any of `SORTERS` but ``set``; the default is the network of the paper.
            changes: other arguments of `TrainConfig`. With fewer `steps`, or `max_time`, the learning rate falls in the
                same parts of the run.

        Raises:
            ValueError: a sorter that is not of 2019, or changes out of range.

        References:
            Engilberge, Chevallier, Pérez, Cord. SoDeep: A Sorting Deep Net to Learn Ranking Loss Surrogates. CVPR 2019.

        Example:
            >>> config = TrainConfig.sodeep2019("lstm", max_time=600)
            >>> config.schedule, config.sorter_config
            ('step', {'normalize': False, 'init': 'random'})
        """
        check_choice(sorter, [name for name in SORTERS if name != "set"], "sorter")
        options: dict[str, Any] = {"normalize": False}
        if "init" in inspect.signature(SORTERS[sorter]).parameters:
            options["init"] = "random"
        recipe: dict[str, Any] = {
            "seq_len": PUBLISHED_LENGTH,
            "steps": 562_400,
            "batch_size": 256,
            "lr": 1e-3,
            "warmup": 0.0,
            "schedule": "step",
            "clip": None,
            "gradient_weight": 0.0,
            "distributions": dict(SODEEP2019),
        }
        options |= changes.pop("sorter_config", {})
        return cls(sorter=sorter, sorter_config=options, **{**recipe, **changes})

    def resolve(self) -> ResolvedConfig:
        """The config of the run: plain values, with the defaults of the sorter in place of None."""
        check_choice(self.sorter, SORTERS, "sorter")
        network = SORTERS[self.sorter]
        options = plain_json(self.sorter_config, "sorter_config")
        for name in {"name", "seq_len"} & options.keys():
            raise ValueError(
                f"`sorter_config` must not hold {name!r}, got {options[name]!r}. "
                f"Give it as `{'sorter' if name == 'name' else name}`."
            )
        check_options(self.sorter, options)
        values: dict[str, Any] = {n: plain(value) if is_number(value) else value for n, value in vars(self).items()}
        defaults = asdict(network.recipe({**options, "seq_len": values["seq_len"]}))
        if defaults["gradient_weight"] == 0 and values["gradient_weight"]:
            raise ValueError(
                f"`gradient_weight` must be 0 for this {self.sorter} sorter, whose gradient is not trained, got "
                f"{describe(values['gradient_weight'])}. Leave it out."
            )
        values |= {name: value for name, value in defaults.items() if values[name] is None}
        values |= {"sorter_config": options, "device": str(self.device)}
        if values["validate_every"] is None:
            values["validate_every"] = max(1, check_at_least(values["steps"], 1, "steps") // 20)
        values["lengths"] = tuple(plain(n) if is_number(n) else n for n in self.lengths)  # JSON has a list
        if self.seq_len is None and not network.any_length(options):
            if values["lengths"] != LENGTHS:
                raise ValueError(
                    f"`lengths` must not be given for the {self.sorter} sorter, which has a fixed length of list, "
                    f"got {values['lengths']}. Give that as `seq_len`, or train a sorter for any length such as 'set'."
                )
            values["seq_len"] = PUBLISHED_LENGTH
        values["distributions"] = plain_json(self.distributions, "distributions")
        if self.scores_file is not None:
            values["scores_file"] = str(user_path(self.scores_file))
            values["distributions"].setdefault(USER, sum(self.distributions.values()))
        return ResolvedConfig(**values)

    def to_dict(self) -> dict[str, Any]:
        """The resolved values, ready for JSON; ``TrainConfig(**d)`` is the same run."""
        return asdict(self.resolve())


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(TrainConfig):
    """A `TrainConfig` that `TrainConfig.resolve` has filled in: None means none, not a default."""

    steps: int
    batch_size: int
    lr: float
    gradient_weight: float
    gradient_step: float
    scores_file: str | None
    validate_every: int
    device: str

    def __post_init__(self) -> None:
        try:
            device_of(self.device)
        except RuntimeError:
            raise ValueError(f"`device` must be auto, cpu, cuda, cuda:1, ..., got {self.device!r}.") from None
        for name in ("steps", "batch_size", "validate_every"):
            check_at_least(getattr(self, name), 1, name)
        if self.seq_len is not None:
            SORTERS[self.sorter].check_length(check_at_least(self.seq_len, 2, "seq_len"))
        if len(self.lengths) != 2:
            raise ValueError(f"`lengths` must be (shortest, longest), got {self.lengths}.")
        check_at_least(self.lengths[0], 2, "lengths[0]")
        check_at_least(self.lengths[1], self.lengths[0], "lengths[1]")
        if self.seq_len is not None and self.lengths != LENGTHS:
            raise ValueError(
                f"`lengths` must not be given beside `seq_len`, the one length to train for, got {self.lengths} and "
                f"{self.seq_len}. Leave one of them out."
            )
        for name in ("lr", "clip", "gradient_tau", "max_time"):
            if getattr(self, name) is not None or name not in ("clip", "max_time"):
                check_positive(getattr(self, name), name)
        if not 0 < self.gradient_fraction <= 1:
            raise ValueError(f"`gradient_fraction` must be above 0 and at most 1, got {self.gradient_fraction!r}.")
        for name, top in (("warmup", 1.0), ("ema", 1.0), ("gradient_weight", math.inf), ("gradient_step", 1.0)):
            if not 0 <= getattr(self, name) < top:
                raise ValueError(f"`{name}` must be at least 0 and below {top:g}, got {getattr(self, name)!r}.")
        check_at_least(self.seed, 0, "seed")
        if self.seed >= 2**63:
            raise ValueError(f"`seed` must be below 2**63, got {self.seed}.")
        check_choice(self.value_loss, VALUE_LOSSES, "value_loss")
        check_choice(self.schedule, ("cosine", "step"), "schedule")
        check_bool(self.top_weighted, "top_weighted")
        check_choice(self.precision, ("float32", "tf32"), "precision")
        check_mixture(self.distributions, self.scores_file is not None)
        if self.compile and self.gradient_weight:
            raise with_remedy(
                ValueError,
                f"`compile` must be False while gradient_weight is not 0 ({self.gradient_weight}), got True: a "
                "compiled network has no second derivative.",
                "Set {gradient_weight}, or leave {compile} out.",
                gradient_weight=0,
                compile=None,
            )


def plain_json(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`values` as JSON gives them back, so that a config equals the one a file holds."""
    try:
        read_back: dict[str, Any] = json.loads(json.dumps(dict(values), default=plain))
    except (TypeError, ValueError) as error:
        raise TypeError(f"`{name}` must hold plain JSON values, got {describe(values)}: {error}.") from None
    return read_back


def device_of(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU if there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
