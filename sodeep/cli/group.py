"""The command group ``sodeep``, its error messages, and the types of its option values."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

import sodeep
from sodeep._core.extras import MissingPackageError


class _Group(click.Group):
    """A user's mistake is one line on stderr, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # handled by click
        except sodeep.TrainingInterrupted as stop:
            kept = f" Its state is in {stop.checkpoint}: go on with --resume." if stop.checkpoint else ""
            click.echo(f"Stopped after step {stop.step}.{kept}", err=True)
            sys.exit(128 + stop.signum)
        except (ValueError, TypeError, OSError, FloatingPointError, MissingPackageError) as error:
            raise click.ClickException(_message(error)) from error
        except (MemoryError, RuntimeError) as error:
            if not _is_too_large(error):
                raise
            raise click.ClickException(f"There is not enough memory for this: {_first_line(error)}") from error


def _is_too_large(error: Exception) -> bool:
    """Whether an array was too large for the memory; of PyTorch, that is a RuntimeError with one of several texts."""
    return isinstance(error, MemoryError) or any(
        word in str(error) for word in ("not enough memory", "allocate memory", "out of memory", "Storage size")
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _message(error: Exception) -> str:
    """The message of an error, with options of the command line in place of arguments."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    from sodeep._core.checks import reworded

    return reworded(error, _option)


def _option(name: str, value: object) -> str:
    """An argument as an option of the command line."""
    option = "--" + name.replace("_", "-")
    return option if value is None or value is True else f"{option} {value}"


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A time such as 90, 90s, 30m or 2h."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds, from a number with or without its unit."""
        if isinstance(value, float):
            return value
        number, unit = (value[:-1], value[-1]) if value[-1:] in ("s", "m", "h") else (value, "s")
        try:
            return float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
        except ValueError:
            self.fail(f"{value!r} is not a time. Write seconds, or 90s, 30m, 2h.", param, ctx)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(sodeep.__version__, prog_name="sodeep")
def main() -> None:
    """Differentiable ranks: train, evaluate and convert sorters; compare losses."""


class UserPath(click.Path):
    """A path in which ``~`` is the home folder, also in ``--out=~/x``, which a shell leaves as it is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        return super().convert(os.path.expanduser(value), param, ctx)
