"""The metrics of Revisited Oxford and Paris, with the values of the published evaluation code."""

from __future__ import annotations

from torch import Tensor

from sodeep.datasets.revisited import PROTOCOLS
from sodeep.metrics import trapezoidal_ap

CUTS = (1, 5, 10)
"""Of mP@k."""

REVISITED_METRICS = tuple(f"{metric} {protocol}" for metric in ("mAP", *(f"mP@{k}" for k in CUTS))
                          for protocol in PROTOCOLS)  # fmt: skip
"""Their names, those of the three protocols side by side; all are better the higher."""


def revisited_metrics(scores: Tensor, truth: Tensor) -> dict[str, float]:
    """MAP and mP@k under the protocols easy, medium and hard.

    AP is `trapezoidal_ap`. The precision of a query is that among the first min(k, rank of the last right image), so
    that it can be 1 where fewer than k are right. What a protocol leaves out has no rank at all, and a query without a
    right image is in no mean. Of equal scores the first in the gallery comes first.

    Args:
        scores: (Q, N) of queries with the gallery.
        truth: (3, Q, N), as in `sodeep.datasets.types.RetrievalData`.

    Returns:
        Those of `REVISITED_METRICS` for which there is a query; in [0, 1].

    References:
        Radenović, Iscen, Tolias, Avrithis, Chum. Revisiting Oxford and Paris: large-scale image retrieval benchmarking.
        CVPR 2018; its evaluation code.

    Example:
        >>> import torch
        >>> scores, truth = torch.tensor([[0.9, 0.5, 0.7]]), torch.tensor([[[-1, 1, 0]]] * 3)
        >>> values = revisited_metrics(scores, truth)
        >>> values["mAP hard"], values["mP@1 hard"], values["mP@5 hard"]
        (0.25, 0.0, 0.5)
    """
    values: dict[str, float] = {}
    for protocol, grades in zip(PROTOCOLS, truth, strict=True):
        some = (grades == 1).any(-1)
        if not bool(some.any()):
            continue
        ranked, relevant, where = scores[some], grades[some] == 1, grades[some] >= 0
        values[f"mAP {protocol}"] = trapezoidal_ap(ranked, relevant, where).mean().item()
        order = ranked.masked_fill(~where, -float("inf")).argsort(dim=-1, descending=True, stable=True)
        found = relevant.gather(-1, order).cumsum(-1)
        last = (found < found[:, -1:]).sum(-1, keepdim=True) + 1
        for k in CUTS:
            cut = last.clamp(max=k)
            values[f"mP@{k} {protocol}"] = (found.gather(-1, cut - 1).double() / cut).mean().item()
    return {name: values[name] for name in REVISITED_METRICS if name in values}
