"""Train a network to be the rank function: generators x sorter -> trained sorter.

The recipe is that of SoDeep (Engilberge et al., CVPR 2019): synthetic lists, the exact ranks as the target, L1 on the
normalised ranks. What is added is a gradient term. A net fitted to values alone has small errors and a noisy gradient,
and its gradient is what a loss uses; so its vector-Jacobian products are fitted too, to those of a smooth rank.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from sodeep._checks import (
    check_at_least,
    check_choice,
    check_computes,
    check_free,
    check_positive,
    describe,
    is_number,
    plain,
    user_path,
    with_remedy,
)
from sodeep._extras import is_missing, needed, remedy
from sodeep._files import sole_writer
from sodeep._progress import Progress
from sodeep._sealed import DamagedError, check_header, check_tensors, parse_header, seal
from sodeep.checkpoint import listed, misfits, save_sorter, sweep_temporaries, write_atomic
from sodeep.generators import DEFAULT, USER, check_mixture, draw, draw_length, read_scores_file
from sodeep.ranks import exact_rank
from sodeep.sorters import SORTERS, Sorter, build_sorter, double_backward, values_only

VALUE_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "l1": nn.functional.l1_loss,
    "l2": nn.functional.mse_loss,
    "huber": lambda a, b: nn.functional.smooth_l1_loss(a, b, beta=0.02),
}
"""Losses on normalised ranks; "huber" is L1 with a parabola below an error of 0.02."""

VALIDATION_SEED = 2019
"""The validation lists depend on the config's distributions and lengths alone, so that runs of any seed compare."""

LONGEST_MEASURED = 10_000
"""The longest list on which a sorter trained on shorter ones is measured."""

STATISTICS_BATCHES = 64
"""Batches over which the statistics of batch norms are taken for a validation."""

GRADIENT_TAU = 0.25
"""Width of the smooth rank whose gradient is the target, in the spread of the list."""

GAPS = 4.0
"""The least width of that rank is so much of the spread over n: a third more than the mean gap between neighbours of a
few normal scores."""

LENGTHS = (2, 1000)
"""Shortest and longest list of a length-free sorter unless told otherwise."""

_COUNTING: dict[str, Any] = {"steps": 1500, "batch_size": 16, "lr": 2e-5, "gradient_weight": 0.01}

RECIPES: dict[str, dict[str, Any]] = {
    "set": {"steps": 4000, "batch_size": 32, "lr": 2e-3, "gradient_weight": 0.01},
    "cnn": {"steps": 16000, "batch_size": 64, "lr": 5e-4, "gradient_weight": 0.004},
    "lstm": _COUNTING,  # a larger rate would break what it starts with
    "lstm-large": _COUNTING,
}
"""Defaults of `TrainConfig` for sorters that start as rank functions."""

RECIPE_2019: dict[str, Any] = {"steps": 20000, "batch_size": 256, "lr": 1e-3, "gradient_weight": 0.01}
"""The same for networks that start at random."""


def recipe(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Steps, batch_size, lr and gradient_weight for a sorter with this `Sorter.name` and `Sorter.config`."""
    return RECIPE_2019 if config.get("start") == "random" else RECIPES.get(name, RECIPE_2019)


@dataclass(frozen=True)
class TrainConfig:
    """Everything a training run depends on, as plain values.

    On one machine the same config gives the same sorter, bit for bit. With another processor, number of threads or
    version of torch sums are rounded otherwise: weights differ, and the sorter is as good.

    Args:
        sorter: name in `SORTERS`.
        seq_len: the one length to train for. None: a length-free sorter is trained on all of `lengths`, a length-tied
            one on 100.
        lengths: shortest and longest list of a length-free sorter, drawn log-uniformly, one length a step. The file
            also says up to where longer ones were measured to be as good: see `Sorter.known_lengths`. Not to be given
            beside `seq_len`, or for a length-tied sorter.
        sorter_config: further arguments of the sorter's constructor.
        steps: optimisation steps. None: the sorter's recipe, as for `batch_size`, `lr` and `gradient_weight`.
        max_time: seconds that `train_sorter` may take, validations included, if `steps` are not done before; the parts
            of a resumed run are counted together. The last step and the last validation are begun early enough to end
            by then, give or take a step. The learning rate falls with the clock, so that a run ended by it is not
            reproducible. None: no limit.
        batch_size: lists a step. Of a length-free sorter, lists of 100: longer ones come fewer, shorter ones more.
        lr: peak learning rate of Adam.
        warmup: share of the run in which the learning rate rises; then it falls to zero along a cosine.
        clip: largest gradient norm.
        ema: decay of the running average of the weights that is validated and kept; 0 keeps the weights themselves.
        value_loss: "l1", "l2" or "huber", on ranks / n.
        gradient_weight: weight of the gradient term beside the value loss; 0 trains on values alone.
        gradient_tau: width of the smooth rank whose gradient is the target, in the spread of the list (the mean
            distance from the median; standard deviations of a normal list). Where another network makes the gradient,
            lists of few items get a width of `GAPS` / n; where values and gradient are of one, lists shorter than 100
            get n / 100 of it, and the term counts for less.
        gradient_share: share of each step's lists that the gradient term is taken on; it costs as much as three
            times the value loss.
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
        >>> config.lr
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
    steps: int = None  # type: ignore[assignment]  # None stands for the recipe until __post_init__
    max_time: float | None = None
    batch_size: int = None  # type: ignore[assignment]
    lr: float = None  # type: ignore[assignment]
    warmup: float = 0.05
    clip: float = 1.0
    ema: float = 0.0
    value_loss: str = "l1"
    gradient_weight: float = None  # type: ignore[assignment]
    gradient_tau: float = GRADIENT_TAU
    gradient_share: float = 0.25
    distributions: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT))
    scores_file: str | None = None
    seed: int = 0
    validate_every: int = None  # type: ignore[assignment]
    device: str = "auto"
    precision: str = "float32"
    compile: bool = False

    def __post_init__(self) -> None:
        check_choice(self.sorter, SORTERS, "sorter")
        resolved: dict[str, Any] = {name: plain(value) for name, value in vars(self).items() if is_number(value)}
        resolved["sorter_config"] = options = _plain(self.sorter_config, "sorter_config")
        for name in {"name", "seq_len"} & options.keys():
            raise ValueError(
                f"`sorter_config` must not hold {name!r}, got {options[name]!r}. "
                f"Give it as `{'sorter' if name == 'name' else name}`."
            )
        outline = _outline(self.sorter, options, resolved.get("seq_len", self.seq_len))
        usual = recipe(self.sorter, outline.config)
        resolved |= {name: value for name, value in usual.items() if getattr(self, name) is None}
        steps = resolved.get("steps", self.steps)
        check_at_least(steps, 1, "steps")
        if vars(self)["validate_every"] is None:
            resolved["validate_every"] = max(1, steps // 20)
        resolved["device"] = str(self.device)
        resolved["lengths"] = tuple(plain(n) if is_number(n) else n for n in self.lengths)  # JSON has a list
        resolved["distributions"] = _plain(self.distributions, "distributions")
        if self.scores_file is not None:
            resolved["scores_file"] = str(user_path(self.scores_file))
            resolved["distributions"].setdefault(USER, sum(self.distributions.values()))
        for name, value in resolved.items():
            object.__setattr__(self, name, value)
        self._check()
        if self.seq_len is None and outline.seq_len is not None:
            if self.lengths != LENGTHS:
                raise ValueError(
                    f"`lengths` must not be given for the {self.sorter} sorter, which is tied to one length of list, "
                    f"got {self.lengths}. Give that as `seq_len`, or train a length-free sorter such as 'set'."
                )
            object.__setattr__(self, "seq_len", outline.seq_len)

    def _check(self) -> None:
        try:
            _device(self.device)
        except RuntimeError:
            raise ValueError(f"`device` must be auto, cpu, cuda, cuda:1, ..., got {self.device!r}.") from None
        for name in ("steps", "batch_size", "validate_every"):
            check_at_least(getattr(self, name), 1, name)
        if self.seq_len is not None:
            check_at_least(self.seq_len, 2, "seq_len")
        if len(self.lengths) != 2:
            raise ValueError(f"`lengths` must be (shortest, longest), got {self.lengths}.")
        check_at_least(self.lengths[0], 2, "lengths[0]")
        check_at_least(self.lengths[1], self.lengths[0], "lengths[1]")
        if self.seq_len is not None and self.lengths != LENGTHS:
            raise ValueError(
                f"`lengths` must not be given beside `seq_len`, the one length to train for, got {self.lengths} and "
                f"{self.seq_len}. Leave one of them out."
            )
        for name in ("lr", "clip", "gradient_tau"):
            check_positive(getattr(self, name), name)
        if self.max_time is not None:
            check_positive(self.max_time, "max_time")
        if not 0 < self.gradient_share <= 1:
            raise ValueError(f"`gradient_share` must be above 0 and at most 1, got {self.gradient_share!r}.")
        for name, top in (("warmup", 1.0), ("ema", 1.0), ("gradient_weight", math.inf)):
            if not 0 <= getattr(self, name) < top:
                raise ValueError(f"`{name}` must be at least 0 and below {top:g}, got {getattr(self, name)!r}.")
        check_at_least(self.seed, 0, "seed")
        if self.seed >= 2**63:
            raise ValueError(f"`seed` must be below 2**63, got {self.seed}.")
        check_choice(self.value_loss, VALUE_LOSSES, "value_loss")
        check_choice(self.precision, ("float32", "tf32"), "precision")
        check_mixture(self.distributions, self.scores_file is not None)
        if self.compile and self.gradient_weight:
            raise with_remedy(
                ValueError,
                f"`compile` must be False while gradient_weight is not 0 ({self.gradient_weight}), got True: a "
                "compiled network has no second derivative.",
                "Set gradient_weight=0, or leave compile out.",
                "Add --gradient-weight 0, or leave --compile out.",
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; ``TrainConfig(**d)`` makes the config again."""
        return asdict(self)


@dataclass
class TrainResult:
    """What `train_sorter` returns.

    Attributes:
        sorter: the trained sorter, frozen, on the CPU: the best weights by validation.
        config: what it was trained with.
        errors: mean |rank error| / n by distribution, on the validation lists; "validation" is their mixture.
        history: one dict a validation: step, train loss, validation objective, errors, learning rate, gradient norm,
            lists per second.
        steps: steps done.
        best_step: after which of them the weights are those of `sorter`. 0: no validation was better than that of the
            weights it started with, as may be after very few steps.
        seconds: time spent, over all parts of a resumed run.
        path: the file, if one was asked for.
    """

    sorter: Sorter
    config: TrainConfig
    errors: dict[str, float]
    history: list[dict[str, Any]]
    steps: int
    seconds: float
    path: Path | None = None
    best_step: int = 0

    @property
    def error(self) -> float:
        """Mean |rank error| / n on the validation mixture."""
        return self.errors["validation"]


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP came: the step was finished and the state saved.

    Attributes:
        signum: which signal.
        step: steps done.
        checkpoint: the file to resume from, or None when the run had no `out`.
    """

    def __init__(self, signum: int, step: int, checkpoint: Path | None) -> None:
        super().__init__(signum, step, checkpoint)  # the arguments, or it could not be pickled
        self.signum, self.step, self.checkpoint = signum, step, checkpoint

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signum).name} after step {self.step}"


def train_sorter(
    config: TrainConfig | None = None,
    out: str | os.PathLike[str] | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = False,
    overwrite: bool = False,
) -> TrainResult:
    """Train a sorter on synthetic lists, and save it.

    Args:
        config: what to train and how; None is ``TrainConfig()``, or the saved run's config with `resume`. With
            `resume` it must be that of the saved run, but for `max_time`, which is counted anew from here.
        out: the .safetensors file to write. While the run lasts, its state is beside it in ``<out>.run``.
        log_dir: where to write TensorBoard logs. What an earlier run logged there from the first step of this one on
            is replaced. A resumed run goes on with its log, in the folder that it had unless another is given; the log
            ends up as if it had never stopped.
        resume: go on with the unfinished run of `out`. On a CPU the weights end up exactly as if it had never
            stopped, if it goes on on the same machine with the same number of threads.
        progress: say on stderr how far the run is and about how long it still takes: one line on a terminal, a line
            now and then in a log file.
        overwrite: replace a finished sorter, or start an unfinished run again, instead of refusing to.

    Returns:
        `TrainResult`, with the frozen sorter and its errors.

    Raises:
        FileExistsError: `out` exists, or an unfinished run of it, and neither `overwrite` nor `resume` was given.
        FileNotFoundError: nothing to resume, or no such `scores_file`.
        ValueError: `config` differs from that of the run to resume; a bad scores file.
        OSError: the folder of `out` cannot be written to. All of these before training starts.
        FloatingPointError: the loss became NaN or infinite; the last good state is kept.
        OSError: the log cannot be written to; the state was saved before.
        TrainingInterrupted: Ctrl-C, SIGTERM or SIGHUP (a closed terminal), after the step was finished and the state
            saved.

    Example:
        >>> result = train_sorter(TrainConfig(steps=20, batch_size=4, lengths=(2, 20)))
        >>> ranks = result.sorter(torch.tensor([0.3, 2.0, -1.0]))
        >>> ranks.shape
        torch.Size([3])
    """
    path = None if out is None else user_path(out)
    with contextlib.ExitStack() as stack:
        saved = stack.enter_context(_claimed(path, resume, overwrite))
        if saved is not None:
            config = _same_config(config, saved[1])
        config = config or TrainConfig()
        check_computes(str(_device(config.device)))
        stack.enter_context(_matmul_precision(config.precision))
        run = _Run(config)
        if saved is not None:
            _restore(run, path, *saved)
        if log_dir is not None:
            run.log_dir = str(user_path(log_dir).absolute())
        signals = stack.enter_context(_StopSignals())
        log = stack.enter_context(_Log(run, progress))
        done = bool(run.history) and run.progress() >= 1  # of a run resumed after its last step
        while not done:
            run.advance()
            log.step()
            done = run.progress() >= 1
            stopped = bool(signals.received) and not done
            due = done or run.step % run.config.validate_every == 0
            if due or stopped:
                run.check_sound()  # or else the last good state would be replaced by one past saving
            if due:
                run.validate()
                done = run.progress() >= 1  # a validation takes its time too
            if path is not None and (due or stopped):
                run.save_state(state_path(path))
            if due:
                log.validation()  # after the state: it may fail, and a resumed run logs its last validation again
            if stopped:
                raise TrainingInterrupted(signals.received, run.step, None if path is None else state_path(path))
        result = run.result(path)
        if path is not None:
            save_sorter(path, result.sorter, training=result.sorter.trained)
        log.finish(result)
        if path is not None:
            state_path(path).unlink(missing_ok=True)
        return result


def state_path(out: Path) -> Path:
    """Where the state of an unfinished run is kept: beside the sorter it will become."""
    return out.with_name(out.name + ".run")


def saved_config(out: str | os.PathLike[str]) -> TrainConfig:
    """What the unfinished run of `out` was asked for.

    Raises:
        FileNotFoundError: there is none.
        ValueError: its state is damaged.
    """
    path = user_path(out)
    _check_free(path, resume=True, overwrite=False)
    return TrainConfig(**_read_state(state_path(path))[1]["config"])


def _outline(sorter: str, sorter_config: Mapping[str, Any], seq_len: Any) -> Sorter:
    """A sorter without weights: of `seq_len`, or if that is None for any length, or else of the published 100."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        try:
            return build_sorter(sorter, seq_len, **sorter_config)
        except ValueError:
            return build_sorter(sorter, 100 if seq_len is None else seq_len, **sorter_config)


def _device(name: str) -> torch.device:
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


_STATE_KEY = "sodeep_run"
_STATE_FIELDS: dict[str, type | tuple[type, ...]] = {
    "config": dict,
    "step": int,
    "seconds": (int, float),
    "best_objective": (int, float),
    "first": dict,
    "log_dir": (str, type(None)),
    "history": list,
    "checksum": str,
    "sha256": str,
}
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of Adam

# ---- one run -------------------------------------------------------------------------------------------------------


class _Run:
    """The state of a run, everything that a resumed one needs: weights, optimiser, generators, best so far."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.device = _device(config.device)
        self.sorter = self._fresh_sorter().to(self.device)
        self.user_scores = None if config.scores_file is None else read_scores_file(config.scores_file)
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.lengths = torch.Generator().manual_seed(config.seed)  # on the CPU: a length is a Python number
        self.network = torch.compile(self.sorter) if config.compile else self.sorter
        self.parameters = {name: p for name, p in self.sorter.named_parameters() if p.requires_grad}
        fused = True if self.device.type in ("cpu", "cuda") else None
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=config.lr, fused=fused)
        self.weights = dict(self.sorter.state_dict())  # live: parameters, and buffers such as batch statistics
        self.average = {name: t.clone() for name, t in self.weights.items()}
        self.best = {name: t.clone() for name, t in self.weights.items()}
        self.best_objective = math.inf
        self.history: list[dict[str, Any]] = []
        self.log_dir: str | None = None
        self.step = 0
        self.earlier_seconds = 0.0
        self.start = time.perf_counter()
        self.mark = (self.start, 0)  # time and step of the last validation
        self.train_loss = self.grad_norm = torch.zeros((), device=self.device)
        self.validation = self._draw_validation()
        self.validation_seconds = 0.0
        self.first = self.validated()

    def _fresh_sorter(self) -> Sorter:
        with torch.random.fork_rng(devices=[]):  # PyTorch draws initial weights from its global generator
            torch.manual_seed(self.config.seed)
            sorter = build_sorter(self.config.sorter, self.config.seq_len, **self.config.sorter_config)
        if self.config.gradient_weight == 0 and sorter.separate_gradient:
            sorter.slope.requires_grad_(False)  # nothing trains it
        return sorter

    @property
    def seconds(self) -> float:
        """Time spent, that of the parts before a resume included."""
        return self.earlier_seconds + time.perf_counter() - self.start

    def rate(self) -> float:
        """Lists per second since the last validation (lists of 100, for a length-free sorter)."""
        then, step = self.mark
        return (self.step - step) * self.config.batch_size / max(time.perf_counter() - then, 1e-9)

    def progress(self) -> float:
        """Share of the run that is done, by the steps or by the clock, whichever is further."""
        steps = self.step / self.config.steps
        if self.config.max_time is None:
            return steps
        time_to_train = self.config.max_time - self.validation_seconds  # one more comes at the end
        return max(steps, self.seconds / time_to_train if time_to_train > 0 else math.inf)

    def learning_rate(self) -> float:
        """Linear warm-up, then half a cosine down to zero."""
        done, warmup = min(self.progress(), 1.0), self.config.warmup
        if done < warmup:
            return self.config.lr * (done / warmup + 1 / self.config.steps)
        return self.config.lr * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup))) / 2

    def draw(self, generator: torch.Generator, lengths: torch.Generator) -> Tensor:
        """The lists of one step: about `batch_size` x 100 scores, all of one length."""
        batch, n = self.config.batch_size, self.config.seq_len
        if n is None:
            n = draw_length(*self.config.lengths, lengths)
            batch = max(1, round(batch * 100 / n))
        return draw(self.config.distributions, batch, n, generator, self.user_scores)

    def objective(self, scores: Tensor, generator: torch.Generator) -> Tensor:
        """Value loss + gradient_weight x gradient mismatch, on the normalised ranks of `scores` (B, n)."""
        config = self.config
        return sorter_loss(
            self.sorter,
            scores,
            generator,
            network=self.network,
            value_loss=config.value_loss,
            gradient_weight=config.gradient_weight,
            gradient_tau=config.gradient_tau,
            gradient_share=config.gradient_share,
        )

    def objectives(self, lists: Sequence[Tensor]) -> list[float]:
        """The objective of each of `lists`, drawn from the same random vectors every time."""
        generator = torch.Generator(self.device).manual_seed(VALIDATION_SEED)
        return [float(self.objective(x, generator).detach()) for x in lists]

    def advance(self) -> None:
        """One step."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        scores = self.draw(self.generator, self.lengths)
        self.sorter.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.objective(scores, self.generator)
        loss.backward()  # type: ignore[no-untyped-call]
        self.grad_norm = nn.utils.clip_grad_norm_(self.parameters.values(), self.config.clip)
        self.optimizer.step()
        self.step += 1
        self.train_loss = loss.detach()
        # the average of the first steps is short, so that it does not drag the initial weights along
        decay = min(self.config.ema, self.step / (self.step + 10))
        with torch.no_grad():
            for name, average in self.average.items():
                if average.is_floating_point():
                    average.lerp_(self.weights[name], 1 - decay)
                else:
                    average.copy_(self.weights[name])

    # -- validation ----------------------------------------------------------------------------------------------------

    def _draw_validation(self) -> dict[str, list[Tensor]]:
        """Fixed lists: the mixture at a few lengths, and each distribution at the middle one."""
        config = self.config
        generator = torch.Generator().manual_seed(VALIDATION_SEED)
        low, high = config.lengths
        lengths = [round(low * (high / low) ** share) for share in (0.25, 0.5, 0.75)]
        if config.seq_len is not None:
            lengths = [config.seq_len]
        middle = lengths[len(lengths) // 2]
        user = self.user_scores

        def lists(weights: Mapping[str, float], count: int, n: int) -> Tensor:
            with_user = user if weights.get(USER) else None
            return draw(weights, count, n, generator, with_user).to(self.device)

        drawn = {"validation": [lists(config.distributions, 256, n) for n in lengths]}
        for name, weight in config.distributions.items():
            if weight:
                drawn[name] = [lists({name: 1.0}, 64, middle)]
        return drawn

    def check_sound(self) -> None:
        """FloatingPointError once the loss or a weight is NaN or infinite."""
        if not bool(self.train_loss.isfinite()):
            fault = f"the loss of step {self.step} is {float(self.train_loss)}"
        elif not all(bool(t.isfinite().all()) for t in self.weights.values()):
            fault = f"a weight is NaN or infinite after step {self.step}"
        else:
            return
        raise FloatingPointError(
            f"{fault}: training diverged. Lower lr (now {self.config.lr:g}), or raise warmup; "
            "the state of the last validation is kept."
        )

    def validate(self) -> None:
        """Add a row to the history."""
        self.history.append(self.validated())

    def validated(self) -> dict[str, Any]:
        """Errors on the fixed lists; keeps the weights if their objective is the best so far."""
        start, rate = time.perf_counter(), self.rate()
        with self._weights(self.average if self.config.ema else self.weights):
            self._estimate_batch_statistics()
            self.sorter.eval()
            with torch.no_grad():
                errors = {
                    name: sum(float((self.sorter(x) - exact_rank(x)).abs().mean()) / x.shape[-1] for x in lists)
                    / len(lists)
                    for name, lists in self.validation.items()
                }
            objectives = self.objectives(self.validation["validation"])
            objective = sum(objectives) / len(objectives)
            if objective < self.best_objective:
                self.best_objective = objective
                self.best = {name: t.clone() for name, t in self.weights.items()}
        row = {
            "step": self.step,
            "loss": float(self.train_loss),
            "objective": objective,
            "lr": self.learning_rate(),
            "errors": errors,
            "gradient_norm": float(self.grad_norm),
            "lists_per_second": rate,
        }
        now = time.perf_counter()
        self.validation_seconds, self.mark = now - start, (now, self.step)
        return row

    def _estimate_batch_statistics(self) -> None:
        """Those of batch norms, over many batches: in training they are a running average of about the last ten."""
        generator = torch.Generator(self.device).manual_seed(VALIDATION_SEED)
        lengths = torch.Generator().manual_seed(VALIDATION_SEED)
        update_bn((self.draw(generator, lengths) for _ in range(STATISTICS_BATCHES)), self.sorter)

    @contextlib.contextmanager
    def _weights(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """The sorter with other weights, for a while."""
        own = {name: t.clone() for name, t in self.weights.items()}
        self._put(weights)
        try:
            yield
        finally:
            self._put(own)

    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, tensor in self.weights.items():
            tensor.copy_(weights[name])  # a state dict's tensors are detached: no graph sees this

    # -- state ---------------------------------------------------------------------------------------------------------

    def save_state(self, path: Path) -> None:
        """All of the run's state in one file, written beside and renamed: whole at any moment."""
        header = {
            "config": self.config.to_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "best_objective": self.best_objective,
            "first": self.first,
            "log_dir": self.log_dir,
            "history": self.history,
        }
        write_atomic(path, seal(self._tensors(self.optimizer.state), _STATE_KEY, header))

    def restore(self, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
        """Put back what `save_state` wrote.

        Raises:
            ValueError: it is of another network, another kind of device, or does not agree with itself.
        """
        moved = {name: p for name, p in self.parameters.items() if f"optimizer/step/{name}" in tensors}
        expected = self._tensors({p: {"step": torch.zeros(()), "exp_avg": p, "exp_avg_sq": p} for p in moved.values()})
        faults = misfits(expected, tensors) or [
            f"{name} has dtype {tensor.dtype} instead of {expected[name].dtype}"
            for name, tensor in tensors.items()
            if tensor.dtype != expected[name].dtype
        ]
        faults = faults or [
            f"{name} is not finite" for name, tensor in tensors.items() if not bool(tensor.isfinite().all())
        ]
        if faults:
            raise ValueError(listed(faults))
        self._check_history(header)
        self.generator.set_state(tensors["generator"])
        self.lengths.set_state(tensors["lengths"])
        tensors = {name: t.to(self.device) for name, t in tensors.items()}
        self._put(_under(tensors, "sorter/"))
        self.best, self.average = _under(tensors, "best/"), _under(tensors, "average/")
        for name, parameter in moved.items():
            self.optimizer.state[parameter] = {key: tensors[f"optimizer/{key}/{name}"] for key in _MOMENTS}
        self.step, self.best_objective = header["step"], header["best_objective"]
        self.earlier_seconds = header["seconds"]
        self.first, self.history = header["first"], list(header["history"])
        self.log_dir = header["log_dir"]
        self.mark = (time.perf_counter(), self.step)

    def _tensors(self, moments: Mapping[Tensor, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Those of the state. `moments` are the optimiser's, of each parameter that it has moved."""
        tensors = {"generator": self.generator.get_state(), "lengths": self.lengths.get_state()}
        for group, weights in (("sorter", self.weights), ("best", self.best), ("average", self.average)):
            tensors.update({f"{group}/{name}": tensor for name, tensor in weights.items()})
        for name, parameter in self.parameters.items():
            tensors.update({f"optimizer/{key}/{name}": value for key, value in moments.get(parameter, {}).items()})
        return {name: t.detach().cpu().contiguous() for name, t in tensors.items()}

    def _check_history(self, header: Mapping[str, Any]) -> None:
        rows, step = [header["first"], *header["history"]], header["step"]
        if not 1 <= step <= self.config.steps or not 0 <= header["seconds"] < math.inf:
            raise ValueError(f"step {step} of {self.config.steps} after {header['seconds']} seconds")
        for row in rows:
            numbers = [row[name] for name in ("loss", "objective", "lr", "gradient_norm", "lists_per_second")]
            numbers += row["errors"].values()
            if row["errors"].keys() != self.validation.keys() or not all(map(is_number, numbers)):
                raise ValueError(f"a validation with {describe(row)}")
        steps = [row["step"] for row in rows]
        best = min((row["objective"] for row in rows if not math.isnan(row["objective"])), default=math.inf)
        due = range(0, step + 1, self.config.validate_every)  # and whenever the time was up
        if steps != sorted({*steps}) or not {*due} <= {*steps} or steps[-1] > step or best != header["best_objective"]:
            raise ValueError("a history of other validations than those of its step")

    def result(self, path: Path | None) -> TrainResult:
        """The best weights as a frozen sorter."""
        sorter = self._fresh_sorter()
        sorter.load_state_dict({name: t.cpu() for name, t in self.best.items()})
        # the first weights are a candidate too: a few steps may not get back to how well a sorter starts
        best = min([self.first, *self.history], key=lambda row: float(row["objective"]))
        errors = dict(best["errors"])
        sorter.trained = self.card(errors)
        return TrainResult(
            sorter.freeze(), self.config, errors, self.history, self.step, self.seconds, path, best["step"]
        )

    def _known_lengths(self) -> list[int]:
        """The lengths trained on; and up to ten times the longest, if the best weights are as good there."""
        low, high = self.config.lengths
        if self.step < self.config.steps:  # the time is up
            return [low, high]
        far = max(high, min(10 * high, LONGEST_MEASURED))
        generator = torch.Generator().manual_seed(VALIDATION_SEED)
        with self._weights(self.best):
            self.sorter.eval()
            allowed = max(self.objectives(self.validation["validation"]))
            lists = draw(self.config.distributions, 4, far, generator, self.user_scores).to(self.device)
            with values_only(self.sorter), torch.no_grad():  # cheap, and enough to say no to most networks
                error = float((self.sorter(lists) - exact_rank(lists)).abs().mean()) / far
            good = error <= allowed and self.objectives([lists])[0] <= allowed
        return [low, far if good else high]

    def card(self, errors: Mapping[str, float]) -> dict[str, Any]:
        """What the file says of its training: nothing that another run of the same config would say otherwise."""
        n = self.config.seq_len
        drawn = torch.cat([x.flatten() for x in self.validation["validation"]])
        return {
            "steps": self.step,
            "seed": self.config.seed,
            "lengths": list(self.config.lengths) if n is None else [n, n],
            **({"known_lengths": self._known_lengths()} if n is None else {}),
            "scores": [float(drawn.min()), float(drawn.max())],
            "errors": dict(errors),
            "config": self.config.to_dict(),
        }


def sorter_loss(
    sorter: Sorter,
    scores: Tensor,
    generator: torch.Generator,
    *,
    gradient_weight: float,
    gradient_tau: float = GRADIENT_TAU,
    gradient_share: float = 1.0,
    value_loss: str = "l1",
    network: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """What a sorter is fitted by: value loss + gradient_weight x gradient mismatch, on normalised ranks.

    `scores` (B, n) have no gradient, `generator` draws the vectors of the gradient term, `network` is the sorter
    compiled, and the options are those of `TrainConfig`.
    """
    n = scores.shape[-1]
    ranker = network or sorter
    target = exact_rank(scores)
    with values_only(sorter):
        value = VALUE_LOSSES[value_loss](ranker(scores) / n, target / n)
    # Standardised, lists of a few items are much alike (of two, all the same): their gradients add up over a batch
    # where those of longer lists average out, and would rule the values of every length.
    value = min(1.0, n / 10) ** 2 * value
    if gradient_weight == 0:
        return value
    # by themselves: a second derivative costs
    count = math.ceil(gradient_share * len(scores))
    some = scores[:count].detach().requires_grad_()
    with double_backward():
        ranks = ranker(some)
    # the vectors are residuals, what a Spearman loss will send back: these ranks minus those of another order
    shuffled = torch.rand(some.shape, generator=generator, device=generator.device).argsort(-1).to(scores.device)
    residual = (target[:count] - target[:count].gather(-1, shuffled)) / n
    if sorter.separate_gradient:
        # narrower than the gaps between its items, a comparison is flat at all of them: the gradient would be noise
        share, tau = 1.0, max(gradient_tau, GAPS / n)
    else:
        # where this is also the gradient of the values, the width that suits 100 items would keep those of a short
        # list away from its ranks: sharper there, and softly
        share = min(1.0, n / 100)
        tau = share * gradient_tau
    return value + gradient_weight * share**2 * gradient_mismatch(ranks, some, residual, tau)


def gradient_mismatch(ranks: Tensor, scores: Tensor, vectors: Tensor, tau: float) -> Tensor:
    """Relative squared difference between the gradients of ranks and of a smooth rank, for given output vectors.

    For each list, with J the Jacobian of `ranks` in `scores`, J' that of the smooth rank and v the vector:
    |J'v - Jv|^2 / (|J'v|^2 + floor), with J and J' transposed. The floor, (0.03 n / spread)^2 |v|^2, is a hundredth of
    what |J'v|^2 usually is; it keeps lists in which the smooth rank has no slope (isolated items) from ruling the mean.

    Args:
        ranks: (B, n), of `scores`, with graph.
        scores: (B, n), requiring a gradient.
        vectors: (B, n).
        tau: width of the smooth rank, in the spread of each list (`mean_deviation`).

    Returns:
        A scalar with a graph to the parameters behind `ranks`, the mean over the lists that are not constant; 0 is
        agreement, about 1 is what a zero gradient gets.
    """
    (got,) = torch.autograd.grad(ranks, scores, vectors, create_graph=True)
    x = scores.detach()
    spread = mean_deviation(x)
    defined = spread.squeeze(-1) > 0
    # in units of the list's spread, where the entries are of the size of n whatever the scale of the scores
    spread = spread.where(spread > 0, 1.0)
    got, want = got * spread, smooth_rank_vjp(x / spread, vectors, tau)
    floor = (0.03 * x.shape[-1]) ** 2 * vectors.square().sum(-1)
    size = want.square().sum(-1) + floor
    mismatch = (got - want).square().sum(-1) / size.where(size > 0, 1.0)
    return mismatch.masked_fill(~defined, 0).sum() / defined.sum().clamp(min=1)


def smooth_rank_vjp(scores: Tensor, vectors: Tensor, tau: float) -> Tensor:
    """J^T v, (B, n), of the smooth rank r_i = 1/2 + sum over j of Phi((s_j - s_i) / tau), Phi the normal distribution.

    Without cusps, which a network made of smooth functions could not follow.
    """
    result = torch.empty_like(scores)
    size = max(1, 2**24 // max(1, scores.numel()))  # items at a time
    for part in (slice(start, start + size) for start in range(0, scores.shape[-1], size)):
        gaps = (scores.unsqueeze(-2) - scores[..., part].unsqueeze(-1)) / tau
        density = torch.exp(-gaps.square() / 2) / (math.sqrt(2 * math.pi) * tau)  # symmetric: of i and j
        result[..., part] = (density @ vectors.unsqueeze(-1)).squeeze(-1) - density.sum(-1) * vectors[..., part]
    return result


def mean_deviation(x: Tensor) -> Tensor:
    """Mean distance from the median, (..., 1), in units in which it is the standard deviation of a normal list.

    A few outliers, which rule a standard deviation, hardly move it.
    """
    return math.sqrt(math.pi / 2) * (x - x.median(-1, keepdim=True).values).abs().mean(-1, keepdim=True)


# ---- around a run --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _claimed(
    path: Path | None, resume: bool, overwrite: bool
) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]] | None]:
    """Keep `path` for one run, after checks, before any training, that it can be written and nothing finished is lost.

    Gives the saved state when resuming.
    """
    if path is None:
        if resume:
            raise ValueError("`out` must be given with resume=True, got None. It says which run to go on with.")
        yield None
        return
    _check_free(path, resume, overwrite)
    _check_writable(path)
    refusal = f"`out` {path} is being written by another run. Wait for it to end, or choose another name."
    with sole_writer(path.with_name(f".{path.name}.lock"), refusal):
        sweep_temporaries(path)
        sweep_temporaries(state_path(path))
        _check_free(path, resume, overwrite)  # another run may have ended meanwhile
        yield _read_state(state_path(path)) if resume else None


def _check_free(path: Path, resume: bool, overwrite: bool) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"`out` must be a file, got the folder {path}. For example {path / 'set.safetensors'}.")
    state = state_path(path)
    if resume:
        if not state.is_file():
            done = f" {path} is finished already." if path.exists() else ""
            raise FileNotFoundError(f"`resume` needs the state of an unfinished run at {state}: no such file.{done}")
    elif not overwrite:
        check_free(path, overwrite)
        if state.exists():
            raise with_remedy(
                FileExistsError,
                f"`out` {path} has an unfinished run, {state}.",
                "Go on with it: resume=True; or start again: overwrite=True.",
                "Go on with it: --resume; or start again: --overwrite.",
            )


def _check_writable(path: Path) -> None:
    probe = path.with_name(f".{path.name}.probe")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise type(error)(
            error.errno, f"`out` must be in a folder that can be written to: {error.strerror}", str(path)
        ) from None


def _plain(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`values` as JSON gives them back, so that a config equals the one a file holds."""
    try:
        read_back: dict[str, Any] = json.loads(json.dumps(dict(values), default=plain))
    except (TypeError, ValueError) as error:
        raise TypeError(f"`{name}` must hold plain JSON values, got {describe(values)}: {error}.") from None
    return read_back


def _read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    data = path.read_bytes()
    try:
        header = parse_header(data, len(data), _STATE_KEY)
        check_header(data, header, _STATE_FIELDS)
        tensors = check_tensors(data, header)
        config = TrainConfig(**header["config"])
        with torch.device("meta"):  # before memory is taken for it
            network = build_sorter(config.sorter, config.seq_len, **config.sorter_config)
        faults = misfits(network.state_dict(), _under(tensors, "sorter/"))
        if faults:
            raise DamagedError(f"its tensors are not those of its {config.sorter} sorter: {listed(faults)}")
        return tensors, header
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        reason = str(error).removesuffix(".")
        raise with_remedy(
            ValueError,
            f"{path} must be the state of an unfinished run, got another kind of file, a damaged one, or one of an "
            f"older sodeep ({reason}). Start again:",
            "overwrite=True.",
            "--overwrite.",
        ) from None


def _restore(run: _Run, path: Path | None, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    try:
        run.restore(tensors, header)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:  # of another kind of device
        raise with_remedy(
            ValueError,
            f"`resume` needs the state of the same run on the same kind of device (here {run.device.type}), "
            f"got one for {path} that does not fit ({error}). Resume it where it ran, or start again:",
            "overwrite=True.",
            "--overwrite.",
        ) from None


def _same_config(given: TrainConfig | None, saved: Mapping[str, Any]) -> TrainConfig:
    """The config of the saved run, after checking that the one given asks for nothing else but another time limit."""
    config = TrainConfig(**saved["config"])
    if given is None:
        return config
    limit = None if given.max_time is None else given.max_time + saved["seconds"]
    config = replace(config, max_time=given.max_time)
    if given != config:
        names = [f.name for f in fields(config) if getattr(given, f.name) != getattr(config, f.name)]
        told = ", ".join(f"{n} was {getattr(config, n)!r} and is {getattr(given, n)!r}" for n in names)
        raise with_remedy(
            ValueError,
            f"`config` must be that of the run to resume: {told}.",
            "Leave config out to take the saved one.",
            "Leave that option out to take the saved one.",
        )
    return replace(config, max_time=limit)


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


class _StopSignals:
    """Ctrl-C, SIGTERM and SIGHUP are noted instead of tearing a step; a second one does as usual.

    Only the main thread may handle signals; elsewhere they are left alone. So is a SIGHUP that is ignored, as under
    nohup.
    """

    def __init__(self) -> None:
        self.received = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> _StopSignals:
        if threading.current_thread() is threading.main_thread():
            stops = [signal.SIGINT, signal.SIGTERM]
            # Windows has no SIGHUP
            if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
                stops.append(signal.SIGHUP)
            for signum in stops:
                self.before[signum] = signal.signal(signum, self._note)
        return self

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.received = signum
        self._put_back()

    def _put_back(self) -> None:
        for signum, handler in self.before.items():
            signal.signal(signum, handler)
        self.before = {}

    def __exit__(self, *exception: object) -> None:
        self._put_back()


@contextlib.contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Log:
    """The line of progress and the TensorBoard log of a run; either may be absent."""

    def __init__(self, run: _Run, progress: bool) -> None:
        self.run = run
        self.writer: Any = None
        self.progress = Progress(f"training {run.config.sorter}", start=run.progress()) if progress else None
        if run.log_dir is not None:
            with needed("tensorboard", "`log_dir`"):
                from torch.utils.tensorboard import SummaryWriter

            _await_next_second(Path(run.log_dir))
            # a killed run may have logged what its state does not know of, or not have logged what it does know
            again = bool(run.history) and run.history[-1]["step"] == run.step
            self.writer = SummaryWriter(run.log_dir, purge_step=run.step if again or not run.step else run.step + 1)
            if again:
                self._write()

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.progress is not None:
            self.progress.close()
        if self.writer is not None:
            self.writer.close()

    def _status(self) -> str:
        run = self.run
        error = f", error {run.history[-1]['errors']['validation']:.4f}" if run.history else ""
        at_validation = bool(run.history) and run.history[-1]["step"] == run.step
        rate = run.history[-1]["lists_per_second"] if at_validation else run.rate()
        return f"step {run.step:,}, loss {float(run.train_loss):.4f}{error}, {rate:,.0f} lists/s"

    def step(self) -> None:
        """After every step."""
        if self.progress is not None:
            self.progress.update(self.run.progress(), self._status)

    def validation(self) -> None:
        """After every validation: one point of each curve, and the picture of the sorter's behaviour."""
        if self.writer is not None:
            self._write()

    def _write(self) -> None:
        """The last validation, for TensorBoard."""
        row = self.run.history[-1]
        step = row["step"]
        self.writer.add_scalar("loss/train", row["loss"], step)
        self.writer.add_scalar("loss/validation", row["objective"], step)
        self.writer.add_scalar("lr", row["lr"], step)
        self.writer.add_scalar("gradient_norm", row["gradient_norm"], step)
        self.writer.add_scalar("throughput/sequences_per_s", row["lists_per_second"], step)
        for name, error in row["errors"].items():
            self.writer.add_scalar(f"error/{name}", error, step)
        self._picture(step)
        self.writer.flush()

    def _picture(self, step: int) -> None:
        try:
            from sodeep.pictures import rank_picture
        except ModuleNotFoundError as error:
            if not is_missing(error, "matplotlib"):
                raise
            if len(self.run.history) == 1:
                self.writer.add_text("note", f"For the picture of the ranks: {remedy('matplotlib')}", step)
            return
        lists = {name: x[0][0].cpu() for name, x in self.run.validation.items() if name != "validation"}
        with torch.no_grad():
            ranks = {name: self.run.sorter(x.to(self.run.device)).cpu() for name, x in lists.items()}
        self.writer.add_figure("sorter", rank_picture(lists, ranks), step)

    def finish(self, result: TrainResult) -> None:
        """The config and the final errors, so that runs compare in TensorBoard's HPARAMS view."""
        if self.writer is not None:
            config = {
                name: value if isinstance(value, (bool, int, float, str)) else str(value)
                for name, value in result.config.to_dict().items()
            }
            metrics = {f"final/{name}": error for name, error in result.errors.items()}
            from torch.utils.tensorboard.summary import hparams

            # what add_hparams does in a file of its own, which a resumed run could not replace
            for summary in hparams(config, metrics):  # type: ignore[no-untyped-call]
                self.writer.file_writer.add_summary(summary, result.steps)
            for name, error in metrics.items():
                self.writer.add_scalar(name, error, result.steps)
            self.writer.flush()


def _await_next_second(log_dir: Path) -> None:
    """TensorBoard reads a folder's files in the order of the seconds in their names: not two of one second."""
    seconds = [file.name.split(".")[3] for file in log_dir.glob("events.out.tfevents.*")]
    if f"{int(time.time()):010d}" in seconds:
        time.sleep(1 - time.time() % 1)
