"""The toy experiment of the SoDeep poster: two classes of points, a linear scorer, average precision.

The poster compares its loss on synthetic data with a support vector machine. Here a linear scorer is trained with any
loss of the multi-label task, hinge among them, and scikit-learn's linear SVM is fitted to the same points.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from torch import nn

from sodeep._extras import check_installed
from sodeep.tasks.base import BATCH_SIZE, Evaluation, MultiLabelData
from sodeep.tasks.encoders import FeatureNet
from sodeep.tasks.multi_label import MultiLabel


class Toy(MultiLabel):
    """Points of two overlapping classes, one in five of the class to be found; one list in all.

    Metrics: "mAP", average precision over the points of the split; "mAP of a linear SVM", the same of scikit-learn's
    LinearSVC, whatever the loss, its penalty chosen on the validation split. Details as of `MultiLabel`.
    """

    name = "toy"
    metrics = {"mAP": True, "mAP of a linear SVM": True}  # noqa: RUF012
    baseline = "hinge"
    losses = ("hinge", "bce", "map:laplace", "map:sigmoid", "smooth-ap", "map:set")
    options = ()
    epochs = 20

    @classmethod
    def load(
        cls,
        data: str | Path | None = None,
        seed: int = 0,
        batch_size: int = BATCH_SIZE,
        train_share: float = 1.0,
        text_features: str | None = None,
    ) -> Toy:
        """The points, drawn with the seed.

        Raises:
            ValueError: data are given.
        """
        if data is not None:
            raise ValueError(f"`data` must not be given for the toy task, which draws its own, got {str(data)!r}.")
        check_installed("sklearn", "The toy task, for its support vector machine,")
        return cls(_two_classes(seed), seed, batch_size, train_share, text_features)

    def model(self) -> nn.Module:
        """A linear scorer of standardised features."""
        return FeatureNet(self.inputs[self.index["train"]], width=1, hidden=0)

    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> Evaluation:
        """Exact metrics over the split, with those of the support vector machine beside."""
        found = super().evaluate(model, split, details)
        metrics = {"mAP": found.metrics["mAP"], "mAP of a linear SVM": self.svm[split]}
        return Evaluation(metrics, found.details)

    @functools.cached_property
    def svm(self) -> dict[str, float]:
        """Average precision of scikit-learn's linear SVM on each split, the best of five penalties on "val"."""
        from sklearn.metrics import average_precision_score
        from sklearn.svm import LinearSVC

        features, labels = self.inputs.cpu().numpy(), self.labels[:, 0].cpu().numpy()
        index = {split: where.numpy() for split, where in self.index.items()}
        found = []
        for penalty in (1e-4, 1e-3, 1e-2, 1e-1, 1.0):
            svm = LinearSVC(C=penalty, dual=False).fit(features[index["train"]], labels[index["train"]])
            scores = svm.decision_function(features)
            found.append({s: float(average_precision_score(labels[i], scores[i])) for s, i in index.items()})
        return max(found, key=lambda ap: ap["val"])


def _two_classes(seed: int, n: int = 5000, d: int = 10) -> MultiLabelData:
    """Two normal clouds of different shape: no line parts them, and the best one for precision is not the one between.

    Half of the positives lie far out and are easy; the others are in the midst of the negatives.
    """
    rng = np.random.default_rng([seed, 6])
    positive = rng.random(n) < 0.2
    easy = rng.random(n) < 0.5
    points = rng.normal(size=(n, d)) * np.linspace(2.0, 0.5, d)
    points[positive & easy, 0] += 4.0
    points[positive & ~easy, 1] += 1.5
    return MultiLabelData("two classes of points (generated)", positive[:, None], ["positive"], features=points)
