"""What the metrics of a report are, in a line each."""

from __future__ import annotations

import re
from collections.abc import Iterable

_DEFINITIONS = {
    r"mAP": "mean average precision: over the queries or labels, the precision at each relevant item, averaged",
    r"mAP@R": "of a query with R relevant items, the precision at each relevant one among the first R, over R; mean",
    r"R-precision": "of a query with R relevant items, the fraction of the first R that is relevant; mean",
    r"R@(\d+)": "hit rate: the fraction of queries with a relevant item among the first \\1 (recall at k is another)",
    r"R@1 mean": "mean of R@1 from images to captions and from captions to images",
    r"median rank": "of the first right item, over the queries",
    r"ASP": "how well an order agrees with that of semantic scores, here by shared codes (Li et al. 2022)",
    r"ASP mean": "the same by the mean of CIDEr, BLEU and ROUGE-L of the captions",
    r"ASP (.+)": "the same by \\1 of the captions",
    r"PMRP": "plausible-match R-precision: items whose codes differ in at most 0, 1 or 2 places count as right",
    r"mAP (easy|medium|hard)": "mean average precision of the revisited protocol \\1, by trapezoids",
    r"mP@(\d+) (easy|medium|hard)": "mean precision among the first \\1, protocol \\2",
    r"AP micro": "average precision of all pairs of item and label in one list",
    r"Spearman": "Spearman's correlation of predictions and targets; within each group where there are groups",
    r"Kendall": "Kendall's tau-b within each group; mean",
    r"MAE": "mean absolute error of the values",
    r"MAE fitted": "the same after the straight line that fits the validation split best",
    r"nDCG@(\d+)": "normalised discounted cumulative gain of the first \\1 of a group, gain 2^grade - 1; mean",
    r"MRR": "mean reciprocal rank of the first relevant item of a group",
}
"""Regular expression of a name -> its definition."""


def definitions(metrics: Iterable[str]) -> dict[str, str]:
    """Name -> definition of those that are known; both directions, and values in folds, share one.

    >>> definitions(["i2t R@5", "t2i R@5 in folds", "of my own"])  # doctest: +ELLIPSIS
    {'R@5': 'hit rate: the fraction of queries...', 'i2t': 'from images to captions', 't2i': 'from captions to images'}
    """
    names = list(metrics)
    bare = dict.fromkeys(re.sub(r"^(i2t|t2i) | in folds$", "", name) for name in names)
    found = {name: text for name in bare if (text := _definition(name)) is not None}
    return found | {short: text for short, text in _DIRECTIONS.items() if any(name.startswith(short) for name in names)}


_DIRECTIONS = {"i2t": "from images to captions", "t2i": "from captions to images"}


def _definition(name: str) -> str | None:
    matches = ((re.fullmatch(pattern, name), text) for pattern, text in _DEFINITIONS.items())
    return next((match.expand(text) for match, text in matches if match is not None), None)
