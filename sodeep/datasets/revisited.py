"""Revisited Oxford and Paris: ground truth, its three protocols and the average precision of these benchmarks.

Radenović et al., "Revisiting Oxford and Paris: large-scale image retrieval benchmarking", CVPR 2018. 70 queries each;
an image may show the query easily, hardly, or in a way that counts neither as right nor as wrong (junk).

    truth = read_revisited("gnd_roxford5k.pkl")
    relevant, where = truth.relevance("medium")
    trapezoidal_ap(queries @ gallery.t(), relevant, where).nanmean()
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import check_choice, user_path
from sodeep._core.pickle_stream import NotPlainError
from sodeep.datasets._plain_pickle import read_plain_pickle

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
        """The relevant images, and those that count at all, under a protocol.

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

    def wrong(got: str) -> ValueError:
        return ValueError(f"`path` must be {expected}, got '{path}': {got}. The data are {_REVISITED}.")

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
