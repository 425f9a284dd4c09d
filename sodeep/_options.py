"""Kinds of options that several commands have."""

from __future__ import annotations

import os
from typing import Any

import click


class UserPath(click.Path):
    """A path in which ``~`` is the home folder, also in ``--out=~/x``, which a shell leaves as it is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        return super().convert(os.path.expanduser(value), param, ctx)
