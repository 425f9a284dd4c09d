"""The toy experiment of the SoDeep poster: two classes of points, a linear scorer, average precision.

The poster compares its loss on synthetic data with a support vector machine. Here a linear scorer is trained with any
loss of the multi-label task, hinge among them, and scikit-learn's linear SVM is fitted to the same points.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import ClassVar

from torch import nn

from sodeep.datasets.generated import two_classes
from sodeep.datasets.layouts import Layout
from sodeep.tasks.base import TaskMetrics
from sodeep.tasks.encoders import FeatureNet
from sodeep.tasks.multi_label import MultiLabel


class Toy(MultiLabel):
    """Points of two overlapping classes, a fifth of them positive, ranked in one list.

    Metrics: "mAP", average precision over the points of the split; "mAP of a linear SVM", the same of scikit-learn's
    LinearSVC, whatever the loss, its penalty chosen on the validation split. Details as of `MultiLabel`.
    """

    name = "toy"
    metrics = {"mAP": True, "mAP of a linear SVM": True}  # noqa: RUF012
    baseline = "hinge"
    losses = ("hinge", "bce", "map:laplace", "map:sigmoid", "smooth-ap", "map:set")
    options = ()
    layouts: ClassVar[Mapping[str, Layout]] = {}
    max_steps = 5000
    validate_every = 50
    generated = staticmethod(two_classes)

    def model(self) -> nn.Module:
        """A linear scorer of standardised features."""
        return FeatureNet(self.inputs[self.index["train"]], width=1, hidden=0)

    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> TaskMetrics:
        """Exact metrics over the split, with those of the support vector machine beside."""
        result = super().evaluate(model, split, details)
        metrics = {"mAP": result.metrics["mAP"], "mAP of a linear SVM": self.svm[split]}
        return TaskMetrics(metrics, result.details)

    @functools.cached_property
    def svm(self) -> dict[str, float]:
        """Average precision of scikit-learn's linear SVM on each split, the best of five penalties on "val"."""
        from sklearn.metrics import average_precision_score
        from sklearn.svm import LinearSVC

        features, labels = self.inputs.cpu().numpy(), self.labels[:, 0].cpu().numpy()
        index = {split: where.numpy() for split, where in self.index.items()}
        results = []
        for penalty in (1e-4, 1e-3, 1e-2, 1e-1, 1.0):
            svm = LinearSVC(C=penalty, dual=False).fit(features[index["train"]], labels[index["train"]])
            scores = svm.decision_function(features)
            results.append({s: float(average_precision_score(labels[i], scores[i])) for s, i in index.items()})
        return max(results, key=lambda ap: ap["val"])
