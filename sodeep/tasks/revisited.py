"""Revisited Oxford and Paris: ground truth, its three protocols and the average precision of these benchmarks.

Radenović et al., "Revisiting Oxford and Paris: large-scale image retrieval benchmarking", CVPR 2018. 70 queries each;
an image may show the query easily, hardly, or in a way that counts neither as right nor as wrong (junk).

    truth = read_revisited("gnd_roxford5k.pkl")
    relevant, where = truth.relevance("medium")
    trapezoidal_ap(queries @ gallery.t(), relevant, where).nanmean()
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sodeep._checks import check_choice, check_finite, check_scores, check_where, user_path
from sodeep._lists import as_relevance
from sodeep._plain_pickle import NotPlainError, read_plain_pickle

_REVISITED = "the 'Revisiting Oxford and Paris' page (Radenović et al. 2018), with the images of Oxford5k and Paris6k"


@dataclass(frozen=True)
class RevisitedSet:
    """Ground truth of Revisited Oxford or Paris: for each query, gallery images that show it, and how clearly."""

    queries: list[str]
    """Names of the query images, Q of them."""
    gallery: list[str]
    """Names of the gallery images, N of them."""
    boxes: list[tuple[float, float, float, float] | None]
    """Where the query is in its image, (left, top, right, bottom): only this part may be described."""
    easy: list[list[int]]
    hard: list[list[int]]
    junk: list[list[int]]
    """Indices in the gallery, a list for each query."""

    def relevance(self, protocol: str) -> tuple[Tensor, Tensor]:
        """What counts as right, and what counts at all, under a protocol.

        | protocol | right | left out |
        |---|---|---|
        | easy | easy | junk, hard |
        | medium | easy, hard | junk |
        | hard | hard | junk, easy |

        Args:
            protocol: "easy", "medium" or "hard".

        Returns:
            `relevant` and `where`, both (Q, N) and boolean, for `trapezoidal_ap` and every metric of `sodeep.metrics`.
            A query without a right image under the protocol has NaN there and belongs in no mean: `.nanmean()`.

        Raises:
            ValueError: an unknown protocol.

        Example:
            >>> truth = RevisitedSet(["q"], ["a", "b", "c", "d"], [None], easy=[[0]], hard=[[2]], junk=[[3]])
            >>> relevant, where = truth.relevance("hard")
            >>> relevant, where
            (tensor([[False, False,  True, False]]), tensor([[False,  True,  True, False]]))
        """
        check_choice(protocol, ("easy", "medium", "hard"), "protocol")
        easy, hard, junk = (self._mask(indices) for indices in (self.easy, self.hard, self.junk))
        relevant = {"easy": easy, "medium": easy | hard, "hard": hard}[protocol]
        left_out = {"easy": junk | hard, "medium": junk, "hard": junk | easy}[protocol]
        return relevant, ~left_out

    def _mask(self, indices: list[list[int]]) -> Tensor:
        mask = torch.zeros(len(self.queries), len(self.gallery), dtype=torch.bool)
        for row, columns in zip(mask, indices, strict=True):
            row[columns] = True
        return mask


def read_revisited(path: str | os.PathLike[str]) -> RevisitedSet:
    """Ground truth of Revisited Oxford (gnd_roxford5k.pkl) or Paris (gnd_rparis6k.pkl), 70 queries each.

    The file is a pickle of dicts, lists, strings, numbers and arrays. It is not unpickled: a reader of such data reads
    it, and refuses a file that holds anything else. JSON of the same structure is read as well.

    Args:
        path: the .pkl or .json file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file holds something else; the message says what was expected.
    """
    path = user_path(path)
    expected = "a dict of imlist, qimlist and gnd, and in gnd for each query easy, hard, junk and bbx"
    if not path.is_file():
        raise FileNotFoundError(f"`path` must be a ground truth file, {expected}, got '{path}', which is not there. "
                                f"The data are {_REVISITED}.")  # fmt: skip

    def wrong(found: str) -> ValueError:
        return ValueError(f"`path` must be {expected}, got '{path}': {found}. The data are {_REVISITED}.")

    try:
        data = json.loads(path.read_bytes()) if path.suffix == ".json" else read_plain_pickle(path)
        gallery, queries, truth = ([*data[key]] for key in ("imlist", "qimlist", "gnd"))
        lists = {key: [[int(i) for i in entry[key]] for entry in truth] for key in ("easy", "hard", "junk")}
        boxes = [_box(entry.get("bbx")) for entry in truth]
    except NotPlainError as error:
        raise wrong(str(error)) from None
    except KeyError as error:
        raise wrong(f"there is no {error}") from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise wrong(str(error)) from None
    if len(truth) != len(queries):
        raise wrong(f"{len(queries)} queries and {len(truth)} entries of gnd")
    last = max((i for rows in lists.values() for row in rows for i in row), default=0)
    first = min((i for rows in lists.values() for row in rows for i in row), default=0)
    if first < 0 or last >= len(gallery):
        raise wrong(f"indices from {first} to {last} in a gallery of {len(gallery)} images")
    return RevisitedSet([str(q) for q in queries], [str(g) for g in gallery], boxes, **lists)


def _box(values: Any) -> tuple[float, float, float, float] | None:
    if values is None:
        return None
    left, top, right, bottom = (float(v) for v in values)
    return left, top, right, bottom


@torch.no_grad()
def trapezoidal_ap(scores: Tensor, relevant: Tensor, where: Tensor | None = None) -> Tensor:
    """Average precision as the Oxford and Paris benchmarks take it: the area under the curve, by trapezoids.

    The precision at a relevant item is the mean of that just above it and that at it:
    AP = 1/R * sum over relevant i of ((h_i - 1)/(r_i - 1) + h_i/r_i)/2, with r_i the rank of i among the items that
    count and h_i the relevant ones at or above it; 0/0 counts as 1. It differs from `sodeep.metrics.average_precision`,
    and published figures of these benchmarks are this one. A group of tied items is one trapezoid, whatever the order
    in it; the published code, which has no ties in mind, takes them in the order in which they stand.

    Args:
        scores: (..., N), floating point, higher = better.
        relevant: (..., N), boolean.
        where: (..., N), boolean, True = an item that counts: the benchmarks' junk images are False.

    Returns:
        (...), in [0, 1], float64 for float64 scores and float32 otherwise. NaN for a list without a relevant item.

    Raises:
        TypeError: `scores` are not floating point, or `where` is not boolean.
        ValueError: shapes differ, or an item that counts is NaN or infinite.

    Example:
        >>> scores = torch.tensor([3.0, 2.0, 1.0])
        >>> trapezoidal_ap(scores, torch.tensor([False, True, True]))  # ((0/1 + 1/2)/2 + (1/2 + 2/3)/2) / 2
        tensor(0.4167)
    """
    check_scores(scores)
    real = check_where(where, scores)
    if real is None:
        real = torch.ones_like(scores, dtype=torch.bool)
    check_finite(scores, real)
    relevant = as_relevance(relevant, scores) & real
    wide = scores.masked_fill(~real, -math.inf).to(torch.float64)
    values, order = wide.sort(dim=-1, descending=True)
    seen = real.gather(-1, order).cumsum(-1)
    hits = relevant.gather(-1, order).cumsum(-1)

    new = torch.ones_like(real)
    new[..., 1:] = values[..., 1:] != values[..., :-1]
    last = new.roll(-1, -1)  # the last item of a group of ties stands before the first of the next
    position = torch.arange(scores.shape[-1], device=scores.device).expand(scores.shape)
    start = position.masked_fill(~new, 0).cummax(-1).values
    # counts above the group: those at the item before its first
    above, hits_above = (
        torch.cat([count.new_zeros(*count.shape[:-1], 1), count], -1).gather(-1, start) for count in (seen, hits)
    )
    before = torch.where(above > 0, hits_above / above.clamp(min=1).double(), 1.0)
    at = hits / seen.clamp(min=1).double()
    area = ((hits - hits_above) * (before + at) / 2).masked_fill(~last, 0).sum(-1)
    ap = area / hits[..., -1]  # 0 / 0 = NaN
    return ap.to(torch.float64 if scores.dtype == torch.float64 else torch.float32)
