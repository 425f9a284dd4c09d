"""`train_sorter`: train a sorter on synthetic lists, with its state in a file so that it can be resumed.

The method is that of SoDeep (Engilberge et al., CVPR 2019), with a gradient term: see `sodeep.training.objective`.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import check_computes, check_free, check_writable, user_path, with_remedy
from sodeep._core.files import sole_writer, sweep
from sodeep._core.sealed import DamagedError, check_header, check_tensors, parse_header
from sodeep._core.signals import stop_signals
from sodeep.checkpoint.format import listed, misfits, save_sorter
from sodeep.sorters import build_sorter
from sodeep.training.config import ResolvedConfig, TrainConfig, device_of
from sodeep.training.log import Log
from sodeep.training.processes import Processes
from sodeep.training.run import STATE_KEY, Run, TrainResult, matmul_precision, with_prefix


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

    Where torch.distributed is initialised, all its processes train one sorter: each draws its share of the lists of a
    step, from a stream of its own, and the gradients are averaged. The first process reads and writes all files; a run
    can be resumed with another number of processes.

    Args:
        config: what to train and how; None is ``TrainConfig()``, or the saved run's config with `resume`. With
            `resume` it must be that of the saved run, but for `max_time`, which is counted anew from here.
        out: the .safetensors file to write. While the run lasts, its state is beside it in ``<out>.run``.
        log_dir: where to write TensorBoard logs. What an earlier run logged there from the first step of this one on
            is replaced. A resumed run goes on with its log, in the folder that it had unless another is given; the log
            ends up as if it had never stopped.
        resume: go on with the unfinished run of `out`. On a CPU the weights end up exactly as if it had never
            stopped, if it goes on on the same machine with the same number of threads.
        progress: write to stderr how far the run is and about how long it still takes: one line on a terminal, a line
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
    processes = Processes()
    with contextlib.ExitStack() as stack:

        def begin() -> tuple[Any, ResolvedConfig]:
            saved = stack.enter_context(_claimed(path, resume, overwrite))
            return saved, (config or TrainConfig()).resolve() if saved is None else _same_config(config, saved[1])

        saved, resolved = processes.from_first(begin)
        check_computes(str(device_of(resolved.device)))
        stack.enter_context(matmul_precision(resolved.precision))
        run = Run(resolved, processes)
        if saved is not None:
            _restore(run, path, *saved)
        if log_dir is not None:
            run.log_dir = str(user_path(log_dir).absolute())
        if not processes.is_first:  # it has no log, nor a state
            run.log_dir = None
        received = stack.enter_context(stop_signals(interrupt=False))
        log = stack.enter_context(Log(run, progress and processes.is_first))
        state = state_path(path) if path is not None and processes.is_first else None
        _run_to_end(run, log, state, received)
        result = run.result(path)
        processes.from_first(lambda: _finish(result, log, path))
        return result


def _finish(result: TrainResult, log: Log, path: Path | None) -> None:
    """Write the sorter and the end of the log, then drop the state."""
    if path is not None:
        save_sorter(path, result.sorter, training=result.sorter.trained)
    log.finish(result)
    if path is not None:
        state_path(path).unlink(missing_ok=True)


def _run_to_end(run: Run, log: Log, state: Path | None, received: Sequence[int]) -> None:
    """Steps and validations to the end of the run, or until a signal is `received`; the file `state` keeps the run."""
    done = bool(run.history) and run.progress() >= 1  # of a run resumed after its last step
    while not done:
        run.advance()
        log.step()
        agreed = run.agree(bool(received))
        done = run.progress() >= 1
        stopped = agreed and not done
        due = done or run.step % run.config.validate_every == 0
        if due or stopped:
            run.check_sound()  # or else the last good state would be replaced by one past saving
        if due:
            run.validate()
            run.agree(False)
            done = run.progress() >= 1  # a validation takes its time too
        if state is not None and (due or stopped):
            run.save_state(state)
        if due:
            log.validation()  # after the state: it may fail, and a resumed run logs its last validation again
        if stopped:
            signum = received[0] if received else signal.SIGTERM  # of another process
            raise TrainingInterrupted(signum, run.step, state)


def state_path(out: Path) -> Path:
    """Where the state of an unfinished run is kept: beside the sorter it will become."""
    return out.with_name(out.name + ".run")


def saved_config(out: str | os.PathLike[str]) -> ResolvedConfig:
    """The config of the unfinished run of `out`.

    Raises:
        FileNotFoundError: there is none.
        ValueError: its state is damaged.
    """
    path = user_path(out)
    _check_free(path, resume=True, overwrite=False)
    return _config_of(_read_state(state_path(path))[1])


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
    check_writable(path, make_folder=True)
    refusal = f"`out` {path} is being written by another run. Wait for it to end, or choose another name."
    with sole_writer(path.with_name(f".{path.name}.lock"), refusal):
        sweep(path)
        sweep(state_path(path))
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
                "Go on with it: {resume}; or start again: {overwrite}.",
                resume=True,
                overwrite=True,
            )


def _read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    data = path.read_bytes()
    try:
        header = parse_header(data, len(data), STATE_KEY)
        check_header(data, header, _STATE_FIELDS)
        tensors = check_tensors(data, header["sha256"])
        config = _config_of(header)
        with torch.device("meta"):  # before memory is taken for it
            network = build_sorter(config.sorter, config.seq_len, **config.sorter_config)
        faults = misfits(network.state_dict(), with_prefix(tensors, "sorter/"))
        if faults:
            raise DamagedError(f"its tensors are not those of its {config.sorter} sorter: {listed(faults)}")
        return tensors, header
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        reason = str(error).removesuffix(".")
        raise with_remedy(
            ValueError,
            f"{path} must be the state of an unfinished run, got another kind of file, a damaged one, or one of an "
            f"older sodeep ({reason}).",
            "Start again: {overwrite}.",
            overwrite=True,
        ) from None


def _config_of(state: Mapping[str, Any]) -> ResolvedConfig:
    unknown = sorted({*state["config"]} - {field.name for field in fields(TrainConfig)})
    if unknown:
        raise DamagedError(f"its config has {', '.join(unknown)}, which this version does not know")
    return TrainConfig(**state["config"]).resolve()


def _restore(run: Run, path: Path | None, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    try:
        run.restore(tensors, header)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:  # of another kind of device
        raise with_remedy(
            ValueError,
            f"`resume` needs the state of the same run on the same kind of device (here {run.device.type}), "
            f"got one for {path} that does not fit ({error}).",
            "Resume it where it ran, or start again: {overwrite}.",
            overwrite=True,
        ) from None


def _same_config(given: TrainConfig | None, saved: Mapping[str, Any]) -> ResolvedConfig:
    """The config of the saved run, after checking that the one given differs in its time limit at most."""
    config = _config_of(saved)
    if given is None:
        return config
    resolved = given.resolve()
    limit = None if resolved.max_time is None else resolved.max_time + saved["seconds"]
    config = replace(config, max_time=resolved.max_time)
    if resolved != config:
        names = [f.name for f in fields(config) if getattr(resolved, f.name) != getattr(config, f.name)]
        changes = ", ".join(f"{n} was {getattr(config, n)!r} and is {getattr(resolved, n)!r}" for n in names)
        raise ValueError(f"`config` must be that of the run to resume: {changes}. Leave it out to take the saved one.")
    return replace(config, max_time=limit)
