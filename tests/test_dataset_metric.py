"""A metric over a data set that comes batch by batch."""

import re

import numpy as np
import pytest
import torch
from scipy import stats

from sodeep import DatasetMetric, average_precision, retrieval_metrics, spearman_corr

X = torch.randn(23, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_it_is_the_metric_of_all_rows():
    rho = DatasetMetric(spearman_corr)
    for part in torch.arange(23).split(6):
        rho.update(X[part, 0].requires_grad_(), X[part, 1])
    expected = stats.spearmanr(X[:, 0].numpy(), X[:, 1].numpy()).statistic
    np.testing.assert_allclose(rho.compute().numpy(), expected, atol=1e-12)
    assert not rho.compute().requires_grad
    rho.reset()
    rho.update(X[:9, 0], X[:9, 1])
    torch.testing.assert_close(rho.compute(), spearman_corr(X[:9, 0], X[:9, 1]))


def test_options_and_labels_go_to_the_metric():
    found = DatasetMetric(retrieval_metrics, metrics=("mAP",), similarity="dot")
    labels = [f"class {i % 4}" for i in range(23)]
    for start in range(0, 23, 7):
        found.update(X[start : start + 7], labels[start : start + 7])
    assert found.compute() == pytest.approx(retrieval_metrics(X, labels, metrics=("mAP",), similarity="dot"), abs=1e-12)


def test_rows_of_one_item_count_once():
    index = torch.tensor([*range(23), 4, 0, 4])
    rho = DatasetMetric(average_precision)
    found = DatasetMetric(retrieval_metrics, metrics=("mAP", "median rank"))
    for part in torch.arange(26).split(10):
        items = index[part]
        rho.update(X[items, 0], X[items, 1] > 0, index=items)
        found.update(X[items], items % 4, index=items)
    torch.testing.assert_close(rho.compute(), average_precision(X[:, 0], X[:, 1] > 0))
    expected = retrieval_metrics(X, torch.arange(23) % 4, metrics=("mAP", "median rank"))
    assert found.compute() == pytest.approx(expected, abs=1e-12)


def two_batches(first, second):
    metric = DatasetMetric(spearman_corr)
    metric.update(*first[0], **first[1])
    metric.update(*second[0], **second[1])


ONE, INDEX = X[:3, 0], {"index": torch.arange(3)}


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (TypeError, lambda: DatasetMetric(0.5), "`metric` must be a function of rows, got 0.5."),
        (
            ValueError,
            lambda: DatasetMetric(spearman_corr).compute(),
            "`update` must be called before `compute`, got no ",
        ),
        (
            ValueError,
            lambda: two_batches(((), {}), ((), {})),
            "`rows` must be tensors (n, ...) of one number of rows, ",
        ),
        (
            ValueError,
            lambda: two_batches(((ONE, ONE[:2]), {}), ((), {})),
            "`rows` must be tensors (n, ...) of one number of rows, got a tensor of shape (3,)",
        ),
        (
            ValueError,
            lambda: two_batches(((ONE, ONE), {}), ((ONE,), {})),
            "`rows` must be as many as in the batches before, 2, got 1. To begin anew, call reset().",
        ),
        (
            ValueError,
            lambda: two_batches(((ONE, ONE), INDEX), ((ONE, ONE), {})),
            "`index` must be given with every batch or with none. To begin anew, call reset().",
        ),
        (
            ValueError,
            lambda: two_batches(((ONE, ONE), {}), ((ONE, ONE), INDEX)),
            "`index` must be given with every batch or with none. To begin anew, call reset().",
        ),
        (
            ValueError,
            lambda: two_batches(((ONE, ONE), {"index": torch.arange(2)}), ((), {})),
            "`index` must have shape (3,), one number a row, got shape (2,).",
        ),
        (
            ValueError,
            lambda: retrieval_metrics(X, torch.arange(23), index=torch.arange(3)),
            "`index` must have shape (23,), one number a row, got shape (3,).",
        ),
        *(
            (TypeError, call, "`index` must be a tensor of whole numbers, got ")
            for index in ([0, 1, 2], torch.zeros(3), torch.zeros(3, dtype=torch.cfloat), torch.zeros(3).bool())
            for call in (
                lambda index=index: two_batches(((ONE, ONE), {"index": index}), ((), {})),
                lambda index=index: retrieval_metrics(X[:3], torch.arange(3), index=index),
            )
        ),
        (
            ValueError,
            lambda: retrieval_metrics(X, torch.arange(23), X, torch.arange(23), index=torch.arange(23)),
            "`index` must not be given with a gallery, where queries are searched once each.",
        ),
    ],
)
def test_errors(error, call, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call()
