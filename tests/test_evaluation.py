"""Measures of a rank function, against plain loops and rank functions whose figures are known."""

import itertools
import re

import numpy as np
import pytest
import scipy.stats
import torch

import sodeep
from sodeep import evaluation
from sodeep.evaluation import gradient_agreement, gradient_health, inversions, optimization_score, rank_error
from sodeep.ranks import with_width


def test_rank_error_against_a_loop(generator):
    scores = torch.randn(5, 20, generator=generator)

    def off(s):
        return sodeep.exact_rank(s) + torch.arange(20.0) / 10

    expected = sum(i / 10 for i in range(20)) / 20 / 20
    assert rank_error(off, scores) == pytest.approx(expected)
    assert rank_error(off, scores[0]) == pytest.approx(expected)


def test_a_constant_has_a_quarter():
    scores = torch.randn(50, 1000)
    assert rank_error(lambda s: torch.full_like(s, 500.5), scores) == pytest.approx(0.25)


def test_inversions_against_a_loop(generator):
    scores, ranks = torch.randn(4, 15, generator=generator), torch.randn(4, 15, generator=generator)
    wrong = 0
    for row, given in zip(scores.tolist(), ranks.tolist(), strict=True):
        order = sorted(range(15), key=lambda i: -row[i])
        wrong += sum(given[a] > given[b] for a, b in itertools.pairwise(order))
    assert inversions(lambda s: ranks, scores) == pytest.approx(wrong / (4 * 14))


def test_tied_neighbours_are_not_inverted():
    scores = torch.tensor([1.0, 2.0, 2.0])
    assert inversions(lambda s: torch.tensor([3.0, 2.0, 1.0]), scores) == 0.0
    assert inversions(sodeep.exact_rank, torch.zeros(5)) == 0.0


def test_smoothed_gradient_against_finite_differences(generator):
    """The closed form is the gradient of the mean exact loss under noise, estimated with antithetic draws."""
    n, noise = 6, 0.3
    scores = torch.randn(1, n, generator=generator, dtype=torch.float64)
    target = sodeep.exact_rank(torch.randn(1, n, generator=generator, dtype=torch.float64))
    draws = torch.randn(200_000, n, generator=generator, dtype=torch.float64)
    step = noise * scores.std(correction=0)
    up, down = ((sodeep.exact_rank(scores + s * step * draws) - target).square().sum(-1, True) for s in (1, -1))
    estimate = ((up - down) * draws).mean(0)
    closed = evaluation.smoothed_gradient(scores, target, noise)[0]
    assert torch.cosine_similarity(closed, estimate, dim=0) > 0.999


def test_agreement(generator):
    scores = torch.randn(3, 12, generator=generator, dtype=torch.float64)
    target = sodeep.exact_rank(torch.randn(3, 12, generator=generator, dtype=torch.float64))
    aligned = evaluation.smoothed_gradient(scores, target)

    def with_gradient(gradient):
        """A rank function whose loss has this gradient: the loss is the mean of (rank - target)^2 / n^2."""
        off = torch.ones_like(scores)  # its values are all one rank off
        return lambda s: target + off + (s - s.detach()) * gradient

    assert gradient_agreement(with_gradient(aligned), scores, target) == pytest.approx(1.0)
    assert gradient_agreement(with_gradient(-aligned), scores, target) == pytest.approx(-1.0)


def test_health():
    scores, target = torch.randn(2, 10), torch.arange(1.0, 11).expand(2, 10)
    assert gradient_health(lambda s: s * 0, scores, target) == (1.0, 0.0)
    assert gradient_health(lambda s: s * float("nan"), scores, target) == (0.0, 1.0)
    assert gradient_health(sodeep.laplace_rank, scores, target) == (0.0, 0.0)


def test_optimization_score_orders_rank_functions_and_repeats():
    smooth, sharp = (optimization_score(with_width(sodeep.laplace_rank, tau), lists=8)[30] for tau in (0.3, 0.01))
    assert smooth > sharp
    assert optimization_score(sodeep.laplace_rank, lists=8) == optimization_score(sodeep.laplace_rank, lists=8)
    assert optimization_score(sodeep.laplace_rank, lists=8, steps=(1, 2)).keys() == {1, 2}


def test_optimization_starts_from_the_initial_scores(generator):
    order = sodeep.exact_rank(torch.randn(3, 20, generator=torch.Generator().manual_seed(5)))  # the target of seed 5
    init = -order / order.std(-1, keepdim=True)
    kept = init.clone()
    assert optimization_score(sodeep.laplace_rank, init=init, steps=(1,), lr=1e-6, seed=5) == {1: pytest.approx(1.0)}
    assert optimization_score(sodeep.laplace_rank, init=-init, steps=(1,), lr=1e-6, seed=5) == {1: pytest.approx(-1.0)}
    torch.testing.assert_close(init, kept, rtol=0, atol=0)


def test_optimization_score_from_other_lists_orders_rank_functions():
    for name in evaluation.MULTI_SCALE:
        init = evaluation.scale_by_quartiles(sodeep.generators.draw({name: 1}, 8, 50, torch.Generator().manual_seed(1)))
        smooth, sharp = (optimization_score(with_width(sodeep.laplace_rank, 1 / k), init=init)[30] for k in (3, 100))
        assert 0 < sharp < smooth - 0.05, name


def test_scale_by_quartiles_against_numpy(generator):
    scores = 7 + 300 * torch.randn(3, 41, generator=generator, dtype=torch.float64)
    low, middle, high = np.quantile(scores.numpy(), (0.25, 0.5, 0.75), axis=-1, keepdims=True)
    normal = scipy.stats.norm.ppf(0.75) - scipy.stats.norm.ppf(0.25)
    scaled = evaluation.scale_by_quartiles(scores)
    np.testing.assert_allclose(scaled.numpy(), (scores.numpy() - middle) / (high - low) * normal)
    constant = evaluation.scale_by_quartiles(torch.full((2, 5), 3.0))
    torch.testing.assert_close(constant, torch.zeros(2, 5))


def test_rank_gradient_is_each_lists_own(generator):
    scores = torch.randn(2, 10, generator=generator, dtype=torch.float64)
    target = sodeep.exact_rank(torch.randn(2, 10, generator=generator, dtype=torch.float64))
    got = evaluation.rank_gradient(sodeep.laplace_rank, scores, target)
    for row, goal, gradient in zip(scores, target, got, strict=True):
        x = row.clone().requires_grad_()
        (((sodeep.laplace_rank(x) - goal) / 10) ** 2).mean().backward()
        torch.testing.assert_close(gradient, x.grad)


def test_crossings():
    values = [0.9, 0.8, 0.8, 0.6, 0.7]
    assert evaluation.crossings(values, 0.85) == [pytest.approx(0.5)]
    assert evaluation.crossings(values, 0.65) == [pytest.approx(2.75), pytest.approx(3.5)]
    assert evaluation.crossings(values, 0.8) == [1.0, 2.0]  # the ends of a level stretch
    assert evaluation.crossings(values, 0.6) == [3.0]  # a valley is met once
    assert evaluation.crossings(values, 0.95) == []
    assert evaluation.crossings([0.5], 0.5) == []


def test_all_are_measured_on_the_same_lists_and_report_progress(monkeypatch):
    monkeypatch.setattr(evaluation, "LONGEST_QUADRATIC", 10)
    fractions = []
    functions = {"laplace": sodeep.laplace_rank, "sigmoid": sodeep.sigmoid_rank}
    laplace, sigmoid = evaluation.evaluate_all(functions, lengths=(10, 20), n=10, lists=4, on_progress=fractions.append)
    assert laplace.errors.keys() == {10, 20}
    assert sigmoid.errors == evaluation.evaluate(sodeep.sigmoid_rank, lengths=(10,), n=10, lists=4).errors
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1)


def test_evaluate_and_report():
    report, *others = (
        evaluation.evaluate(fn, name, lengths=(10, 30), n=30, lists=8, distributions=("normal", "clusters"))
        for name, fn in {
            "mine": sodeep.laplace_rank,
            "laplace std/2": with_width(sodeep.laplace_rank, 0.5),
            "laplace std/50": with_width(sodeep.laplace_rank, 1 / 50),
        }.items()
    )
    assert report.errors.keys() == {10, 30}
    assert report.by_distribution.keys() == {"normal", "clusters"}
    assert report.bad_gradient == 0.0
    assert evaluation.comparable_rank(report, others) is others[0]  # the sharp one has a lower optimization score
    assert evaluation.comparable_rank(report, others[1:]) is None
    text = evaluation.format_table(report, others, 30)
    assert "mine" in text
    assert "clusters *" in text
    assert "laplace std/2 (same score)" in text


@pytest.mark.parametrize("n", [1, 2.0])
def test_bad_length_of_lists(n):
    with pytest.raises(ValueError, match=f"^`n` must be a whole number of at least 2, got {n}.$"):
        optimization_score(sodeep.laplace_rank, n=n)


@pytest.mark.parametrize(
    ("init", "error", "message"),
    [
        (torch.zeros(3), ValueError, r"`init` must have shape (lists, n), got (3,). Give each list a row."),
        (torch.zeros(3, 1), ValueError, "`n` must be a whole number of at least 2, got 1."),
        (torch.zeros(0, 4), ValueError, "`lists` must be a whole number of at least 1, got 0."),
        (
            torch.zeros(2, 4, dtype=torch.int64),
            TypeError,
            "`init` must be real floating point, got dtype int64. Convert it first: init.float().",
        ),
        (
            torch.full((1, 2), float("nan")),
            ValueError,
            "`init` must be finite, got 2 NaN or infinite of 2 values, the first (nan) at index (0, 0). "
            "Leave such lists out.",
        ),
    ],
)
def test_bad_init(init, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        optimization_score(sodeep.laplace_rank, init=init)


@pytest.mark.parametrize("measure", [rank_error, inversions])
def test_ranks_of_another_shape_are_not_broadcast(measure):
    with pytest.raises(ValueError, match=r"`rank_fn` must return a tensor of the shape of its scores \(4, 6\)"):
        measure(lambda scores: scores[..., :1], torch.randn(4, 6))
    with pytest.raises(ValueError, match="`rank_fn` must return a tensor of the shape"):
        optimization_score(lambda scores: scores[..., :1], n=5, lists=2, steps=(1,))


def test_progress_reaches_the_whole():
    fractions = []
    evaluation.evaluate(
        sodeep.laplace_rank, lengths=(5, 9), n=6, lists=4, distributions=("normal",), on_progress=fractions.append
    )
    assert fractions == sorted(fractions)
    assert len(fractions) == 6
    assert fractions[-1] == pytest.approx(1)


def test_key_figures_are_those_of_the_measures():
    figures = evaluation.key_figures(sodeep.sigmoid_rank, n=9, lists=20)
    scores = sodeep.generators.draw(sodeep.SODEEP2019, 20, 9, torch.Generator().manual_seed(1234))
    expected = evaluation.KeyFigures(
        n=9,
        error=rank_error(sodeep.sigmoid_rank, scores),
        optimization_score=optimization_score(sodeep.sigmoid_rank, n=9),
        laplace_error=rank_error(sodeep.laplace_rank, scores),
        laplace_optimization_score=optimization_score(sodeep.laplace_rank, n=9),
    )
    assert figures == expected
    assert "0.0102" not in str(figures)  # which is of n = 100


def test_key_figures_as_text():
    figures = evaluation.KeyFigures(100, 0.0014, {30: 0.856, 100: 0.998}, 0.0075, {30: 0.843, 100: 0.997})
    assert str(figures) == (
        "On the mixture of SoDeep 2019, n = 100: error 0.0014 (laplace_rank: 0.0075; the handcrafted sorter released "
        "in 2019: 0.0102)\n"
        "As a loss on free scores, Spearman reaches 0.856 after 30 steps, 0.998 after 100 steps "
        "(laplace_rank: 0.843, 0.997)"
    )
