"""Folders that become repositories of the Hugging Face Hub: a sorter file and its card."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sodeep._core.checks import is_number, user_path
from sodeep._core.files import write_atomic
from sodeep.checkpoint.format import read_header, save_sorter
from sodeep.checkpoint.hub import FILE
from sodeep.sorters.base import Sorter

CARD = """\
---
library_name: sodeep
tags:
- ranking
- differentiable-sorting
---

# A {sorter} sorter

A network that maps the scores of a list ({lengths}) to their ranks, 1 for the highest, with a gradient: a rank function
for the losses of sodeep, which wrote this page and the file.

```python
import sodeep

rank_fn = sodeep.load_sorter("hf://USER/NAME")  # needs huggingface_hub
loss_fn = sodeep.SpearmanLoss(rank_fn)
```

{figures}`{file}` holds the weights and, as JSON in its metadata, what rebuilds the network and how it was trained.
Reading it runs no code from it.
"""


def save_pretrained(
    folder: str | os.PathLike[str],
    sorter: Sorter,
    training: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write a sorter to a folder in the layout of a Hugging Face repository, made if need be.

    ``model.safetensors`` is what `save_sorter` writes; ``README.md``, its card, is written where there is none yet, for
    you to complete. `load_sorter` takes the folder and, once uploaded (``huggingface_hub.upload_folder``, or
    ``hf upload USER/NAME FOLDER``), ``hf://USER/NAME``.

    Args:
        folder: where.
        sorter, training, dtype: as in `save_sorter`.

    Returns:
        The folder.

    Raises:
        TypeError, ValueError: as from `save_sorter`.
        OSError: the folder cannot be made or written to.

    Example:
        >>> import tempfile
        >>> from sodeep import build_sorter, load_sorter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_pretrained(folder, build_sorter("gru-sum"))
        ...     files = sorted(file.name for file in path.iterdir())
        ...     sorter = load_sorter(folder)
        >>> files, sorter.name
        (['README.md', 'model.safetensors'], 'gru-sum')
    """
    path = user_path(folder)
    path.mkdir(parents=True, exist_ok=True)
    card = read_header(save_sorter(path / FILE, sorter, training, dtype))
    if not (path / "README.md").exists():
        length = "of any length" if card.seq_len is None else f"of {card.seq_len} items"
        errors = card.training.get("errors")
        error = errors.get("validation") if isinstance(errors, Mapping) else None
        figures = f"Mean |rank error| / n on the validation lists: {error:.4f}. " if is_number(error) else ""
        text = CARD.format(sorter=card.sorter, lengths=length, figures=figures, file=FILE)
        write_atomic(path / "README.md", text.encode())
    return path
