"""The toy experiment of the SoDeep poster: two classes of points, a linear scorer, average precision.

The poster compares its loss on synthetic data with a support vector machine. Here a linear scorer is trained with any
loss of the multi-label task, hinge among them, and scikit-learn's linear SVM is fitted to the same points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from sodeep._core.search import Range
from sodeep.datasets.generated import two_classes
from sodeep.datasets.layouts import Layout
from sodeep.tasks.base import TaskMetrics
from sodeep.tasks.encoders import FeatureNet
from sodeep.tasks.multi_label import MultiLabel


class Toy(MultiLabel):
    """Points of two overlapping classes, a fifth of them positive, ranked in one list.

    Metrics: "mAP", average precision over the points of the split. Details as of `MultiLabel`.
    """

    name = "toy"
    metrics: ClassVar[dict[str, bool]] = {"mAP": True}
    baseline = "hinge"
    losses = ("hinge", "bce", "map:laplace", "map:sigmoid", "smooth-ap", "map:set", "svm", "ridge")
    methods = {**MultiLabel.methods, "svm": {"C": Range(1e-5, 10, 0.01)}}  # noqa: RUF012
    options = ()
    layouts: ClassVar[Mapping[str, Layout]] = {}
    max_steps = 5000
    validate_every = 50
    generated = staticmethod(two_classes)

    def model(self) -> FeatureNet:
        """A linear scorer of standardised features."""
        return FeatureNet(self.inputs[self.index["train"]], width=1, hidden=0)

    def fit(self, method: str, **settings: Any) -> nn.Module:
        """Besides those of `MultiLabel`: "svm", scikit-learn's linear support vector machine with the penalty `C`."""
        if method != "svm":
            return super().fit(method, **settings)
        from sklearn.svm import LinearSVC

        train = self.index["train"]
        net = self.model().to(self.inputs.device)
        points = ((self.inputs[train] - net.mean) * net.scale).cpu().numpy()
        svm = LinearSVC(**settings, dual=False).fit(points, self.labels[train, 0].cpu().numpy())
        with torch.no_grad():
            net.linear.weight.copy_(torch.from_numpy(svm.coef_))
            net.linear.bias.copy_(torch.from_numpy(svm.intercept_))
        return net

    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> TaskMetrics:
        """Average precision over the split."""
        result = super().evaluate(model, split, details)
        return TaskMetrics({"mAP": result.metrics["mAP"]}, result.details)
