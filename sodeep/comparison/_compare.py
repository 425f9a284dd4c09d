"""Compare losses: the same task, features, batches, steps and tuning budget for each, over several seeds.

For every loss as many settings are tried, from the ranges of the loss (`sodeep.comparison.losses_by_name`,
`sodeep._core.search`), by the first seed for all or by every seed for itself: each is trained until the validation
metric is flat, and of the best the weights of its best validation are tested, once, on the test split. A seed fixes the
split (where the data have none), the initialisation, the batches and the dropout, the same for all losses, so that
differences to a baseline are paired.

A `Run` is one training, or the test of the best of them. Runs are kept in a folder:

* ``comparison.json``: task, data, losses and versions, with checksums of data and sorters, so that runs on others are
  refused.
* ``runs.jsonl``: one run a line (`Run.to_json`), appended when it is done. A line that was cut off is not read.
* ``encoders/*.safetensors``: the tested encoders, if asked for.
* ``details/*.npz``: arrays for figures of the tested runs; `Run.details` names the file, relative to the folder.

Started again on the same folder, a comparison does the missing runs only: those not begun, those that failed for
reasons outside their loss, and those in damaged lines of ``runs.jsonl`` (these go to ``damaged.jsonl``). With more
trials the further settings are trained, and the best is tested if it is one of them. One process at a time writes to a
folder.

>>> import tempfile
>>> from sodeep.comparison import compare, summarise
>>> with tempfile.TemporaryDirectory() as folder:
...     runs = compare("memorability", ["mse", "spearman:laplace"], out=folder, seeds=2, max_steps=30)
...     summary = summarise(runs)
>>> summary.losses, summary.baseline, summary.cells["mse", "Spearman"].n
(['mse', 'spearman:laplace'], 'mse', 2)
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sodeep._core.checks import check_at_least, check_computes, check_path, describe
from sodeep._core.files import sole_writer, sweep, write_atomic
from sodeep._core.search import Choice, Range, Ranges, default_settings, edge_of, trial_settings, with_limits
from sodeep._version import __version__
from sodeep.comparison.losses_by_name import (
    CALL_SIGNATURES,
    LossSpec,
    all_stages_of,
    default_losses,
    loss_by_name,
)
from sodeep.comparison.runs import Run
from sodeep.comparison.schedule import Plan, Schedule
from sodeep.comparison.train import Job, Length, load_encoder, load_task
from sodeep.sorters.base import Sorter
from sodeep.tasks import Task
from sodeep.tasks.base import BATCH_SIZE
from sodeep.tasks.own_task import OwnTask, as_sent, fingerprint, task_class as class_of


def compare(
    task: str | type[Task] | Task,
    losses: Sequence[str] | None = None,
    *,
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    seeds: int | Sequence[int] = 3,
    trials: int = 4,
    search_seeds: int | None = 1,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    max_steps: int | None = None,
    patience: int | None = 8,
    validate_every: int | None = None,
    init: str | os.PathLike[str] | None = None,
    save_encoders: bool = False,
    batch_size: int | None = None,
    train_fraction: float | None = None,
    semantic: str | None = None,
    captions_per_item: int | None = None,
    captions_kept: int | None = None,
    fold_size: int | None = None,
    text_features: str | None = None,
    image_features: str | None = None,
    finetune: int | None = None,
    encoder: str | Callable[[], nn.Module] | None = None,
    text_encoder: str | Callable[[], nn.Module] | None = None,
    chunk_size: int | None = None,
    precision: str | None = None,
    workers: int | None = None,
    target: str | None = None,
    group: str | None = None,
    text: str | None = None,
    predictors: Sequence[str] | None = None,
    scorer: str | None = None,
    transform: str | None = None,
    folds: int | None = None,
    metric: str | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
    device: str | torch.device = "auto",
    on_run: Callable[[Run, int, int], None] | None = None,
    on_start: Callable[[Plan], None] | None = None,
) -> list[Run]:
    """Train and test losses on a task, or resume that.

    Args:
        task: name in `sodeep.tasks.TASKS`; or one of your own, a subclass of `sodeep.tasks.Task`: ``module:class``, the
            class, or a task made with its data, which is made anew with them for every seed. Other processes must be
            able to import its module.
        losses: names of losses (`sodeep.comparison.losses_by_name`). None: those of the task that its data and the
            shipped sorters allow.
        out: folder of the comparison, made if need be. Runs found in it are not repeated; further losses and seeds may
            be added.
        data: path of the data, in a layout that the task reads. None: its small embedded set.
        seeds: how many, from 0; or which.
        trials: settings tried for every loss: the default of each of its ranges, and more points in them.
        search_seeds: how many of the seeds, the first ones, choose the settings, by their mean validation; with these,
            each loss is trained once for every further seed. None: every seed chooses for itself, at `trials` times the
            cost.
        ranges: of settings that are searched elsewhere than declared, name -> (low, high), such as
            ``{"width": (0.05, 8)}``: for every loss that has such a setting. The report says which choices lay at an
            end of their range.
        max_steps: after which a training ends though its validation metric still rises, which the report says. None:
            that of the task.
        patience: validations without a gain of 0.001 after which a training goes on from its best weights with a tenth
            of the learning rate, and at the second time ends. None: every training takes `max_steps`, and its learning
            rate falls along a cosine to zero.
        validate_every: steps between two validations. None: that of the task.
        init: .safetensors file of the weights that the encoder starts from, as `save_encoders` keeps them.
        save_encoders: keep the tested encoder of every loss and seed in the folder,
            ``encoders/LOSS-SEED-*.safetensors``. Of tests that were done without it, training and test are repeated.
        batch_size: items per step, for every loss. None: 100, or what the task was made with.
        train_fraction: how much of the training split is trained on, above 0, up to 1; drawn with the seed, a smaller
            fraction is part of a larger one. Fewer steps, as an epoch is shorter. None: 1, or as above.
        semantic: of the cross-modal task, which semantic scores "asp" and the like are trained on: "overlap" of codes,
            "class" (1 for images of one class), or "cider", "bleu" or "rouge-l" of captions, or the "mean" of these
            three. None: the first of these that the data have.
        captions_per_item: of the cross-modal task, captions of each image in a batch, or all of an image that has
            fewer. `batch_size` stays the number of images: losses take `batch_size` x `captions_per_item` captions.
            None: 1.
        captions_kept: of the cross-modal task, captions left of each training image, drawn with the seed; a smaller
            number keeps part of what a larger one does. None: all.
        fold_size: of the cross-modal task, images in a fold of the test split: every metric is measured again as the
            mean over such folds (1,000 for "COCO 1K"). None: over the whole split alone.
        text_features: what texts are turned into: "tf-idf", or "wordllama", word vectors of the package of that name
            (`sodeep.datasets.texts`). None: "tf-idf". The name of the data says which.
        image_features: what images are turned into before training: "efficientnet-lite0", the features of this network,
            which is trained on ImageNet (`sodeep.datasets.image_features`); computed once and kept in the cache folder.
            None, or "pixels": nothing, a small network is trained from the pixels.
        finetune: how many of the last blocks of that network are trained too, once for each loss and seed, at a tenth
            of the learning rate: after the setting is chosen, from its weights, with as many steps. None: none.
        encoder: of the retrieval, cross-modal (for images) and multi-label tasks, yours in place of the small ones:
            ``module:callable``, or the callable itself (with more than one process, one that pickle can send: a
            function of a module). It takes no arguments and returns an nn.Module from inputs to vectors;
            `sodeep.tasks.own_encoder` says what else it may have, such as the transform of its images. None: a small
            one.
        text_encoder: likewise, of the captions of the cross-modal task.
        chunk_size: inputs that these encoders take at a time in training, with the gradient of the whole batch and the
            memory of a chunk; layers that mix the inputs of a batch, as BatchNorm does, see the chunk. None: all.
        precision: what they compute in, and the blocks of `finetune`, "float32" or "bfloat16" (autocast). None:
            "float32".
        workers: processes that read its images. None: 0, this one.
        target: on a csv table, the column of scores (memorability) or of relevance (ranking). None: "score" or
            "relevance".
        group: likewise, the column of groups (ranking). None: "group".
        text: likewise, the column of texts (memorability). None: "text", if there is one.
        predictors: likewise, the columns of numbers to predict from. None: all the others.
        scorer: of the ranking task, what scores an item: "item", a network on its own features, or "list", one that
            sees the other items of its group. None: "item".
        transform: of the ranking task, what features go through before they are standardised: "log1p",
            ``sign(x) log(1 + |x|)``, for long tails, or "none". None: "none".
        folds: of the ranking task, folds of a cross-validation over the groups of all splits, at least 3; so many seeds
            in a row test every fold once. None: the split of the data.
        metric: what settings and the length of a training are chosen by on the validation split, and losses compared
            by, one of the task's of which higher is better. None: the first of the task, or as above.
        jobs: processes, of one thread each. None or 1 stays in this process, with one thread meanwhile. As they are
            started anew, a script that asks for more needs the usual ``if __name__ == "__main__":``. With an
            `executor`, how many runs it is given at a time, and one that waits; None: all that can be done.
        executor: any executor of `concurrent.futures`, such as ``client.get_executor()`` of dask.distributed, mpi4py's
            or loky's: trainings and tests are done there, one at a time in each of its processes, and come back as
            values, weights included, so that its machines need no folder in common. They need sodeep, the modules and
            files that losses are named by, and `data` at the same absolute path, which is checked. A run that is lost
            with a worker is done again. It is not shut down.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ...
        on_run: called with each run when it is done, with how many are done by then, and with how many there will be.
        on_start: called before the first training with a `Plan`: what is to be done, and how long it may take. For it
            a few steps of each loss are timed, which leaves the results as they are.

    Returns:
        All runs of these losses and seeds, those found in the folder included: for each loss and seed `trials` of the
        stage "tuning" (fewer where settings have few values; one for a seed beyond `search_seeds`), and one of the
        stage "test". A loss that turns NaN, or raises an error, is recorded as failed
        with the step and the values; the others go on. If all settings of a loss fail, so does its test. What failed
        for want of memory or for a file, and every test that failed, is repeated when the comparison is started again.

    Warns:
        UserWarning: lines of runs.jsonl are damaged; they are set aside, and what they held is done again.

    Raises:
        MissingPackageError: features ask for a package that is not installed.
        TypeError: `task` is no task, or lacks what a task must define.
        ValueError: an unknown task, loss or device, a loss that does not fit the task, data in another layout, a folder
            with another comparison, a task of your own that no other process can import.
        FileNotFoundError: no data there, or no such sorter file.
        FileExistsError: another process is at work in the folder.
        OSError: the folder cannot be written to.
        ComparisonStopped: Ctrl-C, SIGTERM or SIGHUP came, workers died again and again or the executor takes no more
            runs, or a file could not be read or written (a full disk, say). What was done is kept.
    """
    task_class = class_of(task)
    folder = check_path(out, "out")
    sent = as_sent(task)
    made_with = sent.options if isinstance(sent, OwnTask) else {}
    by_default = losses is None
    losses = default_losses(task_class) if losses is None else _check_names(losses)
    if not losses:
        hint = f" None stands for {', '.join(task_class.losses)}." * bool(task_class.losses)
        raise ValueError(f"`losses` must name at least one loss, got none.{hint}")
    losses = list(dict.fromkeys(name for loss in losses for name in all_stages_of(loss)))
    specs = {loss: loss_by_name(loss) for loss in losses}
    for loss, spec in specs.items():
        _check_fits(loss, spec, task_class)
    if not isinstance(seeds, Sequence):
        seeds = range(check_at_least(seeds, 1, "seeds"))
    seeds = [check_at_least(seed, 0, "seeds") for seed in seeds]
    if not seeds:
        raise ValueError("`seeds` must name at least one seed, got none. 3 stands for 0, 1 and 2.")
    trials = check_at_least(trials, 1, "trials")
    if search_seeds is not None and check_at_least(search_seeds, 1, "search_seeds") > len(seeds):
        raise ValueError(f"`search_seeds` must be at most the number of seeds, {len(seeds)}, got {search_seeds}.")
    searched = _searched_ranges(specs, task_class, ranges or {})
    length = Length(
        check_at_least(task_class.max_steps if max_steps is None else max_steps, 1, "max_steps"),
        check_at_least(task_class.validate_every if validate_every is None else validate_every, 1, "validate_every"),
        None if patience is None else check_at_least(patience, 1, "patience"),
    )
    batch_size = made_with.get("batch_size", BATCH_SIZE) if batch_size is None else batch_size
    batch_size = check_at_least(batch_size, 4, "batch_size")
    train_fraction = made_with.get("train_fraction", 1.0) if train_fraction is None else train_fraction
    metric = made_with.get("metric") if metric is None else metric
    jobs = None if jobs is None else check_at_least(jobs, 1, "jobs")
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(
            f"`executor` must be an executor of concurrent.futures or None, got {describe(executor)}. "
            "Of a dask client it is client.get_executor()."
        )
    if isinstance(sent, OwnTask) and (executor is not None or jobs not in (None, 1)):
        sent.check_sent()
    place = device_of(device)
    options = {"batch_size": batch_size, "train_fraction": train_fraction, "metric": metric}
    options |= _options_of(
        task_class,
        semantic=semantic,
        captions_per_item=captions_per_item,
        captions_kept=captions_kept,
        fold_size=fold_size,
        text_features=text_features,
        image_features=image_features,
        finetune=finetune,
        encoder=encoder,
        text_encoder=text_encoder,
        chunk_size=chunk_size,
        precision=precision,
        workers=workers,
        target=target,
        group=group,
        text=text,
        predictors=predictors,
        scorer=scorer,
        transform=transform,
        folds=folds,
    )
    remedy = "Arrays are given to a task of your own: compare(MyTask(arrays), ...)."
    path = None if data is None else str(check_path(data, "data", remedy))
    load_task.cache_clear()  # by now the path may hold other data than in a comparison before
    loaded = load_task(sent, path, seeds[0], place, **options)  # wrong data raise here, not in a worker
    for loss, spec in specs.items():
        lacking = next(filter(None, map(loaded.lacks, sorted(spec.signatures | {spec.method}))), None)
        if lacking is not None and not by_default:
            raise ValueError(f"`loss` must fit the data, got {loss}. It needs {lacking}.")
        if lacking is not None:  # as of a sorter that is not shipped
            losses.remove(loss)
            if not losses:
                raise ValueError(f"`data` must have what the losses need, got {loaded.data_name}. They need {lacking}.")
    metric = None if metric == task_class.primary_metric else metric
    if metric is not None and metric not in loaded.measure(loaded.model(), "val").metrics:
        raise ValueError(f"`metric` must be one that the validation split of {loaded.data_name} has, got {metric!r}.")
    origin = {
        "task": task_class.name,
        "data": loaded.data_name,
        "batch_size": batch_size,
        **asdict(length),
        "init": None,
    }
    origin |= {"search_seeds": search_seeds, "metric": metric}
    origin["ranges"] = {name: list(limits) for name, limits in sorted(ranges.items())} if ranges else None
    start = None if init is None else str(check_path(init, "init", "Save weights first: safetensors.torch.save_file."))
    if start is not None:
        load_encoder(loaded.model(), start)  # another task's encoder raises here
        origin["init"] = zlib.crc32(Path(start).read_bytes())
    checksums = {loss: _sorter_checksum(spec, task_class) for loss, spec in specs.items()}
    sorters = {loss: checksum for loss, checksum in checksums.items() if checksum is not None}
    sources = {loss: zlib.crc32(spec.source.encode()) for loss, spec in specs.items() if spec.source}
    for own in (getattr(loaded, "encoder", None), getattr(loaded, "text_encoder", None)):
        if own is not None and own.source:
            sources[own.name] = zlib.crc32(own.source.encode())
    sources |= {task_class.name: code} if (code := fingerprint(task)) is not None else {}
    has_data = path is not None or isinstance(task, Task)
    data_checksum = loaded.checksum if has_data else None
    # a user's class may draw its data, or read them from where it likes: those of the first seed are checked
    drawn = {f"seed {seeds[0]}": loaded.checksum} if ":" in task_class.name and not has_data else {}
    if path is not None and executor is not None:  # whose processes may be at work in other folders
        path = str(Path(path).absolute())
    work = {
        (loss, seed): [
            Job(
                sent,
                path,
                loss,
                seed,
                settings,
                str(folder),
                length,
                place,
                options,
                data_checksum,
                start,
                save_encoders=save_encoders,
                edges=edge_of(searched[loss], settings),
            )
            for settings in trial_settings(searched[loss], trials)
        ]
        for seed in seeds
        for loss in losses
    }
    with sole_comparison(folder):
        parts = {"sorters": sorters, "sources": sources, "drawn": drawn}
        _claim(folder, origin, losses, trials, parts, data_checksum)
        choosing = None if search_seeds is None else seeds[:search_seeds]
        return Schedule(folder, loaded.metric, work, choosing, on_run).run(jobs, on_start, executor)


def _check_names(losses: Any) -> list[str]:
    """The names of losses, each once."""
    if isinstance(losses, str):
        raise TypeError(f"`losses` must be a list of names, got {losses!r}. Put it in brackets.")
    wrong = [loss for loss in losses if not isinstance(loss, str)] if isinstance(losses, Iterable) else [losses]
    if wrong:
        raise TypeError(
            f"`losses` must be names of losses, got {describe(wrong[0])}. One of your own is my_module:MyLoss, built "
            "anew for each training."
        )
    return list(dict.fromkeys(losses))


def _options_of(task_class: type[Task], **given: Any) -> dict[str, Any]:
    """The given ones of the options that only some tasks have; the task must be one of them."""
    if isinstance(given["predictors"], str):
        raise ValueError(f"`predictors` must be a list of names, got {given['predictors']!r}. Put it in brackets.")
    given["predictors"] = tuple(given["predictors"] or ()) or None
    for name, value in given.items():
        if value is not None and name not in task_class.options:
            raise ValueError(
                f"`{name}` must not be given for the {task_class.name} task, which has no {_OPTIONS[name]}, "
                f"got {value!r}."
            )
    return {name: value for name, value in given.items() if value is not None}


_OPTIONS = {
    "semantic": "semantic scores",
    "captions_per_item": "captions",
    "captions_kept": "captions",
    "fold_size": "folds",
    "text_features": "texts",
    "image_features": "images",
    "finetune": "images",
    "encoder": "encoder of your own",
    "text_encoder": "encoder of texts",
    "chunk_size": "encoder of your own",
    "precision": "encoder of your own",
    "workers": "encoder of your own",
    "target": "table of columns",
    "group": "groups",
    "scorer": "groups",
    "transform": "groups",
    "folds": "groups",
    "text": "table of columns",
    "predictors": "table of columns",
}
"""Options of some tasks -> what the others lack."""


def _check_fits(loss: str, spec: LossSpec, task_class: type[Task]) -> None:
    if spec.method and spec.method not in task_class.methods:
        raise ValueError(
            f"`loss` must fit the {task_class.name} task, got {loss!r}, which it does not have. Its models without "
            f"training are {', '.join(task_class.methods)}."
        )
    wrong = spec.signatures - {"", *task_class.accepts}
    if wrong:
        calls = " or ".join(CALL_SIGNATURES[signature] for signature in task_class.accepts)
        raise ValueError(
            f"`loss` must fit the {task_class.name} task, got {loss!r}, a loss with another call signature. "
            f"It is called as {CALL_SIGNATURES[min(wrong)]}, this task calls {calls}. "
            f"Those compared by default are {', '.join(task_class.losses)}."
        )


def _searched_ranges(
    specs: Mapping[str, LossSpec], task_class: type[Task], limits: Mapping[str, tuple[float, float]]
) -> dict[str, Ranges]:
    """Loss -> the ranges of its settings, with the limits that the user gives."""
    if not isinstance(limits, Mapping):
        raise TypeError(f"`ranges` must be name: (low, high), in braces, got {describe(limits)}.")
    searched: dict[str, Ranges] = {loss: spec.all_ranges(task_class) for loss, spec in specs.items()}
    declared = [(name, values) for ranges in searched.values() for name, values in ranges.items()]
    known = {name for name, values in declared if isinstance(values, Range)}
    choices = {name: values for name, values in declared if isinstance(values, Choice)}
    for name, pair in limits.items():
        if name not in known and name in choices:
            values = ", ".join(map(str, choices[name].values))
            raise ValueError(f"`ranges` must name settings that have a range, got {name!r}, a choice of {values}.")
        if name not in known:
            names = ", ".join(sorted(known))
            raise ValueError(f"`ranges` must name settings of these losses, got {name!r}. They have {names}.")
        try:
            low, high = map(float, pair)
            searched = {loss: with_limits(ranges, {name: (low, high)}) for loss, ranges in searched.items()}
        except (TypeError, ValueError) as error:
            raise ValueError(f"`ranges` must be name: (low, high), got {describe(pair)} for {name}. {error}") from None
    return searched


def device_of(device: str | torch.device) -> str:
    """The device, "auto" resolved, after a check that it computes."""
    if isinstance(device, torch.device):
        device = str(device)
    if not isinstance(device, str):
        raise TypeError(f"`device` must be 'auto' or the name of a device, such as 'cuda:0', got {describe(device)}.")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    check_computes(device)
    return device


def _sorter_checksum(spec: LossSpec, task_class: type[Task]) -> int | None:
    """A checksum of the weights of the sorters in a loss: a file of the same name may hold another sorter by now."""
    try:
        settings = default_settings(spec.all_ranges(task_class))
        terms = [term for _, _, term in spec.terms(settings, task_class.accepts[0])]
    except Exception:  # of any loss: its runs will record the error
        return None
    modules = [module for term in terms if isinstance(term, nn.Module) for module in term.modules()]
    sorters = [module for module in modules if isinstance(module, Sorter)]
    checksum = 0
    for weight in (weight for sorter in sorters for weight in sorter.state_dict().values()):
        checksum = zlib.crc32(weight.cpu().numpy().tobytes(), checksum)
    return checksum if sorters else None


@contextlib.contextmanager
def sole_comparison(folder: Path) -> Iterator[None]:
    """Make the folder, and lock it for one comparison; temporary files of a killed one are removed."""
    parts = [folder, *(folder / name for name in ("details", "weights", "encoders"))]
    lock = folder / ".lock"
    try:
        for part in parts:
            part.mkdir(parents=True, exist_ok=True)
        lock.touch()
    except OSError as error:
        raise type(error)(
            error.errno, f"`out` must be a folder that can be written to: {error.strerror}", str(folder)
        ) from None
    refusal = f"`out` {folder} is being written by another comparison. Wait for it to end, or choose another folder."
    with sole_writer(lock, refusal):
        for part in parts:
            sweep(part)
        yield


def _claim(
    folder: Path,
    origin: dict[str, Any],
    losses: Sequence[str],
    trials: int,
    parts: dict[str, dict[str, int]],
    data: int | None,
) -> None:
    """Write comparison.json, or check that it describes this comparison, with the same sorters and data.

    `parts` are checksums of the sorters and of the user's code in each loss, task and encoder, and of the data that a
    user's task drew; `data` is one. Those that an older comparison lacks are added, as are further losses.
    """

    def refuse(got: str) -> ValueError:
        return ValueError(f"`out` {folder} holds {got}. Choose another folder, or delete it.")

    path = folder / "comparison.json"
    saved: dict[str, Any] = {**origin, "sodeep": __version__, "torch": torch.__version__}
    if path.exists():
        try:
            saved = dict(json.loads(path.read_bytes()))
        except (TypeError, ValueError):
            raise refuse("a comparison.json that cannot be read, which says what the runs are of") from None
    elif (folder / "runs.jsonl").exists():
        raise refuse("runs without the comparison.json that says what they are of")
    for name, value in origin.items():
        if saved.get(name) != value:
            before, now = _in_words(name, saved.get(name)), _in_words(name, value)
            if before == now:  # two files, of which their checksums are kept
                now = "from this one"
            raise refuse(f"a comparison {before}, not {now}")
    if saved.setdefault("trials", trials) > trials:  # another setting would be the best, and be tested anew
        raise ValueError(f"`trials` must be {saved['trials']} or more in {folder}, as before, got {trials}.")
    missing = [loss for loss in saved.get("losses", []) if loss not in losses]
    if saved["trials"] < trials and missing:
        raise ValueError(
            f"`losses` must name {', '.join(missing)} as well where `trials` rises from {saved['trials']} to {trials} "
            f"in {folder}: all its losses have as many settings. Or choose another folder."
        )
    saved["trials"] = trials
    if data is not None and saved.setdefault("checksum", data) != data:
        raise refuse(f"a comparison on other data under the name {origin['data']!r}")
    for part, what in (("sorters", "another sorter"), ("sources", "other code"), ("drawn", "")):
        known = saved.setdefault(part, {}) if part != "drawn" or parts[part] else {}
        for loss, checksum in parts[part].items():
            if known.setdefault(loss, checksum) != checksum:
                named = f"runs of {loss} with {what} under that name"
                raise refuse(
                    named if part != "drawn" else f"a comparison on other data than the task gives now, {loss}"
                )
    saved["losses"] = list(dict.fromkeys([*saved.get("losses", []), *losses]))  # the order of the report
    write_atomic(path, json.dumps(saved, indent=2).encode())


def _in_words(name: str, value: Any) -> str:
    """An entry of comparison.json, to go after "a comparison", None being what the user did not ask for.

    >>> _in_words("ranges", {"width": [0.05, 8.0]}), _in_words("patience", None)
    ('that searches width=0.05:8', 'in which trainings take all their steps')
    """
    ranges = value.items() if name == "ranges" and isinstance(value, Mapping) else ()
    limits = ", ".join(f"{setting}={low:g}:{high:g}" for setting, (low, high) in ranges)
    unasked, asked = {
        "task": ("of no task", f"of the task {value}"),
        "data": ("of no data", f"on the data {value}"),
        "batch_size": ("of unknown batches", f"of batches of {value}"),
        "max_steps": ("of unknown length", f"of {value} steps at most"),
        "validate_every": ("of unknown validations", f"with a validation every {value} steps"),
        "patience": ("in which trainings take all their steps", f"with a patience of {value} validations"),
        "init": ("whose encoders start at random", "whose encoders start from a file of weights"),
        "search_seeds": (
            "in which every seed chooses its settings",
            f"in which the first {f'{value} seeds choose' if value != 1 else 'seed chooses'} the settings",
        ),
        "metric": (
            "whose settings are chosen by the first metric of the task",
            f"whose settings are chosen by {value}",
        ),
        "ranges": ("that searches the ranges as declared", f"that searches {limits}"),
    }[name]
    return unasked if value is None else asked
