"""Equal rows have equal scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sodeep._core.ties import tie_equal_rows
from sodeep.losses.cross_modal import CrossModalLoss
from sodeep.losses.similarity import pairwise_scores
from sodeep.metrics import average_precision


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def rows_like(n: int, d: int, kind: str) -> Tensor:
    """Rows whose first entries, or greatest, or all but one, say little."""
    rows = randn(n, d, seed=n)
    if kind == "sparse":
        return rows.relu()
    if kind == "one-hot":
        return torch.eye(d)[torch.arange(n) % d]
    if kind == "last differs":
        return torch.cat([torch.ones(n, d - 1), -torch.arange(n)[:, None].float()], 1)
    return rows


@pytest.mark.parametrize("kind", ["dense", "sparse", "one-hot", "last differs"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_scores_of_equal_rows_change(kind, dtype):
    x, y = rows_like(9, 16, kind).to(dtype), rows_like(12, 16, kind).to(dtype)
    x[[2, 7]] = x[0].clone()
    y[[4, 11]], y[[3, 8]] = y[1].clone(), y[6].clone()
    before = randn(9, 12, dtype=dtype)  # as a product that rounds at will
    first_x = [next(j for j in range(9) if torch.equal(x[j], x[i])) for i in range(9)]
    first_y = [next(j for j in range(12) if torch.equal(y[j], y[i])) for i in range(12)]
    found = tie_equal_rows(before.clone(), x, y)
    torch.testing.assert_close(found, before[first_x][:, first_y], rtol=0, atol=0)
    square = randn(12, 12, dtype=dtype)
    torch.testing.assert_close(tie_equal_rows(square.clone(), y, y), square[first_y][:, first_y], rtol=0, atol=0)


def test_zeros_of_both_signs_are_equal():
    y = torch.tensor([[0.0, 1.0], [2.0, 1.0], [-0.0, 1.0]])
    found = tie_equal_rows(torch.tensor([[1.0, 2.0, 3.0]]), randn(1, 2), y)
    torch.testing.assert_close(found, torch.tensor([[1.0, 2.0, 1.0]]), rtol=0, atol=0)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_rows(n):
    x, y = randn(n, 3), torch.ones(2, 3)
    before = randn(n, 2)
    torch.testing.assert_close(tie_equal_rows(before.clone(), x, y), before[:, [0, 0]], rtol=0, atol=0)
    torch.testing.assert_close(tie_equal_rows(randn(2, 0), y, randn(0, 3)), torch.empty(2, 0), rtol=0, atol=0)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("queries", [1, 2, 8])
def test_copies_in_a_gallery_tie(similarity, dtype, queries):
    for d in (17, 64, 300, 1000):
        for m in (3, 7, 31, 37, 129):
            x, y = randn(queries, d, seed=d, dtype=dtype), randn(m, d, seed=m, dtype=dtype)
            copies = torch.randperm(m, generator=torch.Generator().manual_seed(m))[: max(2, m // 3)]
            y[copies] = y[copies[0]].clone()
            scores = pairwise_scores(x, torch.zeros(queries, m, dtype=torch.bool), y, similarity=similarity)[0]
            torch.testing.assert_close(scores[:, copies], scores[:, copies[:1]].expand(-1, len(copies)), rtol=0, atol=0)
            back = pairwise_scores(y, torch.zeros(m, queries, dtype=torch.bool), x, similarity=similarity)[0]
            torch.testing.assert_close(back[copies], back[copies[:1]].expand(len(copies), -1), rtol=0, atol=0)


def test_a_relevant_copy_has_the_precision_of_its_group():
    y = randn(1, 768, seed=1).repeat(37, 1)
    for place in range(37):
        scores, relevant = pairwise_scores(randn(1, 768), (torch.arange(37) == place)[None], y)
        torch.testing.assert_close(average_precision(scores, relevant), torch.tensor([1 / 37]))


def test_both_directions_of_a_cross_modal_loss_see_the_ties():
    seen = []

    def loss(scores, relevant):
        seen.append(scores.detach().clone())
        return scores.mean()

    CrossModalLoss(loss)(randn(1, 300), randn(1, 300, seed=1).repeat(31, 1), torch.ones(1, 31, dtype=torch.bool))
    CrossModalLoss(loss)(randn(1, 300).repeat(31, 1), randn(1, 300, seed=1), torch.ones(31, 1, dtype=torch.bool))
    assert [len(scores.unique()) for scores in seen] == [1, 1, 1, 1]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_the_gradient_is_that_of_every_pair_by_itself(similarity):
    x, y = randn(3, 5, dtype=torch.float64), randn(4, 5, seed=1, dtype=torch.float64)
    y[3] = y[0].clone()
    x[2] = x[1].clone()
    weight = randn(3, 4, seed=2, dtype=torch.float64)

    def total(x, y):
        return (pairwise_scores(x, torch.zeros(3, 4, dtype=torch.bool), y, similarity=similarity)[0] * weight).sum()

    # one pair at a time has no equal rows
    one = torch.zeros(1, 1, dtype=torch.bool)
    pairs = [
        weight[i, j] * pairwise_scores(a[None], one, b[None], similarity=similarity)[0].sum()
        for i, a in enumerate(x.requires_grad_())
        for j, b in enumerate(y.requires_grad_())
    ]
    expected = torch.autograd.grad(sum(pairs), (x, y))
    torch.testing.assert_close(torch.autograd.grad(total(x, y), (x, y)), expected)
