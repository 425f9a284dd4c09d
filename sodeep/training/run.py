"""The state of a training run: it draws lists, takes steps, validates, keeps the best weights, saves and restores."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from sodeep._core.checks import describe, is_number
from sodeep._core.files import write_atomic
from sodeep._core.sealed import seal
from sodeep.checkpoint.format import listed, misfits
from sodeep.generators import USER, draw, draw_length, read_scores_file
from sodeep.ranks import exact_rank
from sodeep.sorters import build_sorter
from sodeep.sorters.base import Sorter
from sodeep.training.config import ResolvedConfig, device_of
from sodeep.training.objective import sorter_loss
from sodeep.training.processes import Processes

VALIDATION_SEED = 2019
"""The validation lists depend on the config's distributions and lengths alone, so that runs of any seed compare."""

LONGEST_MEASURED = 10_000
"""The longest list on which a sorter trained on shorter ones is measured."""

STATISTICS_BATCHES = 64
"""Batches over which the statistics of batch norms are taken for a validation."""

HALVED_AFTER = 70 / 400
"""The part of a run after which the learning rate of the "step" schedule halves: epochs of SoDeep."""

STATE_KEY = "sodeep_run"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of Adam


@dataclass
class TrainResult:
    """What `train_sorter` returns.

    Attributes:
        sorter: the trained sorter, frozen, on the CPU: the best weights by validation.
        config: what it was trained with.
        errors: mean ``|rank error| / n`` by distribution, on the validation lists; "validation" is their mixture.
        history: one dict a validation: step, train loss, validation objective, errors, learning rate, gradient norm,
            lists per second.
        steps: steps done.
        best_step: the step after which the weights were those of `sorter`. 0: no validation was better than that of
            the initial weights, as may be after very few steps.
        seconds: time spent, over all parts of a resumed run.
        path: the file, if there is one.
    """

    sorter: Sorter
    config: ResolvedConfig
    errors: dict[str, float]
    history: list[dict[str, Any]]
    steps: int
    seconds: float
    path: Path | None = None
    best_step: int = 0

    @property
    def error(self) -> float:
        """Mean ``|rank error| / n`` on the validation mixture."""
        return self.errors["validation"]


class Run:
    """The state of a run, everything that a resumed one needs: weights, optimiser, generators, best so far."""

    def __init__(self, config: ResolvedConfig, processes: Processes | None = None) -> None:
        self.config = config
        self.processes = Processes() if processes is None else processes
        self.device = self.processes.device(device_of(config.device))
        self.clock: float | None = None  # of the first process at the last step, where there are several
        self.sorter = self._fresh_sorter().to(self.device)
        self.user_scores = None if config.scores_file is None else read_scores_file(config.scores_file)
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.lengths = torch.Generator().manual_seed(config.seed)  # on the CPU: a length is a Python number
        self.values = torch.compile(self.sorter.values) if config.compile else self.sorter.values
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
        self.last_validation = (self.start, 0)  # its time and step
        self.train_loss = self.grad_norm = torch.zeros((), device=self.device)
        self.validation = self._draw_validation()
        self.validation_seconds = 0.0
        self.first = self._measured()

    def _fresh_sorter(self) -> Sorter:
        with torch.random.fork_rng(devices=[]):  # PyTorch draws initial weights from its global generator
            torch.manual_seed(self.config.seed)
            return build_sorter(self.config.sorter, self.config.seq_len, **self.config.sorter_config)

    @property
    def seconds(self) -> float:
        """Time spent, that of the parts before a resume included."""
        return self.earlier_seconds + time.perf_counter() - self.start

    def rate(self) -> float:
        """Lists per second since the last validation (lists of 100, for a sorter for any length)."""
        then, step = self.last_validation
        return (self.step - step) * self.config.batch_size / max(time.perf_counter() - then, 1e-9)

    def progress(self) -> float:
        """Fraction of the run that is done, by the steps or by the clock, whichever is further."""
        steps = self.step / self.config.steps
        if self.config.max_time is None:
            return steps
        return max(steps, self._clock() if self.clock is None else self.clock)

    def _clock(self) -> float:
        """Fraction of the time that is over."""
        if self.config.max_time is None:
            return 0.0
        time_to_train = self.config.max_time - self.validation_seconds  # which one more validation takes at the end
        return self.seconds / time_to_train if time_to_train > 0 else math.inf

    def agree(self, stop: bool) -> bool:
        """Whether any process is to stop. They agree on the time, too."""
        agreed, clock = self.processes.agree(stop, min(self._clock(), 1.0), self.device)
        self.clock = None if self.processes.count == 1 else clock
        return agreed

    def learning_rate(self) -> float:
        """Linear warm-up, then as the schedule says."""
        done, warmup = min(self.progress(), 1.0), self.config.warmup
        if done < warmup:
            return self.config.lr * (done / warmup + 1 / self.config.steps)
        if self.config.schedule == "step":
            return self.config.lr * 0.5 ** int(done / HALVED_AFTER)
        return self.config.lr * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup))) / 2

    def draw(self, generator: torch.Generator, lengths: torch.Generator, shared: bool = False) -> Tensor:
        """The lists of one step: about `batch_size` x 100 scores, all of one length; `shared`: this process's."""
        batch, n = self.config.batch_size, self.config.seq_len
        if n is None:
            n = draw_length(*self.config.lengths, lengths)
            batch = max(1, round(batch * 100 / n))
        batch = self.processes.share(batch) if shared else batch
        return draw(self.config.distributions, batch, n, generator, self.user_scores)

    def objective(self, scores: Tensor, generator: torch.Generator) -> Tensor:
        """Value loss + gradient_weight x gradient mismatch, on the normalised ranks of `scores` (B, n)."""
        config = self.config
        return sorter_loss(
            self.sorter,
            scores,
            generator,
            values=self.values,
            value_loss=config.value_loss,
            top_weighted=config.top_weighted,
            gradient_weight=config.gradient_weight,
            gradient_tau=config.gradient_tau,
            gradient_fraction=config.gradient_fraction,
            gradient_step=config.gradient_step,
        )

    def objectives(self, lists: Sequence[Tensor]) -> list[float]:
        """The objective of each of `lists`, drawn from the same random vectors every time."""
        generator = torch.Generator(self.device).manual_seed(VALIDATION_SEED)
        return [float(self.objective(x, generator).detach()) for x in lists]

    def advance(self) -> None:
        """One step."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        stream = self.processes.stream(self.generator, self.config.seed, self.step)
        scores = self.draw(stream, self.lengths, shared=True)
        self.sorter.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.objective(scores, stream)
        loss.backward()  # type: ignore[no-untyped-call]
        self.processes.average(self.parameters.values(), len(scores))
        limit = math.inf if self.config.clip is None else self.config.clip
        self.grad_norm = nn.utils.clip_grad_norm_(self.parameters.values(), limit)
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
        lengths = [round(low * (high / low) ** exponent) for exponent in (0.25, 0.5, 0.75)]
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
        self.history.append(self._measured())

    def _measured(self) -> dict[str, Any]:
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
        self.validation_seconds, self.last_validation = now - start, (now, self.step)
        return row

    def _estimate_batch_statistics(self) -> None:
        """Those of batch norms, over many batches: in training they are a running average of about the last ten."""
        generator = torch.Generator(self.device).manual_seed(VALIDATION_SEED)
        lengths = torch.Generator().manual_seed(VALIDATION_SEED)
        update_bn((self.draw(generator, lengths) for _ in range(STATISTICS_BATCHES)), self.sorter)

    @contextlib.contextmanager
    def _weights(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """The sorter with other weights, for a while."""
        current = {name: t.clone() for name, t in self.weights.items()}
        self._put(weights)
        try:
            yield
        finally:
            self._put(current)

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
        write_atomic(path, seal(self._tensors(self.optimizer.state), STATE_KEY, header))

    def restore(self, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
        """Load what `save_state` wrote.

        Raises:
            ValueError: it is of another network, another kind of device, or inconsistent.
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
        self._put(with_prefix(tensors, "sorter/"))
        self.best, self.average = with_prefix(tensors, "best/"), with_prefix(tensors, "average/")
        for name, parameter in moved.items():
            self.optimizer.state[parameter] = {key: tensors[f"optimizer/{key}/{name}"] for key in _MOMENTS}
        self.step, self.best_objective = header["step"], header["best_objective"]
        self.earlier_seconds = header["seconds"]
        self.first, self.history = header["first"], list(header["history"])
        self.log_dir = header["log_dir"]
        self.last_validation = (time.perf_counter(), self.step)

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
        # the initial weights are a candidate too: a few steps may not reach their objective again
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
            trained = self.validation["validation"]
            lists = draw(self.config.distributions, 4, far, generator, self.user_scores).to(self.device)
            with torch.no_grad():  # cheap, and enough to exclude most networks
                *errors, error = (
                    float((self.sorter.values(x) - exact_rank(x)).abs().mean()) / x.shape[-1] for x in (*trained, lists)
                )
            good = error <= max(errors)
            if good and self.config.gradient_weight:
                good = self.objectives([lists])[0] <= max(self.objectives(trained))
        return [low, far if good else high]

    def card(self, errors: Mapping[str, float]) -> dict[str, Any]:
        """The record of the training for the file, the same in every run of one config."""
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


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Matrix products in this precision, for as long as the context lasts."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
