"""Memorability: regression of a score, evaluated by the order of the predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sodeep import metrics
from sodeep._core.checks import user_path
from sodeep._core.search import Range
from sodeep.datasets.generated import noisy_scores
from sodeep.datasets.memorability import MEMORABILITY, table_data
from sodeep.datasets.splits import given_split
from sodeep.datasets.texts import TEXT_FEATURES, static_vectors, tf_idf
from sodeep.datasets.types import Array, MemorabilityData
from sodeep.ranks import exact_rank
from sodeep.tasks.base import Loss, Task, TaskMetrics
from sodeep.tasks.encoders import PENALTY, FeatureNet, encode, ridge


class Memorability(Task):
    """Regression: a batch is one list of 100 predictions, ordered like their targets.

    Losses see targets of mean 0 and standard deviation 1 (on the training split), so that weights and learning rates
    mean the same for any data: the scores, or of losses with those call signatures their "ranks" in the training
    split, ties averaged, or the "normal-scores" of these, Φ⁻¹(rank / (n + 1)) (van der Waerden's). Predictions are
    brought back to the scale of the data before they are evaluated.

    Metrics: Spearman's correlation; "MAE", the mean absolute error of the values; "MAE fitted", the same after the
    straight line from predictions to targets that fits the validation split best (an order, or ranks, lack the scale).

    Details: ``predicted`` and ``true`` (n,), of the test split.

    Texts become static features, beside the features that the data have: tf-idf of words, word pairs
    and character n-grams, its 128 main directions on the training split; or with `text_features` "wordllama" the static
    vectors of that package.

    Of a csv table, `target` names the column of scores, `text` that of texts and `predictors` those of numbers
    (`sodeep.datasets.memorability.read_table`).
    """

    name = "memorability"
    metrics = {"Spearman": True, "MAE": False, "MAE fitted": False}  # noqa: RUF012
    primary_metric = "Spearman"
    baseline = "mse"
    losses = (
        "mse",
        "mse-ranks",
        "mse-normal-scores",
        "pearson",
        "spearman:laplace",
        "spearman:set",
        "mse-normal-scores+spearman:laplace",
        "ridge",
        "untrained",
    )
    accepts = ("target", "ranks", "normal-scores")
    methods = {**Task.methods, "ridge": {"penalty": PENALTY}}  # noqa: RUF012
    options = ("text_features", "target", "text", "predictors")
    reading = ("target", "text", "predictors")
    max_steps = 5000
    validate_every = 50
    ranges = {"lr": Range(3e-4, 2e-2, 2e-3), "weight_decay": Range(0.1, 50, 5.0)}  # noqa: RUF012
    layouts = MEMORABILITY
    tensors = ("features", "target", "ranks", "normal_scores")
    generated = staticmethod(noisy_scores)

    def __init__(
        self, data: MemorabilityData, seed: int = 0, *, text_features: str | None = None, **options: Any
    ) -> None:
        super().__init__(data, seed, **options)
        parts = [] if data.features is None else [np.asarray(data.features, dtype=np.float32)]
        vectors = static_vectors(text_features, data.texts, data.name)
        if data.texts is not None:
            parts.append(tf_idf(data.texts, self.index["train"].numpy()) if vectors is None else vectors)
            self.data_name += f", {TEXT_FEATURES['tf-idf' if vectors is None else 'wordllama']}"
        self.features = torch.from_numpy(np.concatenate(parts, axis=1))
        self.target = torch.from_numpy(np.asarray(data.target, dtype=np.float32))
        if bool((self.target[self.index["train"]] == self.target[self.index["train"][0]]).all()):
            raise ValueError(
                f"`data` {data.name} must have scores that differ in the training split, "
                f"got {self.target[self.index['train'][0]].item():g} for all of them. Nothing can be ranked by them."
            )
        self.unit = torch.std_mean(self.target[self.index["train"]])
        places = 1 - exact_rank(self.target[self.index["train"]].double()) / (len(self.index["train"]) + 1)
        self.ranks, self.normal_scores = (self._of_training(x) for x in (places, torch.special.ndtri(places)))

    def _of_training(self, values: Tensor) -> Tensor:
        """Values of the training items as (N,), of mean 0 and standard deviation 1; NaN for other items."""
        values = (values - values.mean()) / values.std()
        return torch.full_like(self.target, torch.nan).index_put((self.index["train"],), values.float())

    @classmethod
    def read(
        cls,
        data: str | Path | None,
        seed: int,
        *,
        target: str | None = None,
        text: str | None = None,
        predictors: Sequence[str] | None = None,
    ) -> MemorabilityData:
        """The data at a path, from the named columns of a csv table; or a synthetic set drawn with the seed."""
        columns = {"target": target, "text": text, "predictors": predictors}
        named = [name for name, value in columns.items() if value]
        if not named:
            result: MemorabilityData = super().read(data, seed)
            return result
        if data is None or not user_path(data).is_file():
            raise ValueError(
                f"`{named[0]}` must be given with a csv table, got {columns[named[0]]!r} for "
                f"{'no data' if data is None else data}."
            )
        return table_data(user_path(data), target=target, text=text, predictors=predictors)

    @classmethod
    def split_of(cls, data: MemorabilityData, seed: int) -> Array:
        """The split of the data, or a drawn one."""
        return given_split(data.split, len(data.target), seed)

    def model(self) -> nn.Module:
        """One hidden layer on standardised features."""
        return FeatureNet(self.features[self.index["train"]], width=1, dropout=0.2)

    def fit(self, method: str, **settings: Any) -> nn.Module:
        """Besides "untrained": "ridge" on standardised features and targets."""
        if method != "ridge":
            return super().fit(method)
        train, (scale, middle) = self.index["train"].to(self.features.device), self.unit
        return ridge(self.features[train], ((self.target[train] - middle) / scale).unsqueeze(1), **settings)

    def forward(self, model: nn.Module, batch: Array) -> dict[str, Callable[[Loss], Tensor]]:
        """The batch as one list."""
        where = torch.from_numpy(batch).to(self.features.device)
        scores = model(self.features[where]).squeeze(-1)
        scale, middle = self.unit
        target = (self.target[where] - middle) / scale
        return {
            "target": lambda loss: loss(scores, target),
            "ranks": lambda loss: loss(scores, self.ranks[where]),
            "normal-scores": lambda loss: loss(scores, self.normal_scores[where]),
        }

    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> TaskMetrics:
        """Exact metrics over the split, and the details of the class docstring."""
        predicted, true = self._predict(model, split)
        x, y = (values.double() for values in self._predict(model, "val"))
        centred = x - x.mean()
        slope = (centred @ y / (centred @ centred)).nan_to_num(0).item()  # equal predictions have no slope
        offset = (y - slope * x).mean().item()
        values = {
            "Spearman": metrics.spearman_corr(predicted, true).nan_to_num(0).item(),  # a constant orders nothing
            "MAE": (predicted - true).abs().mean().item(),
            "MAE fitted": (slope * predicted + offset - true).abs().mean().item(),
        }
        return TaskMetrics(
            values, {"predicted": predicted.cpu().numpy(), "true": true.cpu().numpy()} if details else {}
        )

    def _predict(self, model: nn.Module, split: str) -> tuple[Tensor, Tensor]:
        where = self.index[split].to(self.features.device)
        scale, middle = self.unit
        return encode(model, self.features, where).squeeze(-1) * scale + middle, self.target[where]
