"""Score lists to train a sorter on: synthetic ones, drawn on the device in whole batches, and a user's own.

A *distribution* is any function ``(batch, n, generator) -> scores (batch, n)``, float32 on the device of the
`torch.Generator`; the same generator state gives the same scores. A *mixture* is a dict of weights over the names in
`DISTRIBUTIONS`; `draw` picks the distribution of each row by them. The target ranks are `sodeep.ranks.exact_rank` of
what was drawn.

Example:
    >>> import torch
    >>> from sodeep.generators import draw
    >>> generator = torch.Generator().manual_seed(0)
    >>> draw({"uniform": 3, "ties": 1}, batch=256, n=100, generator=generator).shape
    torch.Size([256, 100])
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

from sodeep._core.arrays import read_npy
from sodeep._core.checks import check_at_least, check_choice, describe, is_number, user_path

Distribution: TypeAlias = Callable[[int, int, Generator], Tensor]

USER = "user"
"""The name by which a mixture weighs the user's own lists."""


def _rand(generator: Generator, *shape: int) -> Tensor:
    """Uniform on [0, 1)."""
    return torch.rand(*shape, generator=generator, device=generator.device)


def _randn(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, device=generator.device)


def _per_row(generator: Generator, batch: int, low: float, high: float) -> Tensor:
    """One parameter a row, (batch, 1), uniform on [low, high)."""
    return low + (high - low) * _rand(generator, batch, 1)


def _per_row_count(generator: Generator, batch: int, low: int, high: int) -> Tensor:
    """One whole number a row, (batch, 1), log-uniform on low ... high."""
    high = max(low, high)
    exponent = _per_row(generator, batch, math.log(low), math.log(high + 1))
    return exponent.exp().long().clamp(low, high)


def _signs(generator: Generator, batch: int) -> Tensor:
    """-1 or 1 for each row, (batch, 1)."""
    return 2.0 * (_rand(generator, batch, 1) < 0.5) - 1


def _positions(n: int, generator: Generator) -> Tensor:
    """0 ... n - 1, as float32."""
    return torch.arange(n, dtype=torch.float32, device=generator.device)


def _permutations(batch: int, n: int, generator: Generator) -> Tensor:
    return _rand(generator, batch, n).argsort(-1)


def _head_lengths(batch: int, n: int, generator: Generator) -> Tensor:
    """Where a list of two parts is split: the first part has 1 ... n items, each as likely, (batch, 1)."""
    return torch.randint(1, n + 1, (batch, 1), generator=generator, device=generator.device)


# ---- the three distributions of the paper, and lists put together from them ------------------------------------------


def uniform(batch: int, n: int, generator: Generator) -> Tensor:
    """Independent, uniform on [-1, 1]."""
    return 2 * _rand(generator, batch, n) - 1


def normal(batch: int, n: int, generator: Generator) -> Tensor:
    """Independent, standard normal."""
    return _randn(generator, batch, n)


def even(batch: int, n: int, generator: Generator, low: float = -1.0) -> Tensor:
    """Evenly spaced between two random ends in [low, 1], shuffled."""
    return even_sorted(batch, n, generator, low).gather(-1, _permutations(batch, n, generator))


def even_sorted(batch: int, n: int, generator: Generator, low: float = -1.0) -> Tensor:
    """Evenly spaced between two random ends in [low, 1], rising or falling."""
    start = _per_row(generator, batch, low, 1)
    end = _per_row(generator, batch, low, 1)
    return start + (end - start) * (_positions(n, generator) / n)


def concat(batch: int, n: int, generator: Generator) -> Tensor:
    """Two different ones of uniform, normal and even, one after the other, split at random."""
    parts = torch.stack([part(batch, n, generator) for part in (uniform, normal, even)], dim=1)  # (batch, 3, n)
    first, second, _ = _permutations(batch, 3, generator).unbind(-1)
    rows = torch.arange(batch, device=generator.device)
    in_head = _positions(n, generator) < _head_lengths(batch, n, generator)
    return torch.where(in_head, parts[rows, first], parts[rows, second])


# ---- lists that the mixture of 2019 does not have --------------------------------------------------------------------


def ties(batch: int, n: int, generator: Generator) -> Tensor:
    """Few distinct values in random order: 2 ... n / 2 normal ones a list, log-uniform."""
    distinct = _per_row_count(generator, batch, 2, n // 2)
    which = (_rand(generator, batch, n) * distinct).long().clamp(max=n - 1)
    return _randn(generator, batch, n).gather(-1, which)


def runs(batch: int, n: int, generator: Generator) -> Tensor:
    """Stretches of equal values: a new normal one starts at each position with a chance of 1/n ... 1/2, log-uniform."""
    chance = 1 / _per_row_count(generator, batch, 2, n)
    run = (_rand(generator, batch, n) < chance).cumsum(-1).clamp(max=n - 1)
    return _randn(generator, batch, n).gather(-1, run)


def constant(batch: int, n: int, generator: Generator) -> Tensor:
    """One normal value for the whole list: every rank is (n + 1) / 2."""
    return _randn(generator, batch, 1).repeat(1, n)


def scaled(batch: int, n: int, generator: Generator) -> Tensor:
    """Normal or uniform, times a scale of 1e-6 ... 1e6, plus an offset of up to 3,000 times that scale."""
    shape = torch.where(_rand(generator, batch, 1) < 0.5, uniform(batch, n, generator), normal(batch, n, generator))
    offset = _signs(generator, batch) * 10 ** _per_row(generator, batch, -2, 3.5)
    return 10 ** _per_row(generator, batch, -6, 6) * (shape + offset)


def skewed(batch: int, n: int, generator: Generator) -> Tensor:
    """Log-normal with sigma in [0.25, 2], or a power in [0.5, 2] of an exponential, the long tail on either side."""
    log_normal = (_per_row(generator, batch, 0.25, 2) * _randn(generator, batch, n)).exp()
    # 1 - rand is on (0, 1]: the logarithm is finite
    weibull = (-(1 - _rand(generator, batch, n)).log()) ** _per_row(generator, batch, 0.5, 2)
    return _signs(generator, batch) * torch.where(_rand(generator, batch, 1) < 0.5, log_normal, weibull)


def heavy_tailed(batch: int, n: int, generator: Generator) -> Tensor:
    """Student's t with 1 (Cauchy) ... 5 degrees of freedom, log-uniform.

    By the polar method of Bailey (Mathematics of Computation 62, 1994): with U and V uniform on (0, 1],
    sqrt(d (U^(-2/d) - 1)) cos(2 pi V) has d degrees of freedom. U is at least 2^-24 in float32: nothing is infinite.
    """
    degrees = 5 ** _rand(generator, batch, 1)
    radius = (degrees * ((1 - _rand(generator, batch, n)) ** (-2 / degrees) - 1)).sqrt()
    return radius * (2 * math.pi * _rand(generator, batch, n)).cos()


def clusters(batch: int, n: int, generator: Generator) -> Tensor:
    """2 ... 10 tight clusters around normal centres, each with its own width of 1e-4 ... 1e-1."""
    most = 10
    count = _per_row_count(generator, batch, 2, most)
    which = (_rand(generator, batch, n) * count).long().clamp(max=most - 1)
    centre = _randn(generator, batch, most).gather(-1, which)
    width = (10 ** (-4 + 3 * _rand(generator, batch, most))).gather(-1, which)
    return centre + width * _randn(generator, batch, n)


def similarities(batch: int, n: int, generator: Generator) -> Tensor:
    """Like cosine similarities of a query: most near 0 with a spread of 0.1 ... 0.3, up to a tenth near 0.75."""
    spread = _per_row(generator, batch, 0.1, 0.3)
    others = _per_row(generator, batch, -0.05, 0.15) + spread * _randn(generator, batch, n)
    relevant = 0.75 + 0.1 * _randn(generator, batch, n)
    is_relevant = _rand(generator, batch, n) < _per_row(generator, batch, 0, 0.1)
    return torch.where(is_relevant, relevant, others).clamp(-1, 1)


def nearly_sorted(batch: int, n: int, generator: Generator) -> Tensor:
    """A rising or falling list, uniform on [-1, 1], plus normal noise of 1e-3 ... 1e-1."""
    rising = uniform(batch, n, generator).sort(-1).values
    noise = 10 ** _per_row(generator, batch, -3, -1) * _randn(generator, batch, n)
    return _signs(generator, batch) * rising + noise


def bimodal(batch: int, n: int, generator: Generator) -> Tensor:
    """Two normals, as of two classes, 2 ... 10 apart; a tenth to nine tenths of the list in the upper one."""
    in_upper = _rand(generator, batch, n) < _per_row(generator, batch, 0.1, 0.9)
    upper = _per_row(generator, batch, 2, 10) + _per_row(generator, batch, 0.25, 1) * _randn(generator, batch, n)
    return torch.where(in_upper, upper, _randn(generator, batch, n))


# ---- what only the mixture of 2019 has -------------------------------------------------------------------------------


def _even_2019(batch: int, n: int, generator: Generator) -> Tensor:
    """Evenly spaced between two random ends in [0, 1], shuffled."""
    return even(batch, n, generator, low=0)


def _even_sorted_2019(batch: int, n: int, generator: Generator) -> Tensor:
    """Evenly spaced between two random ends in [0, 1], rising or falling."""
    return even_sorted(batch, n, generator, low=0)


def _uniform_normal_2019(batch: int, n: int, generator: Generator) -> Tensor:
    """Uniform on [-1, 1] up to a random position, standard normal after it."""
    in_head = _positions(n, generator) < _head_lengths(batch, n, generator)
    return torch.where(in_head, uniform(batch, n, generator), normal(batch, n, generator))


def _even_uniform_2019(batch: int, n: int, generator: Generator) -> Tensor:
    """Shuffled and evenly spaced between two ends in [0, 1] up to a random position, uniform on [-1, 1] after it."""
    head = _head_lengths(batch, n, generator)
    in_head = _positions(n, generator) < head
    # the keys of the tail are all above those of the head, so the first `head` entries permute 0 ... head - 1
    order = (_rand(generator, batch, n) + ~in_head).argsort(-1)
    start, end = _per_row(generator, batch, 0, 1), _per_row(generator, batch, 0, 1)
    return torch.where(in_head, start + (end - start) * (order / head), uniform(batch, n, generator))


def _ramp_2019(batch: int, n: int, generator: Generator) -> Tensor:
    """The same rising list each time: -1, -1 + 2/n, ..., 1 - 2/n."""
    return ((2 * _positions(n, generator) - n) / n).repeat(batch, 1)


DISTRIBUTIONS: dict[str, Distribution] = {
    "uniform": uniform,
    "normal": normal,
    "even": even,
    "even-sorted": even_sorted,
    "concat": concat,
    "ties": ties,
    "runs": runs,
    "constant": constant,
    "scaled": scaled,
    "skewed": skewed,
    "heavy-tailed": heavy_tailed,
    "clusters": clusters,
    "similarities": similarities,
    "nearly-sorted": nearly_sorted,
    "bimodal": bimodal,
    "even-2019": _even_2019,
    "even-sorted-2019": _even_sorted_2019,
    "uniform-normal-2019": _uniform_normal_2019,
    "even-uniform-2019": _even_uniform_2019,
    "ramp-2019": _ramp_2019,
}

DEFAULT: dict[str, float] = {
    "uniform": 3.0,
    "normal": 3.0,
    "even": 1.5,
    "even-sorted": 1.0,
    "concat": 1.5,
    "ties": 1.0,
    "runs": 0.5,
    "constant": 0.1,
    "scaled": 1.0,
    "skewed": 1.0,
    "heavy-tailed": 1.0,
    "clusters": 1.0,
    "similarities": 1.0,
    "nearly-sorted": 1.0,
    "bimodal": 1.0,
}
"""The default mixture that sorters are trained on."""

SODEEP2019: dict[str, float] = {
    "uniform": 3.0,
    "normal": 1.0,
    "even-sorted-2019": 1.0,
    "even-2019": 1.0,
    "uniform-normal-2019": 2.0,
    "even-uniform-2019": 1.0,
    "ramp-2019": 1.0,
}
"""The mixture of the code released with SoDeep (Engilberge et al., CVPR 2019): its ten equally likely types, of which
three are uniform on [-1, 1] and two the same concatenation. The distributions are the same, the numbers for a seed are
not."""


def check_mixture(weights: Mapping[str, float], user_scores: bool = False) -> None:
    """Known names, weights that are finite and not negative, at least one above zero.

    Args:
        weights: name -> weight.
        user_scores: whether there are lists of the user's own, which the name "user" weighs.

    Raises:
        ValueError: says which name or weight is wrong, and names the choices.
    """
    for name, weight in weights.items():
        if name == USER and not user_scores:
            raise ValueError(
                f"`weights` must name {USER!r} only when there are scores of your own, got {name}={weight}. "
                "Give them: user_scores=read_scores_file(path), or --scores-file on the command line."
            )
        if name != USER:
            check_choice(name, [*DISTRIBUTIONS, USER], "weights")
        if not is_number(weight) or not 0 <= weight < math.inf:
            raise ValueError(f"`weights` must hold finite numbers of at least 0, got {name}={describe(weight)}.")
    if not any(weights.values()):
        raise ValueError(
            f"`weights` must hold at least one weight above 0, got {describe(dict(weights))}. "
            f"The names are {', '.join([*DISTRIBUTIONS, USER])}."
        )
    if user_scores and not weights.get(USER):
        raise ValueError(
            f"`weights` must give {USER!r} a weight above 0 when user_scores are given, got {describe(dict(weights))}. "
            f"Add it: {{**weights, {USER!r}: 1}}."
        )


def draw(
    weights: Mapping[str, float], batch: int, n: int, generator: Generator, user_scores: UserScores | None = None
) -> Tensor:
    """Score lists of a mixture, in random order of their distributions.

    Args:
        weights: name in `DISTRIBUTIONS` -> weight, for example `DEFAULT` or `SODEEP2019`; they need not sum to one.
            The name "user" stands for the lists in `user_scores`.
        batch: how many lists.
        n: items per list.
        generator: where the randomness comes from. The scores are drawn on its device.
        user_scores: lists of your own, from `read_scores_file`.

    Returns:
        Scores (batch, n), float32, finite. The same generator state gives the same scores.

    Raises:
        ValueError: as `check_mixture`; `batch` or `n` below 1.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> draw({"ramp-2019": 1}, batch=1, n=4, generator=generator)
        tensor([[-1.0000, -0.5000,  0.0000,  0.5000]])
    """
    check_mixture(weights, user_scores is not None)
    check_at_least(batch, 1, "batch")
    check_at_least(n, 1, "n")
    distributions: dict[str, Distribution] = {**DISTRIBUTIONS}
    if user_scores is not None:
        distributions[USER] = user_scores.draw
    probabilities = torch.tensor(list(weights.values()), dtype=torch.float32, device=generator.device)
    chosen = torch.multinomial(probabilities, batch, replacement=True, generator=generator)
    counts = chosen.bincount(minlength=len(weights)).tolist()  # the one wait for the device
    parts = zip(weights, counts, strict=True)
    drawn = torch.cat([distributions[name](count, n, generator) for name, count in parts if count])
    scores = torch.empty_like(drawn)
    scores[chosen.argsort(stable=True)] = drawn
    return scores


def draw_length(low: int, high: int, generator: Generator) -> int:
    """A list length in low ... high, log-uniform: every octave is as likely.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> 10 <= draw_length(10, 1000, generator) <= 1000
        True
    """
    check_at_least(low, 1, "low")
    check_at_least(high, low, "high")
    return int(_per_row_count(generator, 1, low, high))


def parse_weight(text: str) -> tuple[str, float]:
    """A weight as written on the command line: ``"uniform=3"`` -> ``("uniform", 3.0)``; a bare name weighs 1.

    Example:
        >>> parse_weight("heavy-tailed=0.5")
        ('heavy-tailed', 0.5)
    """
    name, equals, number = text.partition("=")
    name = name.strip()
    check_choice(name, [*DISTRIBUTIONS, USER], "distribution")
    try:
        weight = float(number) if equals else 1.0
    except ValueError:
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise ValueError(
            f"`distribution` must be NAME=WEIGHT with a weight of at least 0, got {text!r}. For example {name}=3."
        )
    return name, weight


# ---- a user's own scores ---------------------------------------------------------------------------------------------


class UserScores:
    """Real score lists to train on, as one more distribution.

    A list longer than required gives a random subset (each item at most once) in its own order; a shorter one is drawn
    from with replacement, which adds ties: train at the length of your lists to see them as they are.

    Args:
        rows: the lists, of two or more finite numbers each; lengths may differ.

    Example:
        >>> lists = UserScores([[0.1, 0.9, 0.4], [0.2, 0.7]])
        >>> draw({"user": 1, "normal": 1}, 8, 2, torch.Generator().manual_seed(0), user_scores=lists).shape
        torch.Size([8, 2])
    """

    def __init__(self, rows: Iterable[Sequence[float] | np.ndarray]) -> None:
        with np.errstate(over="ignore"):  # what overflows float32 is refused below, with its row
            lists = [np.asarray(row, dtype=np.float32) for row in rows]
        if not lists:
            raise ValueError("`rows` must hold at least one list, got none.")
        for number, values in enumerate(lists, start=1):
            if values.ndim != 1 or len(values) < 2:
                raise ValueError(
                    f"`rows` must hold lists of two or more numbers, got shape {values.shape} in row {number}."
                )
            if not np.isfinite(values).all():
                raise ValueError(
                    f"`rows` must be finite in float32, got {values[~np.isfinite(values)][0]} in row {number}."
                )
        self.lengths = torch.tensor([len(values) for values in lists])
        self.values = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(v) for v in lists], batch_first=True)

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device | str) -> UserScores:
        """Move the lists to `device` (in place) and return them."""
        self.values, self.lengths = self.values.to(device), self.lengths.to(device)
        return self

    def draw(self, batch: int, n: int, generator: Generator) -> Tensor:
        """(batch, n) scores of lists picked at random; a distribution like any other."""
        self.to(generator.device)
        row = torch.randint(len(self), (batch,), generator=generator, device=generator.device)
        values, lengths = self.values[row], self.lengths[row].unsqueeze(-1)
        longest = values.shape[-1]
        repeated = (_rand(generator, batch, n) * lengths).long().minimum(lengths - 1)
        if n > longest:
            return values.gather(-1, repeated)
        is_pad = torch.arange(longest, device=generator.device) >= lengths
        once = _rand(generator, batch, longest).masked_fill(is_pad, -1).topk(n).indices.sort(-1).values
        return values.gather(-1, torch.where(lengths >= n, once, repeated))


def read_scores_file(path: str | os.PathLike[str]) -> UserScores:
    r"""Read score lists from a file, one list a row; a single column is one list.

    Args:
        path: ``.npy`` with a real array (lists, n) or (n,), or text (``.csv``, ``.tsv``, ``.txt``): numbers between
            commas, semicolons or white space, rows of any length; blank lines, empty cells at the end of a row and a
            first line of names alone are skipped.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: names the file and the row that is not two or more finite numbers, or the columns of a table whose
            names say that they are not lists.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "scores.csv")
        ...     _ = path.write_text("score\n0.7\n0.2\n0.9\n")
        ...     read_scores_file(path).lengths
        tensor([3])
    """
    path = user_path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`path` must be a file of scores (.npy or .csv), got {str(path)!r}: no such file.")
    try:
        return UserScores(_read_npy(path) if path.suffix.lower() == ".npy" else _read_text(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read_npy(path: Path) -> np.ndarray:
    try:
        array = read_npy(path)
    except ValueError as error:
        raise ValueError(f"{error}.") from None
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiub":
        got = f"shape {array.shape}, dtype {array.dtype}"
        raise ValueError(f"the array must be real and 2-D, one list a row, or 1-D, one list, got {got}.")
    return array.reshape(1, -1) if array.ndim == 1 or array.shape[1] == 1 else array


def _read_text(path: Path) -> list[list[float]]:
    rows: dict[int, list[float]] = {}  # by line
    first = True
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        separator = next((s for s in ",;\t" if s in line), None)
        cells = [cell.strip() for cell in line.split(separator)]
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            continue
        if first and not any(map(_is_number, cells)):
            _check_names(cells)
        else:
            rows[number] = _numbers(number, cells)
        first = False
    if all(len(row) == 1 for row in rows.values()):
        return [[value for (value,) in rows.values()]] if rows else []
    for number, row in rows.items():
        if len(row) < 2:
            raise ValueError(f"line {number} must hold two or more numbers, as other lines do, got {describe(row)}.")
    return list(rows.values())


def _numbers(line: int, cells: Sequence[str]) -> list[float]:
    for column, cell in enumerate(cells, start=1):
        if not _is_number(cell):
            raise ValueError(
                f"line {line}, column {column} must be a number, got {cell!r}. One list a row, or one column."
            )
    row = [float(cell) for cell in cells]
    if not all(map(math.isfinite, row)):
        raise ValueError(f"line {line} must hold finite numbers, got {describe(row)}.")
    return row


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _check_names(names: Sequence[str]) -> None:
    """A first line of names is that of one column, or of numbered places in a list (s1, s2, ...); else of a table."""
    if len(names) > 1 and len({name.rstrip("0123456789") for name in names}) > 1:
        shown = ", ".join([*names[:8], *["..."] * (len(names) > 8)])
        raise ValueError(
            f"it must hold lists of scores, one a row, or one column of scores, got a table with the columns {shown}. "
            "Write its scores to a file of their own."
        )
