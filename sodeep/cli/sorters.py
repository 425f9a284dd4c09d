"""``sodeep train-sorter``, ``evaluate-sorter``, ``list-sorters``, ``import-sorter`` and ``export-sorter``."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

import sodeep
from sodeep._core.extras import needed
from sodeep._core.progress import Progress, format_seconds
from sodeep.cli.group import Seconds, UserPath
from sodeep.cli.names import DISTRIBUTIONS, SORTERS, VALUE_LOSSES


def _weights(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, float] | None:
    return _pairs(param, values, sodeep.generators.parse_weight)


def _settings(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, Any] | None:
    return _pairs(param, values, _setting)


def _pairs(param: click.Parameter, values: Sequence[str], parse: Any) -> dict[str, Any] | None:
    try:
        return dict(parse(value) for value in values) or None
    except ValueError as error:
        raise click.BadParameter(str(error), param=param) from None


def _setting(text: str) -> tuple[str, Any]:
    """``hidden=64`` -> ("hidden", 64): the value is JSON, or else a word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not NAME=VALUE, for example hidden=64.")
    try:
        return name.replace("-", "_"), json.loads(value)
    except json.JSONDecodeError:
        return name.replace("-", "_"), value


@click.command("train-sorter")
@click.option("--sorter", type=click.Choice(SORTERS), help="The network.  [default: set; of --recipe, lstm-large]")
@click.option(
    "--recipe",
    type=click.Choice(["2019"]),
    help="The training run of SoDeep, 2019, for one of its networks, but for options given here.",
)
@click.option("--seq-len", type=int, help="The one length to train for.  [default: all of --lengths, or 100]")
@click.option(
    "--lengths",
    type=int,
    nargs=2,
    metavar="LOW HIGH",
    help="Shortest and longest list of a sorter for any length.  [default: 2 1000]",
)
@click.option(
    "--sorter-config", multiple=True, callback=_settings, metavar="NAME=VALUE", help="Of the network; repeatable."
)
@click.option(
    "--distribution",
    "distributions",
    multiple=True,
    callback=_weights,
    metavar="NAME=WEIGHT",
    help=f"Of the synthetic lists; repeatable. NAME is one of {', '.join(DISTRIBUTIONS)}, or user, the lists of "
    "--scores-file.  [default: a mixture of all but those of 2019]",
)
@click.option("--mixture", type=click.Choice(["default", "2019"]), help="A whole mixture instead of --distribution.")
@click.option(
    "--scores-file",
    type=UserPath(path_type=Path),
    help="Your own score lists, .npy or .csv, one a row; a single column is one list.",
)
@click.option("--steps", type=int, help="Optimisation steps.  [default: that of the sorter]")
@click.option(
    "--max-time",
    type=Seconds(),
    help="End within this time, such as 90s, 30m or 2h, if steps remain: training, validations and the figures printed "
    "at the end. With --resume, counted from there.",
)
@click.option(
    "--batch-size",
    type=int,
    help="Lists a step (of 100 items, for a sorter for any length).  [default: that of the sorter]",
)
@click.option("--lr", type=float, help="Peak learning rate.  [default: that of the sorter]")
@click.option("--warmup", type=float, help="Fraction of the run in which the learning rate rises.")
@click.option("--schedule", type=click.Choice(["cosine", "step"]), help="How the learning rate falls after that.")
@click.option("--clip", type=float, help="Largest gradient norm.")
@click.option("--ema", type=float, help="Decay of the running average of the weights.")
@click.option("--value-loss", type=click.Choice(VALUE_LOSSES), help="On the normalised ranks.")
@click.option("--top-weighted", is_flag=True, default=None, help="Let items count by 1 / rank.")
@click.option("--gradient-weight", type=float, help="Of the gradient term; 0 trains on values alone.")
@click.option("--gradient-tau", type=float, help="Sharpness of the gradient's target, in standard deviations.")
@click.option("--gradient-fraction", type=float, help="Fraction of the lists that the gradient term is taken on.")
@click.option("--gradient-step", type=float, help="Of its differences, in standard deviations; 0: double backward.")
@click.option("--seed", type=int)
@click.option("--validate-every", type=int, help="Steps between validations (and saved states).")
@click.option("--device", help="auto, cpu, cuda, ...")
@click.option("--precision", type=click.Choice(["float32", "tf32"]), help="Of matrix products on a GPU.")
@click.option("--compile", is_flag=True, default=None, help="Use torch.compile (with --gradient-weight 0).")
@click.option("--out", type=UserPath(path_type=Path), help="File to write.  [default: SORTER.safetensors]")
@click.option("--log-dir", type=UserPath(path_type=Path), help="Write TensorBoard logs to this folder.")
@click.option("--resume", is_flag=True, help="Go on with the unfinished run of --out, with its options.")
@click.option("--overwrite", is_flag=True, help="Replace a finished sorter.")
@click.option("--quiet", is_flag=True, help="No progress line.")
def train_sorter(
    out: Path | None,
    log_dir: Path | None,
    resume: bool,
    overwrite: bool,
    quiet: bool,
    mixture: str | None,
    recipe: str | None,
    **given: Any,
) -> None:
    """Train a network to be the rank function.

    With the defaults, a set sorter for lists of any length, in a minute or two on a free CPU core. Under torchrun all
    processes train one sorter: torchrun --nproc-per-node 4 -m sodeep train-sorter ...
    """
    from sodeep.sorters.base import WORST_ERROR
    from sodeep.training.processes import of_torchrun

    if mixture is not None:
        if given["distributions"]:
            raise click.UsageError("Give either --mixture or --distribution, not both.")
        given["distributions"] = sodeep.SODEEP2019 if mixture == "2019" else sodeep.DEFAULT
    network = given["sorter"] or ("set" if recipe is None else "lstm-large")
    out = out or Path(f"{network}.safetensors")
    chosen = {name: value for name, value in given.items() if value is not None}
    config: sodeep.TrainConfig | None
    if recipe is not None and resume:
        raise click.UsageError("--recipe is that of the unfinished run. Leave it out with --resume.")
    if int(os.environ.get("RANK", "0")):  # of torchrun: the first process says what all do
        config = None
    elif resume:  # options that are not given keep their values
        saved = sodeep.training.train.saved_config(out)
        config = replace(saved, **chosen).resolve()
        if config == saved and "max_time" not in chosen:  # a limit that is given counts from here
            config = None
    else:
        configure = sodeep.TrainConfig if recipe is None else sodeep.TrainConfig.sodeep2019
        config = configure(**chosen).resolve()
        if "lengths" in chosen and config.seq_len is not None:  # a config cannot tell those of the default
            raise click.UsageError(f"--lengths is not for one length of list, here {config.seq_len}. Leave it out.")
    with of_torchrun() as processes:
        result = sodeep.train_sorter(
            config, out, log_dir=log_dir, resume=resume, progress=not quiet, overwrite=overwrite
        )
    if not processes.is_first:
        return
    click.echo(f"Trained {result.steps:,} steps in {result.seconds:.0f} s: {result.path}")
    if result.best_step == 0:
        click.echo("No validation was better than that of the initial weights: those are kept. Train longer.")
    click.echo("\nmean |rank error| / n on the validation lists")
    for name, error in result.errors.items():
        click.echo(f"  {name:<22}{error:.4f}")
    if result.errors["validation"] > WORST_ERROR:
        click.echo("This is no rank function yet: to give all items one rank has an error of 0.25. Train longer.")
    low, high = result.config.lengths
    n = result.config.seq_len or min(max(100, low), high)
    seconds = sodeep.evaluation.seconds_for_key_figures(result.sorter, n)
    left = math.inf if result.config.max_time is None else result.config.max_time - result.seconds
    if seconds > max(left, 1):
        click.echo(f"\nNo time is left for more figures: sodeep evaluate-sorter {shlex.quote(str(result.path))}")
    else:
        if seconds > 5 and not quiet:
            click.echo(f"measuring it: about {format_seconds(seconds)}", err=True)
        click.echo(f"\n{sodeep.evaluation.key_figures(result.sorter, n)}")
    click.echo(f'\nUse it:  rank_fn = sodeep.load_sorter("{result.path}")')


def _generator() -> Any:
    import torch

    return torch.Generator().manual_seed(1234)


@click.command("list-sorters")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_sorters(as_json: bool) -> None:
    """Show the sorters that ship with the package."""
    cards = sodeep.list_sorters()
    if as_json:
        click.echo(json.dumps([{**asdict(card), "path": str(card.path)} for card in cards], indent=2))
        return
    if not cards:
        click.echo("No sorter ships with this install. Train one: sodeep train-sorter")
    for card in cards:
        length = "any length" if card.seq_len is None else f"n = {card.seq_len}"
        errors = card.training.get("errors", {})
        error = f"validation error {errors['validation']:.4f}" if "validation" in errors else ""
        click.echo(f"{card.name:<12}{card.sorter:<12}{length:<12}{card.n_parameters:>10,} weights  {error}")


@click.command("evaluate-sorter")
@click.argument("sorter")
@click.option(
    "--lengths",
    type=click.IntRange(min=1),
    multiple=True,
    help="Lengths to measure at; repeatable.  [default: 10 ... 10,000]",
)
@click.option(
    "--lists", type=click.IntRange(min=1), default=256, show_default=True, help="Lists an error is averaged over."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=1234, show_default=True)
@click.option("--json", "json_path", type=UserPath(dir_okay=False, allow_dash=True), help="Write all figures as JSON.")
@click.option("--figure", type=UserPath(path_type=Path, dir_okay=False), help="Draw predicted against exact ranks.")
@click.option("--no-baselines", is_flag=True, help="Leave out the handcrafted ranks.")
def evaluate_sorter(
    sorter: str,
    lengths: tuple[int, ...],
    lists: int,
    seed: int,
    json_path: str | None,
    figure: Path | None,
    no_baselines: bool,
) -> None:
    """Measure SORTER, a shipped name or a file, beside the handcrafted ranks."""
    from sodeep import evaluation

    _check_outputs(json_path, figure)
    rank_fn = sodeep.load_sorter(sorter)
    if rank_fn.seq_len is not None:
        wrong = [n for n in lengths if n != rank_fn.seq_len]
        if wrong:
            raise click.BadParameter(
                f"{wrong[0]} is not the length {rank_fn.seq_len} this {rank_fn.name} sorter was built for.",
                param_hint="--lengths",
            )
        lengths = (rank_fn.seq_len,)
    n = rank_fn.seq_len or 100
    functions: dict[str, Any] = {Path(sorter).stem: rank_fn, **({} if no_baselines else evaluation.handcrafted())}
    progress = Progress("measuring")
    reports = evaluation.evaluate_all(
        functions, lengths=lengths or evaluation.LENGTHS, n=n, lists=lists, seed=seed, on_progress=progress.update
    )
    progress.close()
    if json_path is not None:
        text = json.dumps(
            {"n": n, "lists": lists, "seed": seed, "results": [report.to_dict() for report in reports]}, indent=2
        )
        if json_path == "-":
            click.echo(text)
        else:
            Path(json_path).write_text(text + "\n", encoding="utf-8")
    if json_path != "-":  # stdout is to be JSON alone
        click.echo(evaluation.format_table(reports[0], reports[1:], n))
    if figure is not None:
        from sodeep.rank_plot import plot_ranks

        drawn = {name: sodeep.generators.draw({name: 1.0}, 1, n, _generator())[0] for name in sodeep.DEFAULT}
        plot_ranks(drawn, {name: rank_fn(x) for name, x in drawn.items()}).savefig(figure, dpi=120)
        click.echo(f"\nFigure: {figure}", err=json_path == "-")


def _check_outputs(json_path: str | None, figure: Path | None) -> None:
    """The files can be written: checked before minutes of measurements."""
    from sodeep._core.checks import check_writable

    for option, path in (
        ("--json", None if json_path in (None, "-") else Path(str(json_path))),
        ("--figure", figure),
    ):
        if path is not None:
            check_writable(path, option)
    if figure is not None:
        with needed("matplotlib", "--figure"):
            from matplotlib.figure import Figure
        formats = Figure().canvas.get_supported_filetypes()
        if figure.suffix.removeprefix(".").lower() not in formats:
            raise click.BadParameter(f"{figure} must end in one of .{', .'.join(formats)}.", param_hint="--figure")


@click.command("import-sorter")
@click.argument("checkpoint", type=UserPath(path_type=Path))
@click.argument("out", type=UserPath(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace OUT.")
def import_sorter(checkpoint: Path, out: Path, overwrite: bool) -> None:
    """Convert CHECKPOINT, written by the 2019 training script, to OUT (.safetensors), running no code from it."""
    from sodeep._core.checks import check_free, check_writable

    check_free(out, overwrite)
    check_writable(out)
    sorter = sodeep.import_sodeep2019(checkpoint)
    sodeep.save_sorter(out, sorter, training={**sorter.trained, "imported_from": checkpoint.name})
    length = "any length" if sorter.seq_len is None else f"n = {sorter.seq_len}"
    click.echo(f"Wrote {out}: {sorter.name}, {length}.")


@click.command("export-sorter")
@click.argument("sorter")
@click.argument("out", type=UserPath(path_type=Path))
@click.option("--n", type=int, help="Fix the length of the lists; recurrent sorters need it.")
@click.option("--mask", is_flag=True, help="Give it a mask as a second input, True at real items, for unequal lengths.")
@click.option("--overwrite", is_flag=True, help="Replace OUT.")
def export_sorter(sorter: str, out: Path, n: int | None, mask: bool, overwrite: bool) -> None:
    """Write SORTER, a shipped name or a file, as a program OUT that runs without sodeep.

    OUT ends in .pt2 (torch.export) or in .onnx (ONNX).
    """
    from sodeep._core.checks import check_free

    check_free(out, overwrite)
    sodeep.export_sorter(out, sodeep.load_sorter(sorter), n, mask=mask)
    inputs = ("scores", "mask") if mask else ("scores",)
    named = ", ".join(f'"{name}": {name}' for name in inputs)
    call = (
        f'torch.export.load("{out}").module()({", ".join(inputs)})'
        if out.suffix == ".pt2"
        else f'onnxruntime.InferenceSession("{out}").run(["ranks"], {{{named}}})'
    )
    click.echo(f"Wrote {out}. Use it:  {call}, float32 (lists, n){' and bool' if mask else ''}")


COMMANDS = (train_sorter, list_sorters, evaluate_sorter, import_sorter, export_sorter)
"""All of this module, in the order of the help."""
