"""Every sorter that ships is as good as its card says, and behaves as a loss needs it to."""

import json
from pathlib import Path

import pytest
import torch

import sodeep
from sodeep.generators import draw

CARDS = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parents[1] / "pretrained").glob("*.json")}

pytestmark = pytest.mark.parametrize("name", sorted(CARDS))


@pytest.fixture
def sorter(name):
    return sodeep.load_sorter(name)


def lists(sorter, count=16):
    return torch.randn(count, sorter.seq_len or 60, generator=torch.Generator().manual_seed(3))


def test_card_is_of_this_file(name, sorter):
    assert sum(p.numel() for p in sorter.parameters()) == CARDS[name]["weights"]
    assert sorter.trained["steps"] == CARDS[name]["training"]["steps"]
    assert CARDS[name]["results"][0]["name"] == name


def test_error_is_that_of_the_card(name, sorter):
    for length, stated in CARDS[name]["results"][0]["errors"].items():
        n = int(length)
        count = max(4, min(256, 256 * 1000 // n))  # the lists of sodeep.evaluation.evaluate
        scores = draw(sodeep.SODEEP2019, count, n, torch.Generator().manual_seed(1234))
        assert sodeep.rank_error(sorter, scores) <= 1.05 * stated, f"n = {n}"


def test_climb_is_that_of_the_card(name, sorter):
    stated = CARDS[name]["results"][0]["climb"]["30"]
    assert sodeep.climb(sorter, n=CARDS[name]["n"], steps=(30,))[30] > stated - 0.005


def test_scale_and_offset_do_not_matter(name, sorter):
    scores = lists(sorter).double()
    ranks = sorter(scores)
    for scale, offset in ((1e-3, 0), (1e4, 0), (1, 1000), (1e4, -1e6)):
        torch.testing.assert_close(sorter(scores * scale + offset), ranks, rtol=0, atol=1e-3 * scores.shape[-1])


def test_gradient_is_finite_and_reaches_every_score(name, sorter):
    scores = lists(sorter).requires_grad_()
    sodeep.spearman_loss(scores, lists(sorter).flip(-1), rank_fn=sorter).backward()
    assert bool(scores.grad.isfinite().all())
    assert float((scores.grad == 0).float().mean()) < 0.01


def test_constant_and_tied_lists(name, sorter):
    n = sorter.seq_len or 60
    constant = torch.full((1, n), 0.3, requires_grad=True)
    ranks = sorter(constant)
    ranks.sum().backward()
    assert bool(constant.grad.isfinite().all())
    assert bool(ranks.isfinite().all())
    if sorter.reads_masks:  # permutation-equivariant: equal scores cannot have different ranks
        torch.testing.assert_close(ranks, torch.full((1, n), (n + 1) / 2))
        tied = torch.tensor([0.0, 1.0, 1.0, 2.0]).repeat(n // 4)[None]
        ranks = sorter(tied)
        for value in (0.0, 1.0, 2.0):
            group = ranks[tied == value]
            torch.testing.assert_close(group, group[:1].expand_as(group), rtol=0, atol=1e-3)
