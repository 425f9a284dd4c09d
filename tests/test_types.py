"""What a type checker knows of a loss: mypy reads this file with the package, and it runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from typing_extensions import assert_type

import sodeep
from sodeep import CrossModalLoss, EmbeddingLoss, ListStats, SmoothAPLoss, SpearmanLoss, SpearmanStats

SCORES = torch.tensor([[0.9, 0.2, 0.4]])
RELEVANT = torch.tensor([[True, False, True]])


def test_a_loss_is_a_tensor() -> None:
    rank_fn = sodeep.laplace_rank
    assert isinstance(assert_type(sodeep.spearman_loss(SCORES, SCORES, rank_fn=rank_fn), Tensor), Tensor)
    assert isinstance(assert_type(sodeep.smooth_ap_loss(SCORES, relevant=RELEVANT, tau=0.1), Tensor), Tensor)
    assert isinstance(assert_type(sodeep.triplet_loss(SCORES, RELEVANT, reduction="none"), Tensor), Tensor)
    assert isinstance(assert_type(SpearmanLoss(rank_fn)(SCORES, SCORES), Tensor), Tensor)
    assert isinstance(assert_type(SmoothAPLoss()(SCORES, RELEVANT), Tensor), Tensor)
    rows = torch.eye(4)
    assert isinstance(assert_type(EmbeddingLoss(SmoothAPLoss())(rows, [0, 0, 1, 1]), Tensor), Tensor)
    assert isinstance(assert_type(CrossModalLoss(SmoothAPLoss())(rows, rows), Tensor), Tensor)


def test_groups_are_ids_of_any_kind() -> None:
    scores, relevance = SCORES[0], RELEVANT[0]
    loss = sodeep.NDCGLoss(sodeep.laplace_rank)
    for group in (torch.tensor([7, 5, 7]), [7, 5, 7], ("a", "b", "a"), sodeep.Groups([7, 5, 7])):
        value = sodeep.ndcg_loss(scores, relevance, rank_fn=sodeep.laplace_rank, group=group)
        assert isinstance(assert_type(value, Tensor), Tensor)
        assert isinstance(assert_type(loss(scores, relevance, group=group), Tensor), Tensor)
        assert isinstance(assert_type(sodeep.dcg(scores, relevance, group=group), Tensor), Tensor)
        padded, where = assert_type(sodeep.pad_groups(scores, group), tuple[Tensor, Tensor])
        assert torch.equal(sodeep.unpad_groups(padded, group), scores)
        assert where.dtype == torch.bool
    with pytest.raises(ValueError, match=r"^`group` must have shape \(n,\), an id for each item, got "):
        sodeep.dcg(scores, relevance, group=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^`group` must have shape \(n,\), an id for each item, got "):
        sodeep.softmax_loss(scores, relevance, group=7)  # type: ignore[call-overload]


def test_stats_stand_beside_it() -> None:
    value, stats = assert_type(
        sodeep.smooth_ap_loss(SCORES, RELEVANT, tau=0.1, return_stats=True), tuple[Tensor, ListStats]
    )
    assert isinstance(value, Tensor)
    assert isinstance(stats, ListStats)
    value, stats = assert_type(SmoothAPLoss()(SCORES, RELEVANT, return_stats=True), tuple[Tensor, ListStats])
    assert isinstance(stats, ListStats)
    loss = SpearmanLoss(sodeep.laplace_rank)
    value, parts = assert_type(loss(SCORES, SCORES, return_stats=True), tuple[Tensor, SpearmanStats])
    assert isinstance(parts, SpearmanStats)
    for flag in (True, False):
        either = sodeep.smooth_ap_loss(SCORES, RELEVANT, return_stats=flag)
        assert_type(either, Tensor | tuple[Tensor, ListStats])
        assert isinstance(either, tuple) is flag


def test_options_are_checked() -> None:
    """An ignore that is not needed is an error: these calls are wrong to mypy as well."""
    with pytest.raises(TypeError):
        sodeep.smooth_ap_loss(SCORES, RELEVANT, temperature=0.1)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"^`tau` must be a positive number, got '0\.1'\.$"):
        sodeep.smooth_ap_loss(SCORES, RELEVANT, tau="0.1")  # type: ignore[call-overload]
