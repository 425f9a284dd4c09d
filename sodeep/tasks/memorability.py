"""Memorability: predict a score, judged by the order it gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sodeep import metrics
from sodeep.tasks.base import (
    BATCH_SIZE,
    Array,
    Evaluation,
    Layout,
    Loss,
    MemorabilityData,
    Task,
    given_split,
    read_data,
)
from sodeep.tasks.encoders import FeatureNet, encode
from sodeep.tasks.layouts import MEMORABILITY, read_csv


class Memorability(Task):
    """Regression: a batch is one list of 100 predictions, ordered like their targets.

    Losses see targets of mean 0 and standard deviation 1 (on the training split), so that weights and learning rates
    mean the same for any data; predictions are brought back to the scale of the data before they are judged.

    Metrics: Spearman's correlation; "MAE", the mean absolute error of the values; "MAE fitted", the same after the
    straight line from predictions to targets that fits the validation split best (an order alone has no scale).

    Details: ``predicted`` and ``true`` (n,), of the test split.

    Texts become features that no loss has a part in: tf-idf of words, word pairs and character n-grams, its 128 main
    directions on the training split, beside what features the data have; or the static vectors of the package
    wordllama, if it is installed.
    """

    name = "memorability"
    metrics = {"Spearman": True, "MAE": False, "MAE fitted": False}  # noqa: RUF012
    headline = "Spearman"
    baseline = "mse"
    losses = ("mse", "l1", "spearman:laplace", "spearman:sigmoid", "spearman:blackbox", "spearman:set")
    accepts = ("target",)
    epochs = 40
    rates = (1e-3, 3e-3)

    def __init__(
        self, data: MemorabilityData, seed: int = 0, batch_size: int = BATCH_SIZE, train_share: float = 1.0
    ) -> None:
        split = given_split(data.split, len(data.target), seed)
        super().__init__(data, split, seed, batch_size, train_share)
        parts = [] if data.features is None else [np.asarray(data.features, dtype=np.float32)]
        if data.texts is not None:
            kind, vectors = text_features(data.texts, self.index["train"].numpy())
            parts.append(vectors)
            self.data_name += f", {kind}"
        self.features = torch.from_numpy(np.concatenate(parts, axis=1))
        self.target = torch.from_numpy(np.asarray(data.target, dtype=np.float32))
        if bool((self.target[self.index["train"]] == self.target[self.index["train"][0]]).all()):
            raise ValueError(
                f"`data` {data.name} must have scores that differ in the training split, "
                f"got {self.target[self.index['train'][0]].item():g} for all of them. Nothing can be ranked by them."
            )
        self.unit = torch.std_mean(self.target[self.index["train"]])

    @classmethod
    def load(
        cls, data: str | Path | None = None, seed: int = 0, batch_size: int = BATCH_SIZE, train_share: float = 1.0
    ) -> Memorability:
        """The task on the data at a path, or on a synthetic set drawn with the seed."""
        return cls(
            _synthetic(seed) if data is None else read_data(data, LAYOUTS, cls.name), seed, batch_size, train_share
        )

    def model(self) -> nn.Module:
        """One hidden layer on standardised features."""
        return FeatureNet(self.features[self.index["train"]], width=1, dropout=0.2)

    def forward(self, model: nn.Module, batch: Array) -> dict[str, Callable[[Loss], Tensor]]:
        """The batch as one list."""
        where = torch.from_numpy(batch).to(self.features.device)
        scores = model(self.features[where]).squeeze(-1)
        scale, middle = self.unit
        target = (self.target[where] - middle) / scale
        return {"target": lambda loss: loss(scores, target)}

    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> Evaluation:
        """Exact metrics over the split, and the details of the class docstring."""
        predicted, true = self._predict(model, split)
        x, y = (values.double() for values in self._predict(model, "val"))
        away = x - x.mean()
        slope = (away @ y / (away @ away)).nan_to_num(0).item()  # equal predictions have no slope
        offset = (y - slope * x).mean().item()
        found = {
            "Spearman": metrics.spearman_corr(predicted, true).nan_to_num(0).item(),  # a constant orders nothing
            "MAE": (predicted - true).abs().mean().item(),
            "MAE fitted": (slope * predicted + offset - true).abs().mean().item(),
        }
        return Evaluation(found, {"predicted": predicted.cpu().numpy(), "true": true.cpu().numpy()} if details else {})

    def _predict(self, model: nn.Module, split: str) -> tuple[Tensor, Tensor]:
        where = self.index[split].to(self.features.device)
        scale, middle = self.unit
        return encode(model, self.features[where]).squeeze(-1) * scale + middle, self.target[where]


def text_features(texts: Any, train: Array, width: int = 128) -> tuple[str, Array]:
    """What they are called, and static features of texts (N, d), fitted on the texts of `train`."""
    try:
        from wordllama import WordLlama
    except ImportError:
        pass
    else:
        return "wordllama vectors", np.asarray(WordLlama.load().embed(list(texts)), dtype=np.float32)
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = np.asarray(texts, dtype=object)
    counts = []
    for analyzer, ngrams in (("word", (1, 2)), ("char_wb", (2, 5))):
        vectorizer = TfidfVectorizer(analyzer=analyzer, ngram_range=ngrams, min_df=2, sublinear_tf=True)
        vectorizer.fit(texts[train])
        counts.append(vectorizer.transform(texts))
    reduced = []
    for table in counts:
        svd = TruncatedSVD(min(width // 2, table.shape[1] - 1, len(train) - 1), random_state=0)
        svd.fit(table[train])
        reduced.append(svd.transform(table).astype(np.float32))
    return "tf-idf of n-grams", np.concatenate(reduced, axis=1)


def _synthetic(seed: int, n: int = 2000, d: int = 16) -> MemorabilityData:
    """Invented scores: a smooth function of random features plus noise, squeezed to [0, 1] as human scores are.

    Noise bounds what any model reaches, and a tenth of the scores are blunders, on which squared errors waste effort.
    """
    rng = np.random.default_rng([seed, 4])
    features = rng.normal(size=(n, d)).astype(np.float32)
    direction, bend = rng.normal(size=(2, d)) / np.sqrt(d)
    signal = features @ direction + np.sin(2 * features @ bend)
    noise = rng.normal(size=n) * np.where(rng.random(n) < 0.1, 4.0, 0.7)
    target = 1 / (1 + np.exp(-2 * (signal + noise)))
    return MemorabilityData("synthetic memorability (generated, no real data)", target, features=features)


# ---- sentence memorability -------------------------------------------------------------------------------------------

_SENTENCES = "sentence_memorability_data.csv"
_NOT_PREDICTORS = ("", "sentence", "target_hr", "fpr", "dprime", "acc", "condition")
"""Of the table's columns: the texts, the human scores and how the sentences were chosen; the other eleven predict."""


def _sentences(path: Path) -> MemorabilityData:
    """Sentences, the accuracy at which people recognised them, and eleven measures of the words."""
    file = path if path.is_file() else path / _SENTENCES
    rows = read_csv(file)
    predictors = [name for name in rows[0] if name not in _NOT_PREDICTORS]
    return MemorabilityData(
        "sentence memorability",
        np.array([float(row["acc"]) for row in rows]),
        texts=[row["sentence"] for row in rows],
        features=np.array([[float(row[name]) for name in predictors] for row in rows], dtype=np.float32),
    )


def _is_sentences(path: Path) -> bool:
    file = path if path.is_file() else path / _SENTENCES
    if file.suffix != ".csv" or not file.is_file():
        return False
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        return {"sentence", "acc", "mean_mem"} <= set(lines.readline().strip().split(","))


LAYOUTS: dict[str, Layout] = {
    "sentence memorability": Layout(
        f"{_SENTENCES} with columns sentence, acc and predictors, github.com/thomashikaru/sentence_memorability_share",
        _is_sentences,
        _sentences,
    ),
    **MEMORABILITY,
}
"""What `--data` may be."""
