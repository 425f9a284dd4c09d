"""Rank functions of other packages in losses: their values, direction, masks and gradient."""

import pytest
import torch

import sodeep


def torchsort_rank(package, scores):
    """It ranks the rows of a matrix, the lowest first."""
    rows = -scores.reshape(-1, scores.shape[-1])
    return package.soft_rank(rows, regularization_strength=0.01).view(scores.shape)


def softtorch_rank(package, scores):
    """Without `dim` it ranks all lists as one."""
    return package.rank(scores, dim=-1, softness=0.003)


@pytest.mark.parametrize(("name", "rank"), [("torchsort", torchsort_rank), ("softtorch", softtorch_rank)])
def test_a_rank_function_of_another_package(name, rank, generator):
    package = pytest.importorskip(name)
    scores, target = torch.randn(2, 4, 12, generator=generator)
    where = torch.rand(4, 12, generator=generator) < 0.8
    relevant = (torch.arange(12) < 3).expand(4, 12)

    def rank_fn(scores):
        return rank(package, scores)

    torch.testing.assert_close(rank_fn(scores), sodeep.exact_rank(scores), rtol=0, atol=0.5)
    for function in (rank_fn, sodeep.straight_through(rank_fn)):
        for loss, labels in ((sodeep.spearman_loss, target), (sodeep.map_loss, relevant)):
            leaf = scores.clone().requires_grad_()
            value = loss(leaf, labels, where=where, rank_fn=function)
            exact = loss(scores, labels, where=where, rank_fn=sodeep.exact_rank)
            torch.testing.assert_close(value.detach(), exact, rtol=0, atol=0.02)
            value.backward()
            assert leaf.grad[where].abs().sum() > 0
            assert not leaf.grad[~where].any()


def test_one_that_ranks_the_other_way_round_warns(generator):
    package = pytest.importorskip("torchsort")
    scores, target = torch.randn(2, 12, generator=generator)
    with pytest.warns(UserWarning, match="rank 1"):
        sodeep.spearman_loss(scores, target, rank_fn=lambda s: package.soft_rank(s.reshape(1, -1)).view(s.shape))
