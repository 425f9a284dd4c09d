"""Ranking: the items of each group by their relevance, as a search engine orders documents for a query."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sodeep import metrics
from sodeep._core.checks import check_at_least, check_choice, user_path
from sodeep._core.search import Range
from sodeep.datasets.generated import queries
from sodeep.datasets.ranking import RANKING, read_group_table
from sodeep.datasets.splits import differing_groups, split_of_groups
from sodeep.datasets.types import Array, RankingData
from sodeep.groups import GroupBatchSampler, Groups
from sodeep.tasks import boosting
from sodeep.tasks.base import Loss, Task, TaskMetrics
from sodeep.tasks.encoders import PENALTY, FeatureNet, ListScorer, ridge

TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "log1p": lambda x: x.sign() * x.abs().log1p(),
}
"""What features may go through before they are standardised."""

CUT = 10
"""Of the nDCG of the validation split by which LightGBM counts its trees."""

_GREATEST, _LONGEST = 30, 10_000
"""Grade, and items of a group, that LightGBM takes."""

_PAIRS = 2**21
"""Pairs of items that a scorer of lists looks at together in an evaluation."""


class Ranking(Task):
    """Items with features in groups, ordered within each: a batch is whole groups of like length, 100 items in all.

    The scorer is a network on the features of an item; with `scorer` "list", one that sees the other items of the
    group (`ListScorer`). `transform` "log1p" takes the logarithm of features of long tails, sign(x) log(1 + |x|),
    before all are standardised.

    Losses of lists are called with padded scores, relevance and a mask (groups, longest). Those with the call signature
    "target" see grades of mean 0 and standard deviation 1 (on the training split): padded and with a mask if they take
    one (`where`), and otherwise all items of the batch as one list. For losses with the signature "relevant", an item
    is relevant if its grade is above 0.

    Metrics, each the mean over the groups of a split: nDCG@1, nDCG@5 and nDCG@10 (gains 2^grade - 1), the reciprocal
    rank of the first item whose grade is above 0 ("MRR"), Kendall's tau-b and Spearman's correlation. A group without a
    relevant item is left out of the mean of the first four, one of equal grades out of that of the others. A model that
    gives equal scores gets the mean over the orders, and 0 as its correlation.

    `folds` deals the groups of all splits to so many folds: with seed s, fold s % folds is the test and the next one
    the validation split, dealt anew after every `folds` seeds; 5 seeds of 5 folds are a cross-validation.

    Of a csv table, `target` names the column of relevance, `group` that of groups and `predictors` those of numbers
    (`sodeep.datasets.ranking.read_group_table`).

    Details: ``group`` (G,) of str, the groups of the test split; ``ndcg`` (G,), their nDCG@10, NaN where undefined;
    ``items`` (G,), how many each has.
    """

    name = "ranking"
    metrics = dict.fromkeys(("nDCG@10", "nDCG@5", "nDCG@1", "MRR", "Kendall", "Spearman"), True)
    primary_metric = "nDCG@10"
    counted = "groups"
    baseline = "mse"
    losses = (
        "mse",
        "ranknet",
        "lambdarank",
        "listnet",
        "softmax",
        "ndcg:laplace",
        "ndcg:set",
        "spearman:laplace",
        "ridge",
        "untrained",
    )
    accepts = ("graded", "target", "relevant")
    methods = {**Task.methods, "ridge": {"penalty": PENALTY}, "lightgbm": boosting.RANGES}  # noqa: RUF012
    options = ("scorer", "transform", "folds", "target", "group", "predictors")
    reading = ("folds", "target", "group", "predictors")
    max_steps = 5000
    validate_every = 50
    ranges = {"lr": Range(3e-4, 2e-2, 2e-3), "weight_decay": Range(0.1, 50, 5.0)}  # noqa: RUF012
    layouts = RANKING
    tensors = ("features", "relevance")
    generated = staticmethod(queries)

    def __init__(
        self,
        data: RankingData,
        seed: int = 0,
        *,
        scorer: str | None = None,
        transform: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(data, seed, **options)
        self.scorer = check_choice("item" if scorer is None else scorer, ("item", "list"), "scorer")
        change = TRANSFORMS[check_choice("none" if transform is None else transform, TRANSFORMS, "transform")]
        self.data_name += ", log1p" * (transform == "log1p") + ", scorer of lists" * (scorer == "list")
        self.features = change(torch.from_numpy(np.asarray(data.features, dtype=np.float32)))
        self.relevance = torch.from_numpy(np.asarray(data.relevance, dtype=np.float32))
        self.group_names, group = np.unique(np.asarray(data.group), return_inverse=True)
        self.group = group.reshape(-1)
        for split, index in self.index.items():
            if not differing_groups(self.group[index.numpy()], self.relevance[index].numpy()).any():
                raise ValueError(
                    f"`data` {data.name} must have a group in {split!r} whose items differ in relevance, got none. "
                    "Nothing can be ranked by it."
                )
        train = self.index["train"]
        self.unit = torch.std_mean(self.relevance[train])
        self.sampler = GroupBatchSampler(self.group[train], self.batch_size, seed=seed)

    @classmethod
    def read(
        cls,
        data: str | Path | None,
        seed: int,
        *,
        folds: int | None = None,
        target: str | None = None,
        group: str | None = None,
        predictors: Sequence[str] | None = None,
    ) -> RankingData:
        """The data at a path, from the named columns of a csv table; or a synthetic set drawn with the seed."""
        columns = {"target": target, "group": group, "predictors": predictors}
        named = [name for name, value in columns.items() if value]
        if not named:
            found: RankingData = super().read(data, seed)
        elif data is None or user_path(data).suffix not in (".csv", ".tsv"):
            raise ValueError(
                f"`{named[0]}` must be given with a csv table, got {columns[named[0]]!r} for "
                f"{'no data' if data is None else data}."
            )
        else:
            found = read_group_table(user_path(data), target=target, group=group, predictors=predictors)
        if folds is None:
            return found
        check_at_least(folds, 3, "folds")
        if data is None:
            raise ValueError(f"`folds` must be given with data, got {folds} without: every seed draws new ones.")
        if found.split is not None:
            split_of_groups(found.split, found.group, found.relevance, seed)  # one id in two splits is of two groups
        return replace(found, name=f"{found.name}, {folds} folds", split=None, folds=folds)

    @classmethod
    def split_of(cls, data: RankingData, seed: int) -> Array:
        """The split of the data, with whole groups drawn."""
        return split_of_groups(data.split, np.asarray(data.group), np.asarray(data.relevance), seed, data.folds)

    @classmethod
    def groups_of(cls, data: RankingData) -> Array:
        """Those of the data."""
        return np.asarray(data.group)

    def size_of(self, split: str) -> int:
        """Its groups."""
        return len(np.unique(self.group[self.index[split].numpy()]))

    def lacks(self, needed: str) -> str | None:
        """Whole grades and groups that are not too long, for LightGBM's LambdaMART."""
        if needed != "lightgbm":
            return None
        longest = int(np.bincount(self.group).max())
        if longest > _LONGEST:
            return f"groups of at most {_LONGEST:,} items, and {self.data_name} has one of {longest:,}"
        largest = float(self.relevance.max())
        if largest <= _GREATEST and bool((self.relevance == self.relevance.round()).all()):
            return None
        return f"whole grades up to {_GREATEST}, and {self.data_name} has others, up to {largest:g}"

    def batches(self, epoch: int) -> Iterator[Array]:
        """Whole groups of like length, in all at most `batch_size` items with their padding, or one longer group."""
        train = self.index["train"].numpy()
        self.sampler.set_epoch(epoch)
        for batch in self.sampler:
            yield train[batch]

    def model(self) -> nn.Module:
        """One hidden layer on standardised features; or self-attention over the items of a group."""
        features = self.features[self.index["train"]]
        return ListScorer(features) if self.scorer == "list" else FeatureNet(features, width=1, dropout=0.2)

    def fit(self, method: str, **settings: Any) -> nn.Module:
        """Besides "untrained": "ridge" on standardised features and grades, and "lightgbm", LambdaMART."""
        if method == "ridge":
            items, (scale, middle) = self.index["train"].to(self.features.device), self.unit
            return ridge(self.features[items], ((self.relevance[items] - middle) / scale).unsqueeze(1), **settings)
        if method == "lightgbm":
            train, val = self._together("train"), self._together("val")
            return boosting.lambda_mart(train, val, self.seed, CUT, **settings)
        return super().fit(method)

    def _together(self, split: str) -> tuple[Array, Array, Array]:
        """Features, grades and sizes of the groups of a split, the items of a group one after the other."""
        index = self.index[split]
        group = self.group[index.numpy()]
        where = index[np.argsort(group, kind="stable")]
        sizes = np.unique(group, return_counts=True)[1]
        return self.features.cpu()[where].numpy(), self.relevance.cpu()[where].numpy(), sizes

    def forward(self, model: nn.Module, batch: Array) -> dict[str, Callable[[Loss], Tensor]]:
        """The groups of the batch as padded lists."""
        where = torch.from_numpy(batch).to(self.features.device)
        groups = Groups(self.group[batch])
        flat = self._scores(model, where, groups)
        scale, middle = self.unit
        relevance = self.relevance[where]
        target = (relevance - middle) / scale
        scores, grades, mask = groups.pad(flat), groups.pad(relevance), groups.where.to(flat.device)

        def on_target(loss: Loss) -> Tensor:
            value: Tensor = loss(scores, groups.pad(target), where=mask) if _takes_mask(loss) else loss(flat, target)
            return value

        return {
            "graded": lambda loss: loss(scores, grades, where=mask),
            "target": on_target,
            "relevant": lambda loss: loss(scores, grades > 0, where=mask),
        }

    def _scores(self, model: nn.Module, where: Tensor, groups: Groups) -> Tensor:
        """Scores (n,) of these items."""
        features = self.features[where]
        scores: Tensor = model(features, groups) if isinstance(model, ListScorer) else model(features)
        return scores.squeeze(-1)

    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> TaskMetrics:
        """Exact metrics over the groups of the split, and the details of the class docstring."""
        parts: dict[str, list[Tensor]] = {}
        for where, groups, scores in self._predicted(model, split):
            values = self._values(scores, self.relevance[where.to(scores.device)], groups)
            for name, value in values.items():
                parts.setdefault(name, []).append(value)
            ids = self.group[where[groups.first].numpy()]
            parts.setdefault("group", []).append(torch.from_numpy(np.atleast_1d(ids)))
        found = {name: torch.cat(values).cpu() for name, values in parts.items()}
        means = {name: found[name].nanmean().item() for name in self.metrics}
        if not details:
            return TaskMetrics(means)
        order = found["group"].argsort()
        arrays = {"ndcg": found["nDCG@10"][order].numpy(), "items": found["items"][order].numpy()}
        return TaskMetrics(means, arrays | {"group": self.group_names[found["group"][order].numpy()].astype(str)})

    @torch.no_grad()
    def _predicted(self, model: nn.Module, split: str) -> Iterator[tuple[Tensor, Groups, Tensor]]:
        """Some groups of a split at a time: their items, the groups of these, and scores."""
        index, training = self.index[split], model.training
        model.eval()
        try:
            group = self.group[index.numpy()]
            longest = int(np.unique(group, return_counts=True)[1].max())
            most = 2**16 if not isinstance(model, ListScorer) else max(longest, _PAIRS // longest)
            for rows in GroupBatchSampler(group, max_items=most, shuffle=False):
                where = index[rows]
                groups = Groups(group[rows])
                yield where, groups, self._scores(model, where.to(self.features.device), groups)
        finally:
            model.train(training)

    def _values(self, scores: Tensor, grades: Tensor, groups: Groups) -> dict[str, Tensor]:
        """Each metric of each group, NaN where it is left out; and "items", how many it has."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", metrics.UndefinedMetricWarning)
            values = {f"nDCG@{k}": metrics.ndcg(scores, grades, k=k, group=groups) for k in (10, 5, 1)}
            values["MRR"] = metrics.reciprocal_rank(scores, grades > 0, group=groups)
            # a correlation lacks where grades are equal, or scores are, which order nothing
            correlations = {"Kendall": metrics.kendall_tau, "Spearman": metrics.spearman_corr}
            equal = correlations["Kendall"](grades, grades, group=groups).isnan()
            for name, metric in correlations.items():
                values[name] = metric(scores, grades, group=groups).nan_to_num(0).masked_fill(equal, torch.nan)
        return values | {"items": groups.lengths}


def _takes_mask(loss: Loss) -> bool:
    """Whether a loss takes `where`, the mask of padded lists."""
    call = loss.forward if isinstance(loss, nn.Module) else loss
    return "where" in inspect.signature(call).parameters
