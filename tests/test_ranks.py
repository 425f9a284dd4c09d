"""Rank functions against scipy, plain loops and each other; masks, ties, invariances, extremes, dtypes, compilers."""

from __future__ import annotations

import functools
import math
import pickle
import re
import warnings

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from sodeep import ranks, spearman_loss
from sodeep._core import sigmoid_blocks, soft_ranks
from sodeep._core.checks import describe
from sodeep._core.live_tensors import LiveTensors
from sodeep.ranks import (
    apply_rank_fn,
    blackbox_rank,
    exact_rank,
    laplace_rank,
    sigmoid_rank,
    straight_through,
    with_width,
)

SOFT = [sigmoid_rank, laplace_rank]
STRAIGHT = straight_through(laplace_rank)
SHARP = with_width(laplace_rank, 0.1)
DIFFERENTIABLE = [sigmoid_rank, laplace_rank, blackbox_rank, STRAIGHT, SHARP]
ALL = [exact_rank, *DIFFERENTIABLE]
COMPARATOR = {
    sigmoid_rank: torch.sigmoid,
    laplace_rank: lambda d: torch.where(d < 0, d.clamp(max=0).exp() / 2, 1 - (-d.clamp(min=0)).exp() / 2),
}


def named(function):
    return getattr(function, "__name__", repr(function))


each = functools.partial(pytest.mark.parametrize, "rank_fn", ids=named)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def draw_mask(*shape, seed=1):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.7


def soft_reference(rank_fn, scores, tau):
    """The definition, pair by pair: 1 + the sum over j != i."""
    d = (scores.unsqueeze(-2) - scores.unsqueeze(-1)) / tau
    return COMPARATOR[rank_fn](d).masked_fill(torch.eye(scores.shape[-1], dtype=torch.bool), 0).sum(-1) + 1


def deviation(scores):
    """Population standard deviation in two passes: torch.std loses digits to an offset."""
    return (scores - scores.mean(-1, keepdim=True)).square().mean(-1, keepdim=True).sqrt()


def gradient(rank_fn, scores, weights, **kwargs):
    scores = scores.detach().clone().requires_grad_()
    (rank_fn(scores, **kwargs) * weights).sum().backward()
    return scores.grad


# values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 7, 1999, 2000, 5000])
@pytest.mark.parametrize("levels", [2, 30, 10**6])
def test_exact_rank_is_scipys_average_rank(n, levels, dtype):
    scores = (draw(3, n, dtype=dtype) * levels / 3).round()
    want = scipy.stats.rankdata(-scores.numpy(), axis=-1)
    np.testing.assert_array_equal(exact_rank(scores).numpy(), want)


def test_exact_rank_by_hand():
    # case H1: ascending average ranks of 3 1 3 2 1 5 3 2 are 6 1.5 6 3.5 1.5 8 6 3.5
    scores = torch.tensor([3.0, 1, 3, 2, 1, 5, 3, 2])
    assert (9 - exact_rank(scores)).tolist() == [6, 1.5, 6, 3.5, 1.5, 8, 6, 3.5]
    assert exact_rank(torch.tensor([0.0, -0.0, 1.0])).tolist() == [2.5, 2.5, 1.0]
    assert exact_rank(torch.tensor([5.0])).tolist() == [1.0]


def test_70000_ties_do_not_overflow():
    for rank_fn in (exact_rank, laplace_rank, STRAIGHT):
        assert rank_fn(torch.zeros(70_000)).unique().tolist() == [35_000.5]


@pytest.mark.parametrize("n", [2**11, 5000])
def test_float32_order_at_every_magnitude(n):
    """The radix sort works on the bits of the scores: all signs, exponents, subnormals, both zeros, the largest."""
    bits = torch.randint(-(2**31), 2**31, (2, n), generator=torch.Generator().manual_seed(0), dtype=torch.int64)
    scores = bits.to(torch.int32).view(torch.float32).nan_to_num(0.0, 1.0, -1.0)
    scores[:, :6] = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38])
    np.testing.assert_array_equal(exact_rank(scores).numpy(), scipy.stats.rankdata(-scores.double(), axis=-1))
    short = scores[:, :100]
    np.testing.assert_array_equal(exact_rank(short).numpy(), scipy.stats.rankdata(-short.double(), axis=-1))


SPREADS = {
    "normal": lambda: draw(2, 200),
    "tiny": lambda: draw(2, 200) * 1e-30,
    "huge": lambda: draw(2, 200) * 1e30,
    "ties": lambda: draw(2, 200).round(),
    "offset": lambda: draw(2, 200) + 1e6,
    "outlier": lambda: torch.cat([draw(2, 199), torch.full((2, 1), 1e9)], -1),
    "low outlier": lambda: torch.cat([draw(2, 199), torch.full((2, 1), -1e9)], -1),
    "two clusters": lambda: torch.cat([draw(2, 100), draw(2, 100) + 1e7], -1),
    "heavy tails": lambda: draw(2, 200, seed=1) / draw(2, 200, seed=2),
    "cubed": lambda: draw(2, 200) ** 7,
}


@pytest.mark.parametrize("tau", [None, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("spread", SPREADS)
@each(SOFT)
def test_soft_rank_and_gradient_are_the_pairwise_sum(rank_fn, spread, tau):
    scores = SPREADS[spread]()
    weights = draw(*scores.shape, seed=3)
    width = deviation(scores) / 6.8 if tau is None else torch.full((2, 1), tau, dtype=torch.float64)
    assert_close(rank_fn(scores, tau), soft_reference(rank_fn, scores, width.unsqueeze(-1)), rtol=1e-12, atol=1e-12)

    def reference(s):
        return soft_reference(rank_fn, s, width.unsqueeze(-1))

    got, want = gradient(rank_fn, scores, weights, tau=tau), gradient(reference, scores, weights)
    assert_close(got, want, rtol=1e-9, atol=1e-12 * float(want.abs().max()))


@pytest.mark.parametrize("shape", [(2, 700), (3, 512), (1, 1100), (900, 17)])
def test_sigmoid_tiles_cover_every_pair_once(shape):
    scores, weights = draw(*shape), draw(*shape, seed=1)
    where = draw_mask(*shape)
    tau = torch.tensor(0.1, dtype=torch.float64)
    assert_close(sigmoid_rank(scores, 0.1), soft_reference(sigmoid_rank, scores, 0.1))
    want = gradient(lambda s: soft_reference(sigmoid_rank, s, 0.1), scores, weights)
    assert_close(gradient(sigmoid_rank, scores, weights, tau=0.1), want)
    masked = sigmoid_rank(scores, tau.view((1,) * scores.ndim), where)
    assert_close(masked[-1][where[-1]], soft_reference(sigmoid_rank, scores[-1][where[-1]], tau))


@pytest.mark.parametrize("tau", [1e-3, 0.1, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sigmoid_blocks_are_the_pairwise_sum(tau, dtype):
    """Long lists: ties over several blocks, clusters, an outlier, all equal; masked; weights of the gradient."""
    normal = draw(40, 500)
    normal[1], normal[2], normal[3, 7], normal[4] = normal[1].round(), normal[2] + 1e3 * (normal[3] > 0), 1e6, 0.3
    where, scores, weights = draw_mask(40, 500), normal.to(dtype), draw(40, 500, seed=2).to(dtype)
    assert sigmoid_blocks.worthwhile(scores)
    got, want = sigmoid_rank(scores, tau), soft_reference(sigmoid_rank, scores.double(), tau)
    # float32 sums of up to 32 pairs of 1/2 each round to a millionth
    tolerance = {"rtol": 1e-13, "atol": 0} if dtype == torch.float64 else {"rtol": 1e-6, "atol": 5e-6}
    assert_close(got.double(), want, **tolerance)
    for row in (1, 4):
        for value in scores[row].unique():
            assert got[row][scores[row] == value].unique().numel() == 1
    masked = sigmoid_rank(scores, tau, where)
    real = soft_reference(sigmoid_rank, scores[5].double()[where[5]], tau)
    assert_close(masked[5][where[5]].double(), real, **tolerance)
    got = gradient(sigmoid_rank, scores, weights, tau=tau).double()
    want = gradient(lambda s: soft_reference(sigmoid_rank, s, tau), scores.double(), weights.double())
    assert_close(got, want, rtol=0, atol=float(want.abs().max()) * (1e-12 if dtype == torch.float64 else 1e-6))


@each(SOFT)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_soft_ranks_are_the_same_on_both_sides_of_their_switch(rank_fn, masked, dtype):
    """The ranks of lists that span many tau are made of other sums."""
    scores, weights = draw(300).to(dtype), draw(300, seed=2).to(dtype)
    where = draw_mask(300) if masked else torch.ones(300, dtype=torch.bool)
    scores[:100] = scores[:100].round(decimals=1)  # ties
    span, widest = scores[where].max() - scores[where].min(), soft_ranks._WIDEST[dtype]
    tolerance = 1e-13 if dtype == torch.float64 else 2e-7
    for tau in (span / (widest - 1), span / (widest + 1)):

        def rank(x, tau=tau):
            return rank_fn(x, tau, where if masked else None)[where]

        def reference(x, tau=tau):
            return soft_reference(rank_fn, x[where], tau.double())

        assert_close(rank(scores).double(), reference(scores.double()), rtol=0, atol=300 * tolerance)
        got, want = gradient(rank, scores, weights[where]), gradient(reference, scores.double(), weights[where])
        assert_close(got.double(), want, rtol=0, atol=float(want.abs().max()) * 300 * tolerance)


def test_a_wide_list_beside_a_narrow_one_changes_neither():
    narrow, wide = draw(1, 300), draw(1, 300, seed=5) ** 9 * 1e6
    both = laplace_rank(torch.cat([narrow, wide]), tau=0.1)
    assert_close(both, torch.cat([laplace_rank(narrow, 0.1), laplace_rank(wide, 0.1)]), rtol=1e-13, atol=0)


@each(SOFT)
def test_soft_ranks_become_exact_as_tau_falls(rank_fn):
    scores = draw(4, 50).round(decimals=1)
    assert_close(rank_fn(scores, tau=1e-4), exact_rank(scores), rtol=0, atol=1e-9)
    assert_close(rank_fn(scores, tau=1e9), torch.full((4, 50), 25.5).double(), rtol=1e-6, atol=0)


@each(SOFT)
def test_ranks_sum_to_the_sum_of_one_to_n(rank_fn):
    for tau in (None, 0.3):
        assert_close(rank_fn(draw(3, 40), tau).sum(-1), torch.full((3,), 820.0).double())


@each(SOFT)
def test_tau_one_per_list(rank_fn):
    scores = draw(2, 3, 20)
    tau = torch.tensor([0.1, 0.2, 0.5]).double().unsqueeze(-1)
    want = torch.stack([rank_fn(scores[:, i], float(t)) for i, t in enumerate(tau)], 1)
    assert_close(rank_fn(scores, tau), want)


@each(SOFT)
def test_a_tau_that_learns(rank_fn):
    scores, where = draw(2, 3, 8), draw_mask(2, 3, 8)
    tau = torch.tensor([0.4, 0.7, 1.5]).double().unsqueeze(-1)
    values, slope = rank_fn(scores, tau, where), gradient(rank_fn, scores, draw(2, 3, 8), tau=tau, where=where)
    tau.requires_grad_()
    assert_close(rank_fn(scores, tau, where), values)
    assert_close(gradient(rank_fn, scores, draw(2, 3, 8), tau=tau, where=where), slope)
    assert gradcheck(lambda s, t: rank_fn(s, t, where), (scores.requires_grad_(), tau))
    single = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    hard = straight_through(functools.partial(rank_fn, tau=single))(scores.detach())
    soft = rank_fn(scores.detach(), single)
    assert_close(*(torch.autograd.grad(r[..., 0].sum(), single, retain_graph=True) for r in (hard, soft)))
    assert gradgradcheck(lambda t: rank_fn(scores.detach(), t), single)
    # neither what is masked nor where the scores lie reaches it
    far = (scores.detach() + 2**20).masked_fill(~where, torch.nan).float()
    slopes = [torch.autograd.grad(rank_fn(s, single, where)[..., 0].sum(), single)[0] for s in (scores.detach(), far)]
    assert_close(slopes[0], slopes[1], rtol=0.1, atol=0)
    with pytest.raises(
        ValueError, match=r"^`tau` must be positive and finite, got a smallest value of -0\.5\. To learn"
    ):
        rank_fn(scores, -single)


# invariances


@each(ALL)
def test_scale_and_offset_change_nothing(rank_fn):
    """Case H3: ages, prices, logits."""
    base = torch.tensor([1000.1, 1000.4, 1000.2, 1000.3])
    first = rank_fn(base)
    assert_close(first, torch.tensor([4.0, 1, 3, 2]), rtol=0, atol=0.05)
    for scores in (base - 1000, (base - 1000) * 0.001, base * 1e4, base.double() + 1e8, (base.double() - 1000) * 1e20):
        assert_close(rank_fn(scores).float(), first, rtol=0, atol=1e-3)


@each(DIFFERENTIABLE)
def test_gradient_scales_inversely_with_the_scores_and_linearly_with_the_incoming_one(rank_fn):
    scores, weights = draw(3, 50), draw(3, 50, seed=1)
    base = gradient(rank_fn, scores, weights)
    assert base.abs().max() > 0
    assert_close(gradient(rank_fn, scores * 2**20, weights) * 2**20, base)
    assert_close(gradient(rank_fn, scores, weights * 1e-12) * 1e12, base)
    assert_close(gradient(rank_fn, scores, weights * 0), base * 0)
    scores, weights = scores.float(), weights.float()
    assert_close(gradient(rank_fn, scores, weights * 2.0**-100) * 2.0**100, gradient(rank_fn, scores, weights))


@each(ALL)
def test_order_and_batch_change_nothing(rank_fn):
    scores, weights = draw(6, 30).round(decimals=1), draw(6, 30, seed=1)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(2))
    assert_close(rank_fn(scores[:, order]), rank_fn(scores)[:, order])
    assert_close(rank_fn(scores.view(2, 3, 30)), rank_fn(scores).view(2, 3, 30))
    assert_close(rank_fn(scores[4]), rank_fn(scores)[4])
    if rank_fn is not exact_rank:
        got = gradient(rank_fn, scores[:, order], weights[:, order])
        if rank_fn is not blackbox_rank:  # moved scores may be nearly equal, and then rounding decides
            assert_close(got, gradient(rank_fn, scores, weights)[:, order])


@each(ALL)
def test_shapes(rank_fn):
    for shape in ((5,), (0, 5), (2, 0, 5), (1,), (3, 1), (2, 3, 4, 5)):
        scores = draw(*shape).requires_grad_()
        result = rank_fn(scores)
        assert result.shape == shape
        if rank_fn is not exact_rank:
            result.sum().backward()
            assert scores.grad.shape == shape
    assert rank_fn(draw(3, 1)).tolist() == [[1.0]] * 3


@each(ALL)
def test_input_may_be_strided_and_is_left_alone(rank_fn):
    big = draw(8, 20, dtype=torch.float32)
    views = big.t(), big[::2, ::3], big[:, None, :5].expand(8, 3, 5)
    for view in views:
        before = view.clone()
        where = draw_mask(*view.shape)
        assert_close(rank_fn(view), rank_fn(view.contiguous()))
        assert_close(rank_fn(view, where=where), rank_fn(view.contiguous(), where=where))
        assert_close(view, before, rtol=0, atol=0)
        if rank_fn is not exact_rank:
            weights = draw(*view.shape, dtype=torch.float32)
            assert_close(gradient(rank_fn, view, weights), gradient(rank_fn, view.contiguous(), weights))


@each(ALL)
def test_ties_share_their_rank_and_constants_the_middle(rank_fn):
    scores = torch.tensor([[0.3, 0.1, 0.3, 0.2, 0.3]], dtype=torch.float64)
    result = rank_fn(scores)[0]
    assert_close(result[[2, 4]], result[[0, 0]], rtol=1e-14, atol=0)
    for n in (1, 2, 3, 6, 1001):
        for value in (0.4, 0.1, -1e30, 1e-300, 0.0):
            constant = torch.full((2, n), value, dtype=torch.float64)
            assert rank_fn(constant).unique().tolist() == [(n + 1) / 2]
            if rank_fn is not exact_rank:
                assert gradient(rank_fn, constant, draw(2, n)).isfinite().all()


# gradients


@each(SOFT)
@pytest.mark.parametrize("tau", [0.3, 1e-4])
@pytest.mark.parametrize("masked", [False, True])
def test_gradcheck_and_gradgradcheck(rank_fn, tau, masked):
    scores = (draw(2, 6) * tau * 3).requires_grad_()
    with torch.no_grad():
        scores[0, 0] = 2000 * tau  # takes laplace_rank past its switch
    where = torch.tensor([[True] * 5 + [False], [False, True] * 3]) if masked else None
    # in units of tau, so that the numerical derivative is well conditioned
    for some in (scores, scores[1:]):
        units = (some.detach() / tau).requires_grad_()
        real = None if where is None else where[-len(some) :]

        def in_units(s, real=real):
            return rank_fn(s * tau, tau, real)

        assert gradcheck(in_units, (units,))
        assert gradgradcheck(in_units, (units,), atol=1e-4)


@each(SOFT)
def test_a_penalty_on_the_gradient_trains(rank_fn):
    scores = draw(2, 10).requires_grad_()
    (slope,) = torch.autograd.grad((rank_fn(scores) * draw(2, 10, seed=1)).sum(), scores, create_graph=True)
    slope.square().sum().backward()
    assert scores.grad.isfinite().all()
    assert scores.grad.abs().max() > 0


def test_third_derivatives_and_second_ones_of_blackbox_are_refused():
    scores = draw(5).requires_grad_()
    message = "trying to differentiate twice a function that was marked with @once_differentiable"
    (slope,) = torch.autograd.grad(blackbox_rank(scores).square().sum(), scores, create_graph=True)
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        slope.sum().backward()
    for rank_fn in SOFT:
        (slope,) = torch.autograd.grad(rank_fn(scores).square().sum(), scores, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.square().sum(), scores, create_graph=True)
        with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
            curvature.sum().backward()


def test_blackbox_gradient_by_hand():
    # moving item 0 (0.2, rank 3) by lam 0.5 takes it over 0.5: the ranks 3 1 2 become 2 1 3
    scores = torch.tensor([0.2, 0.9, 0.5])
    got = gradient(functools.partial(blackbox_rank, lam=0.5), scores, torch.tensor([1.0, 0, 0]))
    assert_close(got, torch.tensor([-2.0, 0, 2.0]))
    # a descent step on a loss that wants rank 1 for item 0 raises its score
    assert got[0] < 0


def test_blackbox_gradient_is_the_interpolation():
    scores, weights = draw(4, 20), draw(4, 20, seed=1)
    moved = exact_rank(scores + 0.7 * weights)
    want = (moved - exact_rank(scores)) / 0.7
    assert_close(gradient(functools.partial(blackbox_rank, lam=0.7), scores, weights), want)
    std = deviation(scores)
    lam = ranks.BLACKBOX_STEP * std / weights.square().mean(-1, keepdim=True).sqrt()
    assert_close(
        gradient(blackbox_rank, scores, weights), (exact_rank(scores + lam * weights) - exact_rank(scores)) / lam
    )


@each(DIFFERENTIABLE)
def test_descent_on_the_ranks_finds_the_order(rank_fn):
    scores, target = draw(4, 30).requires_grad_(), exact_rank(draw(4, 30, seed=1))
    optimiser = torch.optim.Adam([scores], lr=0.05)
    start = (exact_rank(scores) - target).abs().mean()
    for _ in range(40):
        optimiser.zero_grad()
        ((rank_fn(scores) - target) / 30).square().mean().backward()
        optimiser.step()
    assert (exact_rank(scores) - target).abs().mean() < 0.35 * start


def test_straight_through_is_exact_forward_and_soft_backward():
    scores, weights = draw(3, 20).round(decimals=1), draw(3, 20, seed=1)
    where = draw_mask(3, 20)
    for kwargs in ({}, {"where": where}):
        assert_close(STRAIGHT(scores, **kwargs), exact_rank(scores, **kwargs), rtol=0, atol=0)
        got, want = (gradient(f, scores, weights, **kwargs) for f in (STRAIGHT, laplace_rank))
        assert_close(got, want, rtol=0, atol=0)
    assert repr(STRAIGHT) == STRAIGHT.__name__ == "straight_through(laplace_rank)"
    assert_close(pickle.loads(pickle.dumps(STRAIGHT))(scores), STRAIGHT(scores))


def test_a_width_is_tau_in_standard_deviations():
    scores, weights, where = 3 + 7 * draw(4, 30), draw(4, 30, seed=1), draw_mask(4, 30)
    tau = torch.stack([0.3 * scores[i][where[i]].std(correction=0) for i in range(4)]).unsqueeze(-1)
    for rank_fn in SOFT:
        wide = with_width(rank_fn, 0.3)
        assert_close(wide(scores, where=where), rank_fn(scores, tau=tau, where=where))
        got = gradient(wide, scores, weights, where=where)
        assert_close(got, gradient(rank_fn, scores, weights, tau=tau, where=where))  # so none flows through tau
        assert_close(with_width(rank_fn, 1 / 6.8)(scores), rank_fn(scores))


def test_a_width_of_blackbox_is_the_length_of_its_move():
    scores, weights = draw(4, 20), draw(4, 20, seed=1)
    lam = 0.7 * deviation(scores) / weights.square().mean(-1, keepdim=True).sqrt()
    want = (exact_rank(scores + lam * weights) - exact_rank(scores)) / lam
    assert_close(gradient(with_width(blackbox_rank, 0.7), scores, weights), want)
    default = with_width(blackbox_rank, ranks.BLACKBOX_STEP)
    assert_close(gradient(default, scores, weights), gradient(blackbox_rank, scores, weights), rtol=0, atol=0)


def test_a_width_goes_into_straight_through():
    scores, weights = draw(3, 20), draw(3, 20, seed=1)
    wide = with_width(STRAIGHT, 2)
    assert_close(wide(scores), exact_rank(scores), rtol=0, atol=0)
    assert_close(gradient(wide, scores, weights), gradient(with_width(laplace_rank, 2), scores, weights))
    assert_close(gradient(STRAIGHT, scores, weights), gradient(laplace_rank, scores, weights))  # as it was


def test_a_width_replaces_an_earlier_one_and_has_a_name():
    again = with_width(with_width(laplace_rank, 2), 0.25)
    assert repr(again) == again.__name__ == "with_width(laplace_rank, 0.25)"
    assert repr(with_width(straight_through(again), 3)) == "straight_through(with_width(laplace_rank, 3))"
    scores = draw(3, 20)
    assert_close(again(scores), with_width(laplace_rank, 0.25)(scores), rtol=0, atol=0)
    assert_close(pickle.loads(pickle.dumps(again))(scores), again(scores), rtol=0, atol=0)


def test_a_rank_function_may_bring_its_own_width():
    class Own(nn.Module):
        def forward(self, scores):
            return exact_rank(scores)

        def with_width(self, width):
            return functools.partial(laplace_rank, tau=width)

    assert with_width(Own(), 3).keywords == {"tau": 3.0}


@pytest.mark.parametrize(
    "rank_fn",
    [exact_rank, functools.partial(laplace_rank, tau=1.0), nn.Identity()],
    ids=["function", "partial", "module"],
)
def test_a_rank_function_without_a_width_is_refused(rank_fn):
    for function in (rank_fn, straight_through(rank_fn)):
        message = (
            f"`rank_fn` must have a width, got {describe(rank_fn)}. These have one: laplace_rank, sigmoid_rank, "
            "blackbox_rank, the set sorter, and straight_through of any of them."
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            with_width(function, 1.0)


@pytest.mark.parametrize("width", [0, -1.0, math.nan, math.inf, "wide", True, torch.ones(2)])
def test_a_width_must_be_positive(width):
    message = f"`width` must be a positive number, got {describe(width)}."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        with_width(laplace_rank, width)


# masks


PADS = [0.0, -1.0, 1e9, -1e9, math.nan, math.inf, -math.inf]


@each(ALL)
@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_masked_is_deleted(rank_fn, pad, dtype):
    """Case H4 and its siblings: values, gradients and masked entries, list by list."""
    scores = draw(2, 5, 12, dtype=torch.float32).to(dtype)
    weights = draw(2, 5, 12, seed=1).to(dtype)
    where = draw_mask(2, 5, 12)
    where[0, 1] = False
    where[0, 2] = True
    where[1, 0] = torch.arange(12) == 3
    padded = scores.masked_fill(~where, pad)
    result = rank_fn(padded, where=where)
    slope = None if rank_fn is exact_rank else gradient(rank_fn, padded, weights.masked_fill(~where, pad), where=where)
    assert (result[~where] == 0).all()
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype != torch.float64 else {"rtol": 1e-11, "atol": 1e-11}
    for i in np.ndindex(2, 5):
        real = where[i]
        if real.any():
            assert_close(result[i][real], rank_fn(scores[i][real]), **tolerance)
    if slope is not None:
        assert slope.dtype == dtype
        assert (slope[~where] == 0).all()
        for i in np.ndindex(2, 5):
            real = where[i]
            if real.any():
                want = gradient(rank_fn, scores[i][real], weights[i][real])
                assert_close(slope[i][real], want, **(tolerance if dtype != torch.bfloat16 else {}))


@each(ALL)
def test_padded_list_by_hand(rank_fn):
    a = torch.tensor([[0.2, 0.9, 0.5, 0, 0], [-0.3, 0.1, 0.4, -0.8, 0.0]])
    where = torch.tensor([[True, True, True, False, False], [True] * 5])
    want = torch.tensor([[3.0, 1, 2, 0, 0], [4, 2, 1, 5, 3]])
    assert_close(rank_fn(a, where=where), want, rtol=0, atol=0.2)
    reverse = torch.tensor([[1.0, 3, 2, 0, 0], [2, 4, 5, 1, 3]])
    assert_close(rank_fn(-a, where=where), reverse, rtol=0, atol=0.2)


@each(DIFFERENTIABLE)
def test_masks_survive_anomaly_detection(rank_fn):
    scores = draw(3, 8).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that detection is slow
        with torch.autograd.detect_anomaly():
            rank_fn(scores, where=draw_mask(3, 8)).sum().backward()
    assert scores.grad.isfinite().all()


@each(ALL)
def test_mask_broadcasts(rank_fn):
    where = torch.tensor([True, False, True, True])
    scores = draw(3, 4)
    assert_close(rank_fn(scores, where=where), rank_fn(scores, where=where.expand(3, 4)))


# dtypes and precision


@each(ALL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(rank_fn, dtype):
    scores = draw(3, 20, dtype=torch.float32).to(dtype)
    wide = scores.to(torch.float64 if dtype == torch.float64 else torch.float32)
    result = rank_fn(scores)
    assert result.dtype == wide.dtype
    assert_close(result, rank_fn(wide), rtol=0, atol=0)
    if rank_fn is not exact_rank:
        slope = gradient(rank_fn, scores, draw(3, 20, seed=1))
        assert slope.dtype == dtype
        assert slope.isfinite().all()


@pytest.mark.parametrize(
    ("dtype", "n", "step"), [(torch.bfloat16, 300, 256), (torch.float16, 3000, 2048)], ids=["bfloat16", "float16"]
)
@pytest.mark.parametrize("autocast", [False, True])
@each([exact_rank, laplace_rank, blackbox_rank, STRAIGHT])
def test_ranks_of_half_precision_scores_are_exact(rank_fn, dtype, n, step, autocast):
    """Case H8: the ranks of 300 items do not fit in bfloat16, nor those of 3,000 in float16."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    scores = ((order - n // 2) / step).to(dtype)
    if rank_fn is laplace_rank:
        rank_fn = functools.partial(laplace_rank, tau=1e-6)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = rank_fn(scores)
    assert result.dtype == torch.float32
    assert_close(result, (n - order).float(), rtol=0, atol=0)


@each(SOFT)
def test_float32_against_float64(rank_fn):
    scores = draw(2, 3000, dtype=torch.float32)
    assert_close(rank_fn(scores).double(), rank_fn(scores.double()), rtol=1e-6, atol=1e-3)
    weights = draw(2, 3000, dtype=torch.float32, seed=1)
    got, want = gradient(rank_fn, scores, weights), gradient(rank_fn, scores.double(), weights.double())
    assert_close(got.double(), want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


@each(ALL)
def test_extreme_values(rank_fn):
    for scale in (1e-36, 1e-20, 1e20, 3e37):
        scores = (torch.tensor([[0.0, 1, -1, 3, 2]]) * scale).float()
        assert_close(rank_fn(scores).round(), exact_rank(scores))
    for scale in (1e-300, 1e-200, 1e200, 1e307):
        scores = torch.tensor([[0.0, 1, -1, 3, 2]], dtype=torch.float64) * scale
        assert_close(rank_fn(scores).round(), exact_rank(scores))
    far = torch.tensor([[-3.4e38, 3.4e38, 0.0]])
    assert_close(rank_fn(far).round(), exact_rank(far))
    if rank_fn is not exact_rank:
        assert gradient(rank_fn, far, torch.tensor([1.0, 2, 3])).isfinite().all()


# compilers and transforms


# torch instantiates autograd.Function while it traces one, against its own advice
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@each(ALL)
@pytest.mark.parametrize("masked", [False, True])
def test_compiles_as_one_graph(rank_fn, masked):
    torch._dynamo.reset()
    scores, weights = draw(4, 37), draw(4, 37, seed=1)
    where = draw_mask(4, 37) if masked else None
    compiled = torch.compile(functools.partial(rank_fn, where=where), fullgraph=True, backend="aot_eager")
    assert_close(compiled(scores), rank_fn(scores, where=where), rtol=1e-12, atol=1e-12)
    if rank_fn is not exact_rank:
        got = gradient(compiled, scores, weights)
        assert_close(got, gradient(rank_fn, scores, weights, where=where), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_laplace_rank_holds_at_any_spread(dtype):
    """Its sums go another way there."""
    torch._dynamo.reset()
    compiled = torch.compile(laplace_rank, fullgraph=True, backend="aot_eager")
    where, weights = draw_mask(4, 60), draw(4, 60, seed=1, dtype=dtype)
    tolerance = {"rtol": 0, "atol": 1e-11 if dtype == torch.float64 else 2e-5}
    for scale in (0.0, 1e-20, 1e-3, 1.0, 40.0, 1e3, 1e9, 1e30):
        for cubed in (draw(4, 60, dtype=dtype) ** 3, draw(4, 60, dtype=dtype).round()):
            scores = cubed * scale
            got, want = (f(scores, tau=1.0, where=where) for f in (compiled, laplace_rank))
            assert_close(got, want, **tolerance)
            got, want = (gradient(f, scores, weights, tau=1.0, where=where) for f in (compiled, laplace_rank))
            assert_close(got, want, **tolerance)


@each([exact_rank, sigmoid_rank, laplace_rank])
def test_a_list_with_nan_or_infinity_is_nan_where_values_cannot_be_read(rank_fn):
    torch._dynamo.reset()
    scores = draw(4, 6)
    scores[0, 2], scores[1, 3], scores[2, 0] = math.nan, math.inf, -math.inf
    compiled = torch.compile(rank_fn, fullgraph=True, backend="aot_eager")
    assert compiled(scores).isnan().all(-1).tolist() == [True, True, True, False]
    assert torch.vmap(rank_fn)(scores).isnan().all(-1).tolist() == [True, True, True, False]


@each(ALL)
@pytest.mark.parametrize("masked", [False, True])
def test_torch_func(rank_fn, masked):
    scores, weights = draw(4, 9), draw(4, 9, seed=1)
    where = draw_mask(4, 9) if masked else torch.ones(4, 9, dtype=torch.bool)
    assert_close(torch.vmap(lambda s, w: rank_fn(s, where=w))(scores, where), rank_fn(scores, where=where))
    assert_close(torch.vmap(rank_fn, in_dims=1)(scores.t()), rank_fn(scores))
    if rank_fn is not exact_rank:
        want = gradient(rank_fn, scores, weights, where=where)

        def loss(s, w, real):
            return (rank_fn(s, where=real) * w).sum()

        assert_close(torch.func.grad(loss)(scores, weights, where), want)
        assert_close(torch.vmap(torch.func.grad(loss))(scores, weights, where), want)


@each(SOFT)
def test_jacobian_is_symmetric_with_rows_that_sum_to_zero(rank_fn):
    jacobian = torch.func.jacrev(rank_fn)(draw(7).float().double())
    tau_fixed = torch.func.jacrev(lambda s: rank_fn(s, 0.2))(draw(7))
    for j in (jacobian, tau_fixed):
        assert_close(j, j.t())
        assert_close(j.sum(-1), torch.zeros(7).double())


# memory


class LargestTensor(TorchDispatchMode):
    """Counts the elements of the largest tensor that any operation makes, and of all of them."""

    elements = total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, Tensor):
                self.elements = max(self.elements, x.numel())
                self.total += x.numel()
        return out


def test_sigmoid_rank_of_a_long_list_takes_a_hundred_bytes_an_item():
    """Beside a few MB for the blocks that are visited together."""
    scores = draw(200_000, dtype=torch.float32).requires_grad_()
    with LiveTensors() as live:
        sigmoid_rank(scores).sum().backward()
    assert live.peak < 100 * len(scores) + 16e6


@pytest.mark.parametrize("n", [2**14, 2**14 + 1, 40_000])
def test_sigmoid_blocks_in_parts_are_the_pairwise_sum(n):
    """Some items of a list that is visited in parts, with clusters, ties and an outlier, beside all others."""
    scores, weights = draw(n), draw(n, seed=2)
    scores[: n // 3], scores[n // 2 :: 7], scores[5] = scores[: n // 3].round(decimals=2), 40.0, 1e6
    some = torch.arange(0, n, n // 50)
    d = (scores - scores[some].unsqueeze(1)) / 0.1
    want = d.sigmoid().sum(1) + 0.5
    assert_close(sigmoid_rank(scores, 0.1)[some], want, rtol=1e-13, atol=0)
    density = d.sigmoid() * d.neg().sigmoid() / 0.1
    want = density @ weights - weights[some] * density.sum(1)
    got = gradient(sigmoid_rank, scores, weights, tau=0.1)[some]
    assert_close(got, want, rtol=0, atol=1e-12 * float(want.abs().max()))


@pytest.mark.parametrize("shape", [(1, 3000), (40, 300), (3000, 40)])
def test_sigmoid_rank_never_holds_more_than_a_tile(shape):
    scores = draw(*shape, dtype=torch.float32).requires_grad_()
    with LargestTensor() as largest:
        sigmoid_rank(scores).sum().backward()
    assert largest.elements <= max(soft_ranks._TILE[True][0], scores.numel())
    assert largest.elements < scores.numel() * shape[-1] / 2


def test_laplace_rank_holds_a_few_lists():
    for scale in (1.0, 1e6):
        scores = (draw(2, 1000, dtype=torch.float32) ** 3 * scale).requires_grad_()
        with LargestTensor() as largest:
            laplace_rank(scores, tau=1.0).sum().backward()
        assert largest.elements == scores.numel()


def test_laplace_rank_of_a_wide_list_is_a_small_multiple_of_the_work():
    counts = []
    for scale in (1.0, 1e6):
        scores = (draw(10_001, dtype=torch.float32) * scale).requires_grad_()
        with LargestTensor() as made:
            laplace_rank(scores, tau=1.0).sum().backward()
        counts.append(made.total)
    assert counts[1] < 3 * counts[0]


@each([exact_rank, sigmoid_rank, laplace_rank])
def test_same_input_same_bits(rank_fn):
    scores = draw(3, 2500, dtype=torch.float32)
    assert torch.equal(rank_fn(scores), rank_fn(scores.clone()))


# any rank function


def without_where(scores):
    return exact_rank(scores)


class Sorter(nn.Module):
    def forward(self, scores):
        return laplace_rank(scores)


class MaskedSorter(nn.Module):
    def forward(self, scores, where=None):
        self.seen = where
        return laplace_rank(scores, where=where)


def test_apply_without_a_mask_is_a_call():
    scores = draw(2, 3, 7)
    seen = []
    assert_close(apply_rank_fn(lambda s: seen.append(s) or exact_rank(s), scores), exact_rank(scores))
    assert seen[0] is scores


def test_apply_hands_the_mask_over():
    scores, where = draw(3, 7), draw_mask(3, 7)
    sorter = MaskedSorter()
    assert_close(apply_rank_fn(sorter, scores, where), laplace_rank(scores, where=where))
    assert sorter.seen is where
    partial = functools.partial(laplace_rank, tau=0.1)
    assert_close(apply_rank_fn(partial, scores, where), laplace_rank(scores, tau=0.1, where=where))


@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("rank_fn", [lambda s: laplace_rank(s), Sorter()], ids=["lambda", "module"])
def test_apply_deletes_masked_items(rank_fn, pad):
    scores, weights, where = draw(2, 6, 9), draw(2, 6, 9, seed=1), draw_mask(2, 6, 9)
    where[0, 0] = False
    padded = scores.masked_fill(~where, pad)
    call = functools.partial(apply_rank_fn, rank_fn, where=where)
    assert_close(call(padded), laplace_rank(scores, where=where))
    slope = gradient(call, padded, weights.masked_fill(~where, pad))
    assert_close(slope, gradient(laplace_rank, scores, weights, where=where))
    assert (slope[~where] == 0).all()


def test_apply_calls_once_per_length_with_lists_of_real_items():
    where = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 1], [1, 0, 0, 0]]).bool()
    shapes = []
    result = apply_rank_fn(lambda s: shapes.append(tuple(s.shape)) or exact_rank(s), draw(4, 4), where)
    assert shapes == [(1, 1), (2, 3)]
    assert_close(result, exact_rank(draw(4, 4), where))


def test_apply_takes_one_list():
    scores, where = draw(5), torch.tensor([True, True, False, True, True])
    assert_close(apply_rank_fn(without_where, scores, where), exact_rank(scores, where))


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (
            torch.zeros(3),
            ValueError,
            "`rank_fn` must return a tensor of the shape of its scores (2, 3), got a tensor of shape (3,) and dtype "
            "float32. The last axis is the list; leading axes are batch.",
        ),
        (
            (torch.zeros(2, 3), None),
            TypeError,
            "`rank_fn` must return a tensor of the shape of its scores (2, 3), got tuple. Return the ranks alone.",
        ),
    ],
    ids=["shape", "tuple"],
)
def test_apply_says_what_a_rank_function_must_return(result, error, message):
    for where in (None, torch.ones(2, 3, dtype=torch.bool)):
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            apply_rank_fn(lambda _: result, torch.zeros(2, 3), where)


# bad input


def refuse(error, message, call):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


@each(ALL)
def test_bad_scores(rank_fn):
    refuse(
        TypeError,
        "`scores` must be a torch.Tensor, got list. Convert it first: torch.as_tensor(scores).",
        lambda: rank_fn([1.0, 2.0]),
    )
    refuse(
        TypeError,
        "`scores` must be real floating point, got dtype int64. Convert it first: scores.float().",
        lambda: rank_fn(torch.tensor([1, 2])),
    )
    refuse(
        TypeError,
        "`scores` must be real floating point, got dtype complex64. Convert it first: scores.real.",
        lambda: rank_fn(torch.zeros(2, dtype=torch.complex64)),
    )
    for empty in (torch.zeros(()), torch.zeros(3, 0)):
        refuse(
            ValueError,
            f"`scores` must have a last axis of at least one item, got shape {tuple(empty.shape)}. "
            "The last axis is the list; leading axes are batch.",
            lambda empty=empty: rank_fn(empty),
        )


@each(ALL)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("masked", [False, True])
def test_non_finite_scores_are_counted_and_located(rank_fn, bad, masked):
    scores = draw(3, 4)
    scores[1, 2] = scores[2, 0] = bad
    where = torch.ones(3, 4, dtype=torch.bool) if masked else None
    refuse(
        ValueError,
        f"`scores` must be finite, got 2 NaN or infinite of 12 values, the first ({bad}) at index (1, 2). "
        "Mask such items out with where=, or find the step that made them (torch.autograd.set_detect_anomaly).",
        lambda: rank_fn(scores, where=where),
    )


@each(ALL)
def test_bad_masks(rank_fn):
    refuse(
        TypeError,
        "`where` must be a boolean tensor (True = a real item), got dtype float32. Convert it: where.bool().",
        lambda: rank_fn(torch.zeros(3), where=torch.ones(3)),
    )
    refuse(
        ValueError,
        "`where` must have the shape of `scores` (2, 3), got (2, 4).",
        lambda: rank_fn(torch.zeros(2, 3), where=torch.ones(2, 4, dtype=torch.bool)),
    )


@each(SOFT)
def test_bad_tau(rank_fn):
    for bad in (0, -1.0, math.nan, math.inf, True, "sharp"):
        refuse(
            ValueError, f"`tau` must be a positive number, got {bad!r}.", lambda bad=bad: rank_fn(torch.zeros(3), bad)
        )
    refuse(
        ValueError,
        "`tau` must broadcast to (2, 1), one number a list, got a tensor of shape (2,) and dtype float32. "
        "Its last axis must have one entry: tau.unsqueeze(-1).",
        lambda: rank_fn(torch.zeros(2, 3), torch.ones(2)),
    )
    refuse(
        ValueError,
        "`tau` must be positive and finite, got a smallest value of -1.0. To learn one that stays so, learn its "
        "logarithm: lambda scores: laplace_rank(scores, tau=log_tau.exp()).",
        lambda: rank_fn(torch.zeros(2, 3), torch.tensor([[1.0], [-1.0]])),
    )


def test_bad_lam():
    refuse(ValueError, "`lam` must be a positive number, got 0.", lambda: blackbox_rank(torch.zeros(3), lam=0))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("rank_fn", [exact_rank, laplace_rank, sigmoid_rank, blackbox_rank])
def test_a_view_with_the_sign_turned(rank_fn, dtype):
    z = torch.randn(3, 7, dtype=dtype, generator=torch.Generator().manual_seed(0))
    turned = z.conj().imag
    assert turned.is_neg()
    assert_close(rank_fn(turned), rank_fn(-z.imag))


# ---- ascending rank functions ----

ASCENDING = (
    " gives low ranks to low scores; here rank 1 is the highest score. Losses would learn the reverse order. Turn the "
    "sign: lambda scores: rank_fn(-scores)."
)


def ascending_soft_rank(scores):
    """As torchsort's: rank 1 is the lowest score."""
    return laplace_rank(-scores, tau=0.5)


class AscendingRank(nn.Module):
    def forward(self, scores):
        return scores.argsort(-1).argsort(-1) + 1.0


@pytest.mark.parametrize("rank_fn", [lambda x: ascending_soft_rank(x), AscendingRank()], ids=["lambda", "module"])
def test_an_ascending_rank_function_warns_once(rank_fn, generator):
    scores = torch.randn(3, 20, generator=generator)
    message = f"`rank_fn` {rank_fn!r}"[:91]
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}.*{re.escape(ASCENDING)}$") as caught:
        spearman_loss(scores, scores, rank_fn=rank_fn)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    spearman_loss(scores, scores, rank_fn=rank_fn)


def test_an_ascending_rank_function_warns_under_a_mask_and_in_a_wrapper(generator):
    scores = torch.randn(3, 20, generator=generator)
    with pytest.warns(UserWarning, match=re.escape(ASCENDING)):
        apply_rank_fn(AscendingRank(), scores, torch.arange(20) < 10)
    with pytest.warns(UserWarning, match=re.escape(ASCENDING)):
        straight_through(AscendingRank())(scores)


def test_a_new_lambda_at_every_step_warns_once(generator):
    scores = torch.randn(3, 20, generator=generator)

    def step():
        spearman_loss(scores, scores, rank_fn=lambda x: ascending_soft_rank(x) * 1)

    with pytest.warns(UserWarning, match=re.escape(ASCENDING)):
        step()
    step()


def test_rank_functions_that_are_not_ascending_do_not_warn(generator):
    calls = []

    def counted(scores):
        calls.append(scores.shape)
        return laplace_rank(scores)

    class NoHash:
        __hash__ = None

        def __call__(self, scores):
            return ascending_soft_rank(scores)

    scores = torch.randn(3, 20, generator=generator)
    for rank_fn in (
        counted,
        lambda x: 1 * ascending_soft_rank(-x),
        lambda x: x * 0 + 10.5,  # constant
        lambda x: x[:, torch.randperm(20, generator=generator)],  # random order
        NoHash(),  # cannot be remembered, and would warn at every step
        functools.partial(laplace_rank, tau=0.1),
    ):
        spearman_loss(scores, scores, rank_fn=rank_fn)
    assert calls == [(3, 20)]  # no trial call
    spearman_loss(scores[:, :3], scores[:, :3], rank_fn=AscendingRank())  # three items may be chance


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # of torch's jvp itself
@pytest.mark.parametrize("rank_fn", [laplace_rank, sigmoid_rank])
def test_a_tau_in_forward_mode(rank_fn):
    scores = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.arange(8.0, dtype=torch.float64)

    def value(tau):
        return (rank_fn(scores, tau=tau) * weights).sum()

    tau = torch.tensor(0.3, dtype=torch.float64)
    slope = torch.func.jvp(value, (tau,), (torch.ones_like(tau),))[1]
    torch.testing.assert_close(slope, (value(tau + 1e-6) - value(tau - 1e-6)) / 2e-6)
    torch.testing.assert_close(torch.func.jacfwd(value)(tau), slope)
