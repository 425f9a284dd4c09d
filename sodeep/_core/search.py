"""The settings that a loss is tried with: its declared ranges, and an equal number of points in them for every loss.

The first setting is the default of every range; the others are points of a Halton sequence, which covers ranges of a
few dimensions more evenly than a grid or random draws. They depend on the number of ranges alone: the first settings of
a longer search are those of a shorter one, and what two losses have first, the learning rate, is the same for both.

>>> ranges = {"lr": Range(1e-4, 1e-2, 1e-3), "weight": Range(0.01, 1, 0.1, zero=True)}
>>> for settings in trial_settings(ranges, trials=3):
...     print(settings)
{'lr': 0.001, 'weight': 0.1}
{'lr': 0.000158, 'weight': 0.0}
{'lr': 0.00158, 'weight': 0.2}
>>> edge_of(ranges, {"lr": 0.00011, "weight": 0.0})
{'lr': 'low'}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sodeep._core.checks import describe

EDGE = 0.1
"""A chosen value in this outer fraction of its range, on either side, is at the edge: the best may lie outside."""

ZEROS = 0.2
"""The fraction of the trials that have 0 where a range includes it."""


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`.

    Attributes:
        low: the lowest value.
        high: the highest value.
        default: what is tried first, and what a part of a schedule takes that is not searched.
        log: whether draws, and the width of an edge, are even in the logarithm.
        zero: whether 0 is tried too, below a `low` above it.
        whole: whether values are whole numbers.

    Raises:
        ValueError: an empty range, or a default outside it.
    """

    low: float
    high: float
    default: float
    log: bool = True
    zero: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not (self.low < self.high and math.isfinite(self.high - self.low)) or (self.log and self.low <= 0):
            above = ", above 0" * self.log
            raise ValueError(f"A range must go from a lower to a higher number{above}, got {self.low} to {self.high}.")
        if not (self.low <= self.default <= self.high or (self.zero and self.default == 0)):
            raise ValueError(
                f"The default of a range must be in it, got {describe(self.default)} for {self.low} to {self.high}."
            )

    def at(self, place: float) -> float:
        """The value at a place in [0, 1), to three digits."""
        if self.zero:
            place = (place - ZEROS) / (1 - ZEROS)
            if place < 0:
                return 0.0
        low, span = self.low, self.high - self.low
        value = low * (self.high / low) ** place if self.log else low + span * place
        return round(value) if self.whole else float(f"{value:.3g}")

    def edge(self, value: float) -> str | None:
        """At which edge of the range a value is, "low" or "high"; 0 is at none where the range includes it."""
        if self.zero and value == 0:
            return None
        low, high, at = (math.log(x) if self.log else x for x in (self.low, self.high, max(value, self.low)))
        place = (at - low) / (high - low)
        return "low" if place < EDGE and not self.zero else "high" if place > 1 - EDGE else None


@dataclass(frozen=True)
class Choice:
    """A few values to choose from, the default first. No value is at an edge."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("A choice must have a value, got none.")

    @property
    def default(self) -> Any:
        """What is tried first."""
        return self.values[0]

    def at(self, place: float) -> Any:
        """The value at a place in [0, 1)."""
        return self.values[int(place * len(self.values))]

    def edge(self, value: Any) -> None:
        """No value is at an edge."""


Ranges = Mapping[str, Range | Choice]
"""Name of a setting -> the values it may take."""


def declared_range(values: object) -> Range | Choice:
    """What a class declares for a setting: a `Range` or `Choice`, a pair (low, high), or a list of choices.

    A pair of whole numbers is a range of whole numbers; one above 0 is even in the logarithm.

    Raises:
        TypeError, ValueError: it is none of these.

    >>> declared_range((1e-4, 1e-2))
    Range(low=0.0001, high=0.01, default=0.001, log=True, zero=False, whole=False)
    """
    if isinstance(values, (Range, Choice)):
        found: Range | Choice = values
    elif isinstance(values, tuple) and len(values) == 2:
        low, high = values
        middle = (low * high) ** 0.5 if low > 0 else (low + high) / 2
        whole = isinstance(low, int) and isinstance(high, int)
        found = Range(low, high, round(middle) if whole else float(f"{middle:.3g}"), log=low > 0, whole=whole)
    elif isinstance(values, list):
        found = Choice(tuple(values))
    else:
        raise TypeError("A pair of numbers in round brackets is a range; choices are a list in square ones.")
    plain = (str, int, float, type(None))
    if isinstance(found, Choice) and not all(isinstance(value, plain) for value in found.values):
        raise ValueError("Choices are strings, numbers, True, False or None, which can be kept with a run.")
    return found


def default_settings(ranges: Ranges) -> dict[str, Any]:
    """The default of every range."""
    return {name: values.default for name, values in ranges.items()}


def trial_settings(ranges: Ranges, trials: int) -> list[dict[str, Any]]:
    """`trials` settings, the defaults first; fewer where they would be the same."""
    settings = [default_settings(ranges)]
    if ranges and trials > 1:
        from scipy.stats import qmc

        # scrambled, as the plain sequence moves along diagonals where it is short; the seed is part of the method
        points = qmc.Halton(len(ranges), scramble=True, seed=0).random(trials - 1)
        settings += [
            {name: values.at(float(place)) for (name, values), place in zip(ranges.items(), point, strict=True)}
            for point in points
        ]
    return [some for place, some in enumerate(settings) if some not in settings[:place]]


def with_limits(ranges: Ranges, limits: Mapping[str, tuple[float, float]]) -> dict[str, Range | Choice]:
    """The ranges, those that `limits` names between other values; a default outside them moves to the nearer end.

    >>> with_limits({"width": Range(0.05, 2.0, 0.3)}, {"width": (0.5, 8.0), "margin": (0, 1)})
    {'width': Range(low=0.5, high=8.0, default=0.5, log=True, zero=False, whole=False)}

    Raises:
        ValueError: no range from a lower to a higher number, above 0 for one in the logarithm.
    """
    changed = dict(ranges)
    for name, (low, high) in limits.items():
        old = ranges.get(name)
        if isinstance(old, Range):
            default = old.default if old.zero and old.default == 0 else min(max(old.default, low), high)
            changed[name] = replace(old, low=low, high=high, default=default)
    return changed


def edge_of(ranges: Ranges, settings: Mapping[str, Any]) -> dict[str, str]:
    """Which settings are at an edge of their range: name -> "low" or "high"."""
    edges = {name: values.edge(settings[name]) for name, values in ranges.items() if name in settings}
    return {name: edge for name, edge in edges.items() if edge is not None}
