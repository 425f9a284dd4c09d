"""The structural hinge loss of average precision against a maximum over all rankings."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import sodeep
from sodeep.losses import svm_ap

F64 = torch.float64


def by_all_rankings(scores: Tensor, relevant: Tensor, scale: float) -> Tensor:
    """The formula, over every order of the items."""
    p, n = int(relevant.sum()), int((~relevant).sum())
    faults, wrong = [], []
    for order in itertools.permutations(range(len(scores))):
        hits = [bool(relevant[i]) for i in order]
        faults.append(1 - sum(sum(hits[: place + 1]) / (place + 1) for place, hit in enumerate(hits) if hit) / p)
        counts = [0] * len(scores)  # in how many wrong pairs an item is, negative for those that should be below
        for a, b in itertools.combinations(range(len(scores)), 2):
            if hits[b] and not hits[a]:
                counts[order[b]] += 1
                counts[order[a]] -= 1
        wrong.append(counts)
    prices = torch.tensor(wrong, dtype=F64) @ (scale * scores)
    return (torch.tensor(faults, dtype=F64) - 2 * prices / (p * n)).max()


def draw(n: int, seed: int, positives: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p = int(torch.randint(1, n, (), generator=generator)) if positives is None else positives
    scores = torch.randn(n, generator=generator, dtype=F64)
    return scores.requires_grad_(), torch.randperm(n, generator=generator) < p


@pytest.mark.parametrize("n", [2, 3, 5, 6])
def test_it_is_the_maximum_over_all_rankings(n):
    for seed in range(6):
        scores, relevant = draw(n, seed)
        for scale in (0.05, 0.5, 2.0):
            expected = by_all_rankings(scores, relevant, scale)
            loss = sodeep.svm_ap_loss(scores, relevant, scale=scale)
            torch.testing.assert_close(loss, expected)
            gradients = [torch.autograd.grad(x, scores)[0] for x in (loss, expected)]
            torch.testing.assert_close(*gradients)


def test_it_bounds_the_metric_and_is_convex():
    for seed in range(20):
        (a, relevant), (b, _) = draw(30, seed, 6), draw(30, 100 + seed)
        a, b = a.detach(), b.detach()
        at_a, at_b, between = (sodeep.svm_ap_loss(s, relevant, scale=3.0) for s in (a, b, 0.3 * a + 0.7 * b))
        assert at_a >= 1 - sodeep.average_precision(a, relevant)
        assert between <= 0.3 * at_a + 0.7 * at_b + 1e-12


def test_scores_apart_enough_cost_nothing():
    scores, relevant = torch.tensor([5.0, 4.0, 0.0, -1.0]), torch.tensor([True, True, False, False])
    assert sodeep.svm_ap_loss(scores, relevant) == 0
    assert sodeep.svm_ap_loss(scores, ~relevant) > 1
    assert sodeep.svm_ap_loss(scores, torch.ones(4)) == 0  # nothing to be above


def test_the_weight_of_a_pair_is_all_or_nothing():
    scores, relevant = draw(40, 3, 8)
    weights = sodeep.pair_weights(sodeep.SVMAPLoss(0.7), scores.detach(), relevant)
    in_pairs = weights * (8 * 32 / (2 * 0.7))
    torch.testing.assert_close(in_pairs, in_pairs.round())
    torch.testing.assert_close(weights.sum(), torch.tensor(0.0, dtype=F64))
    assert (weights[relevant] <= 0).all()
    assert (weights[~relevant] >= 0).all()


def test_equal_scores_share_their_weight():
    scores = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.5], dtype=F64)
    relevant = torch.tensor([True, True, False, False, False, False])
    weights = sodeep.pair_weights(sodeep.SVMAPLoss(), scores, relevant)
    assert weights[:2].unique().numel() == 1
    assert weights[2:5].unique().numel() == 1


@pytest.mark.parametrize("elements", [1, 7, 50, 10_000])
def test_tiles_change_nothing(elements, monkeypatch):
    """Lists and negatives are visited some at a time; lists have 1 to 12 relevant items and a few masked ones."""
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(9, 25, generator=generator, dtype=F64)
    relevant = torch.rand(9, 25, generator=generator) < torch.linspace(0.05, 0.5, 9).unsqueeze(1)
    relevant[:, 0] = True
    where = torch.rand(9, 25, generator=generator) < 0.9
    where[:, 0] = True
    expected = torch.stack(
        [sodeep.svm_ap_loss(s[w], r[w], scale=4.0) for s, r, w in zip(scores, relevant, where, strict=True)]
    )
    monkeypatch.setattr(svm_ap, "chunk_elements", lambda device: elements)
    values = sodeep.svm_ap_loss(scores, relevant, scale=4.0, where=where, reduction="none")
    torch.testing.assert_close(values, expected)
    weights = sodeep.pair_weights(sodeep.SVMAPLoss(4.0), scores, relevant, where)
    monkeypatch.undo()
    torch.testing.assert_close(weights, sodeep.pair_weights(sodeep.SVMAPLoss(4.0), scores, relevant, where))


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), "1"])
def test_bad_scale(scale):
    with pytest.raises(ValueError, match=r"^`scale` must be ") as caught:
        sodeep.SVMAPLoss(scale)
    assert str(caught.value).endswith(f"got {scale!r}.")
