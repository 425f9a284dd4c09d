"""Losses of learning to rank on any rank function: against loops, against the exact metrics, with weights and masks.

What all losses promise is in test_contract.py.
"""

import math
import re
from functools import partial

import numpy as np
import pytest
import torch

from sodeep.losses import (
    KendallLoss,
    NDCGLoss,
    PrecisionAtKLoss,
    ReciprocalRankLoss,
    UndefinedListWarning,
    kendall_loss,
    ndcg_loss,
    pair_weights,
    precision_at_k_loss,
    reciprocal_rank_loss,
)
from sodeep.metrics import ndcg, pairwise_accuracy, precision_at_k, reciprocal_rank
from sodeep.ranks import blackbox_rank, exact_rank, laplace_rank, sigmoid_rank, straight_through

F64 = torch.float64


def exactly(message):
    return f"^{re.escape(message)}$"


def laplace(scores, where=None):
    return laplace_rank(scores, tau=0.5, where=where)


def plain(scores):
    """A rank function of a user's, which knows no masks."""
    gaps = scores.unsqueeze(-2) - scores.unsqueeze(-1)
    return 0.5 + (gaps / 0.3).sigmoid().sum(-1)


RANK_FNS = [exact_rank, laplace, plain, straight_through(laplace), blackbox_rank]
every_rank_fn = pytest.mark.parametrize("rank_fn", RANK_FNS, ids=lambda f: getattr(f, "__name__", str(f)))


def draw(lists=5, n=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(lists, n, dtype=F64, generator=generator)
    relevance = torch.randint(4, (lists, n), generator=generator)
    relevance[:, :2] = torch.tensor([1, 2])
    weight = torch.rand(lists, n, dtype=F64, generator=generator) + 0.5
    where = torch.rand(lists, n, generator=generator) < 0.7
    where[:, :3] = True
    return scores, relevance, weight, where


# ---- slow and plain, one list at a time ------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def loop_ndcg(scores, relevance, weight, rank_fn, k=None, tau_k=1.0, gain="exponential"):
    gains = [w * (2**r - 1 if gain == "exponential" else r) for r, w in zip(relevance.tolist(), weight, strict=True)]

    def dcg(gains, ranks):
        cuts = [1 if k is None else sigmoid((k + 0.5 - r) / tau_k) for r in ranks]
        return sum(g * c / math.log2(1 + r) for g, c, r in zip(gains, cuts, ranks, strict=True))

    return 1 - dcg(gains, rank_fn(scores).tolist()) / dcg(sorted(gains, reverse=True), range(1, len(gains) + 1))


def loop_kendall(scores, target, weight, rank_fn, tau=0.05):
    n, ranks = len(scores), rank_fn(scores).tolist()
    pairs = [(i, j) for i in range(n) for j in range(n) if target[i] > target[j]]
    total = sum(weight[i] * sigmoid((ranks[i] - ranks[j]) / tau / n) for i, j in pairs)
    return total / sum(weight[i] for i, _ in pairs)


def loop_reciprocal_rank(scores, relevant, weight, rank_fn):
    return 1 - 1 / min(r for r, hit in zip(rank_fn(scores).tolist(), relevant, strict=True) if hit)


def loop_precision(scores, relevant, weight, rank_fn, k, tau_k=1.0):
    ranks = rank_fn(scores).tolist()
    return 1 - sum(w * sigmoid((k + 0.5 - r) / tau_k) for r, y, w in zip(ranks, relevant, weight, strict=True) if y) / k


CASES = {
    "ndcg": (ndcg_loss, loop_ndcg, {}),
    "ndcg-linear": (ndcg_loss, loop_ndcg, {"gain": "linear"}),
    "ndcg@3": (ndcg_loss, loop_ndcg, {"k": 3, "tau_k": 0.7}),
    "kendall": (kendall_loss, loop_kendall, {"tau": 0.1}),
    "reciprocal-rank": (reciprocal_rank_loss, loop_reciprocal_rank, {}),
    "precision@3": (precision_at_k_loss, loop_precision, {"k": 3, "tau_k": 0.7}),
}
BINARY = (reciprocal_rank_loss, precision_at_k_loss)


@every_rank_fn
@pytest.mark.parametrize("name", CASES)
def test_against_a_loop(name, rank_fn):
    loss, loop, options = CASES[name]
    scores, target, weight, where = draw()
    if loss in BINARY:
        target = target > 1
    for mask in (None, where):
        rows = list(zip(scores, target, weight, torch.ones_like(where) if mask is None else mask, strict=True))
        expected = [loop(s[w], t[w], np.ones(int(w.sum())), rank_fn, **options) for s, t, _, w in rows]
        result = loss(scores, target, rank_fn=rank_fn, where=mask, reduction="none", **options)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-10)
        if loss is not reciprocal_rank_loss:
            expected = [loop(s[w], t[w], i[w].numpy(), rank_fn, **options) for s, t, i, w in rows]
            result = loss(scores, target, rank_fn=rank_fn, where=mask, weight=weight, reduction="none", **options)
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-10)


def test_with_exact_ranks_they_are_the_metrics():
    scores, relevance, _, where = draw(20, 12)
    exact = {"rank_fn": exact_rank, "reduction": "none", "where": where}
    torch.testing.assert_close(1 - ndcg_loss(scores, relevance, **exact), ndcg(scores, relevance, where=where))
    for k in (1, 3, 20):
        result = ndcg_loss(scores, relevance, k=k, tau_k=1e-3, **exact)
        torch.testing.assert_close(1 - result, ndcg(scores, relevance, k, where=where))
        result = precision_at_k_loss(scores, relevance > 1, k=k, tau_k=1e-3, **exact)
        torch.testing.assert_close(1 - result, precision_at_k(scores, relevance > 1, k, where=where))
    result = reciprocal_rank_loss(scores, relevance > 1, **exact)
    torch.testing.assert_close(1 - result, reciprocal_rank(scores, relevance > 1, where=where))
    result = kendall_loss(scores, relevance, tau=1e-4, **exact)
    torch.testing.assert_close(1 - result, pairwise_accuracy(scores, relevance, where=where))


def test_the_best_order_has_a_loss_of_zero():
    scores, relevance, _, _ = draw()
    scores = relevance + scores / 100
    for options in ({}, {"k": 2}, {"k": 2, "gain": "linear"}):
        value = ndcg_loss(scores, relevance, rank_fn=exact_rank, **options)
        torch.testing.assert_close(value, torch.zeros_like(value))


@pytest.mark.filterwarnings("ignore")
def test_approx_ndcg_is_that_of_rax():
    rax = pytest.importorskip("rax")
    scores, relevance, _, _ = draw()
    for s, r in zip(scores.float(), relevance.float(), strict=True):
        ours = 1 - ndcg_loss(s, r, rank_fn=partial(sigmoid_rank, tau=1.0))
        theirs = rax.ndcg_metric(s.numpy(), r.numpy(), rank_fn=rax.utils.approx_ranks)
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5)


# ---- grades and gradients --------------------------------------------------------------------------------------------


def test_a_gain_of_two_to_the_sixty():
    scores = torch.tensor([0.1, 0.9, 0.5], requires_grad=True)
    for relevance in (torch.tensor([60, 3, 0]), torch.tensor([60.0, 3.0, 0.0]), torch.tensor([2**60, 3, 0])):
        loss = ndcg_loss(scores, relevance, rank_fn=straight_through(laplace))
        torch.testing.assert_close(loss.detach(), torch.tensor(0.5))
        (gradient,) = torch.autograd.grad(loss, scores)
        assert gradient.isfinite().all()
        assert gradient[0] < 0


def test_bad_grades_and_weights():
    scores = torch.zeros(2, 3)
    message = (
        "`{}` must be at least 0, got a smallest value of -2. Mask such items out with where=, or shift all values up."
    )
    grades = torch.tensor([[0, 1, -2], [0, 1, 2]])
    with pytest.raises(ValueError, match=exactly(message.format("relevance"))):
        ndcg_loss(scores, grades, rank_fn=exact_rank)
    kendall_loss(scores, grades, rank_fn=exact_rank)  # only their order counts
    for loss in (ndcg_loss, kendall_loss):
        with pytest.raises(ValueError, match=exactly(message.format("weight"))):
            loss(scores, grades.abs(), rank_fn=exact_rank, weight=grades.float())
        message_of_shape = "`weight` must have the shape of `scores` (2, 3), got (3,)."
        with pytest.raises(ValueError, match=exactly(message_of_shape)):
            loss(scores, grades.abs(), rank_fn=exact_rank, weight=torch.ones(3))
        nothing = torch.zeros(2, 3)
        with pytest.warns(UndefinedListWarning):
            assert loss(scores, grades.abs(), rank_fn=exact_rank, weight=nothing) == 0


def test_one_item_and_one_grade():
    one, same = torch.tensor([[0.3]], requires_grad=True), torch.tensor([[0.3, 0.1, 0.5]], requires_grad=True)
    message = "0 of 1 lists have two items with different targets: the loss is a constant 0 for this batch."
    for scores in (one, same):
        assert ndcg_loss(scores, torch.full_like(scores, 2), rank_fn=exact_rank).abs() < 1e-6
        with pytest.warns(UndefinedListWarning, match=exactly(message) if scores is same else None):
            kendall_loss(scores, torch.full_like(scores, 2), rank_fn=exact_rank).backward()
        torch.testing.assert_close(scores.grad, torch.zeros_like(scores))


@pytest.mark.parametrize(
    "loss", [NDCGLoss(laplace), NDCGLoss(laplace, k=3), ReciprocalRankLoss(laplace), PrecisionAtKLoss(laplace, k=3)]
)
def test_pair_weights_pull_relevant_items_up(loss):
    scores, relevance, _, _ = draw()
    relevant = relevance > 1
    weights = pair_weights(loss, scores, relevant)
    assert (weights[~relevant] > -1e-12).all()
    assert (weights.masked_fill(~relevant, 0).sum(-1) < 0).all()


def test_pair_weights_of_kendall_sum_to_zero():
    scores, relevance, _, _ = draw()
    weights = pair_weights(KendallLoss(laplace), scores, relevance > 1)
    torch.testing.assert_close(weights.sum(-1), torch.zeros(5, dtype=F64))
    assert (weights.masked_fill(relevance < 2, 0).sum(-1) < 0).all()


def test_weights_get_no_gradient():
    scores, relevance, weight, _ = draw()
    for loss in (ndcg_loss, kendall_loss):
        leaf = weight.clone().requires_grad_()
        loss(scores.requires_grad_(), relevance, rank_fn=laplace, weight=leaf).backward()
        assert leaf.grad is None
