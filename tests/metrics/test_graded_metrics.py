"""Metrics of learning to rank against scikit-learn, scipy, trec_eval, rax and plain loops, with and without ties.

What all metrics promise is in test_contract.py.
"""

import itertools
import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import dcg_score, ndcg_score, roc_auc_score

from sodeep.metrics import (
    UndefinedMetricWarning,
    dcg,
    expected_reciprocal_rank,
    kendall_tau,
    ndcg,
    pairwise_accuracy,
    precision_at_k,
    rbo,
    reciprocal_rank,
    weighted_tau,
)

F64 = torch.float64
EXACT = {"rtol": 0, "atol": 1e-9}

with_ties_or_without = pytest.mark.parametrize("values", [None, 2, 5])
every_cut = pytest.mark.parametrize("k", [None, 1, 3, 10, 100])


def exactly(message):
    return f"^{re.escape(message)}$"


def draw(lists=30, n=23, values=None, grades=5, seed=0):
    """Scores (lists, n), of so many different `values`, and grades of which one at least is positive."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(lists, n, dtype=F64, generator=generator)
    if values is not None:
        scores = torch.randint(values, (lists, n), generator=generator).to(F64) - values / 2
    relevance = torch.randint(grades, (lists, n), generator=generator)
    relevance[:, 0] = 1
    scores[:, :2] += torch.tensor([0.0, 0.25])
    return scores, relevance


# ---- against others --------------------------------------------------------------------------------------------------


@with_ties_or_without
@every_cut
def test_ndcg_and_dcg_are_those_of_scikit_learn(values, k):
    scores, relevance = draw(values=values)
    pairs = list(zip(relevance.numpy(), scores.numpy(), strict=True))
    for metric, reference in [(ndcg, ndcg_score), (dcg, dcg_score)]:
        expected = [reference([r], [s], k=k) for r, s in pairs]
        np.testing.assert_allclose(metric(scores, relevance, k, gain="linear").numpy(), expected, **EXACT)
        expected = [reference([2.0**r - 1], [s], k=k) for r, s in pairs]
        np.testing.assert_allclose(metric(scores, relevance, k).numpy(), expected, **EXACT)


@every_cut
def test_the_order_given_is_that_of_scikit_learn_that_ignores_ties(k):
    scores, relevance = draw(values=3)
    given = -torch.arange(23.0, dtype=F64) * 1e-6  # an earlier item is before a later one of its score
    for metric, reference in [(ndcg, ndcg_score), (dcg, dcg_score)]:
        expected = [
            reference([r], [s], k=k, ignore_ties=True)
            for r, s in zip(relevance.numpy(), (scores + given).numpy(), strict=True)
        ]
        result = metric(scores, relevance, k, gain="linear", ties="order")
        np.testing.assert_allclose(result.numpy(), expected, **EXACT)


def test_the_order_given_is_that_of_the_real_items():
    scores, relevance = torch.zeros(6, dtype=F64), torch.tensor([0, 3, 1, 0, 2, 1])
    where = torch.tensor([True, False, True, True, True, False])
    expected = ndcg(scores[where], relevance[where], ties="order")
    assert ndcg(scores, relevance, where=where, ties="order") == expected
    assert ndcg(-torch.arange(4.0, dtype=F64), relevance[where]) == expected


@pytest.mark.filterwarnings("ignore")
def test_trec_eval_has_the_same_values():
    """It breaks ties by the name of the item, so scores without ties; its `ndcg` has linear gains."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    scores, relevance = draw(grades=4)
    qrel = {f"q{q}": {f"d{d}": int(r) for d, r in enumerate(row)} for q, row in enumerate(relevance.tolist())}
    run = {f"q{q}": {f"d{d}": s for d, s in enumerate(row)} for q, row in enumerate(scores.tolist())}
    measures = {"ndcg", "ndcg_cut.1,5,10", "P.1,5,100", "recip_rank"}
    found = pytrec_eval.RelevanceEvaluator(qrel, measures).evaluate(run)
    relevant = relevance > 0
    ours = {
        "ndcg": ndcg(scores, relevance, gain="linear"),
        **{f"ndcg_cut_{k}": ndcg(scores, relevance, k, gain="linear") for k in (1, 5, 10)},
        **{f"P_{k}": precision_at_k(scores, relevant, k) for k in (1, 5, 100)},
        "recip_rank": reciprocal_rank(scores, relevant),
    }
    for name, values in ours.items():
        np.testing.assert_allclose(values.numpy(), [found[f"q{q}"][name] for q in range(30)], **EXACT, err_msg=name)


@pytest.mark.filterwarnings("ignore")
def test_rax_has_the_same_values():
    """In float32, which is its default; on its documented cases, and on lists without ties, which it breaks."""
    rax = pytest.importorskip("rax")
    scores, labels = [2.0, 1.0, 3.0], [1.0, 0.0, 2.0]  # of its documentation
    cases = [(torch.tensor(scores), torch.tensor(labels)), *((s.float(), r) for s, r in zip(*draw(), strict=True))]
    for s, r in cases:
        x, y, binary = s.numpy(), r.numpy().astype(np.float32), (r > 0).numpy().astype(np.float32)
        for k in (None, 2, 10):
            for ours, theirs in [
                (ndcg(s, r, k), rax.ndcg_metric(x, y, topn=k)),
                (dcg(s, r, k), rax.dcg_metric(x, y, topn=k)),
                (reciprocal_rank(s, r > 0, k), rax.mrr_metric(x, binary, topn=k)),
            ]:
                np.testing.assert_allclose(ours.numpy(), np.asarray(theirs), rtol=2e-6)
        np.testing.assert_allclose(precision_at_k(s, r > 0, 2).numpy(), rax.precision_metric(x, binary, topn=2))
        np.testing.assert_allclose(pairwise_accuracy(s, r).numpy(), rax.opa_metric(x, y), rtol=2e-6)


@with_ties_or_without
def test_taus_are_those_of_scipy(values):
    scores, target = draw(values=values)
    pairs = list(zip(scores.numpy(), target.numpy(), strict=True))
    expected = [stats.kendalltau(s, t).statistic for s, t in pairs]
    np.testing.assert_allclose(kendall_tau(scores, target).numpy(), expected, **EXACT)
    expected = [stats.weightedtau(s, t).statistic for s, t in pairs]
    np.testing.assert_allclose(weighted_tau(scores, target).numpy(), expected, **EXACT)
    expected = [(1 + stats.somersd(t, s).statistic) / 2 for s, t in pairs]
    np.testing.assert_allclose(pairwise_accuracy(scores, target).numpy(), expected, **EXACT)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 33, 1000])
def test_taus_of_every_length(n):
    scores, target = torch.arange(n) % 7 + torch.arange(n) / 10, torch.arange(n).flip(0) % 5 * 2 + torch.arange(n) % 3
    scores, target = scores.double(), target.double()
    expected = stats.kendalltau(scores, target).statistic
    np.testing.assert_allclose(kendall_tau(scores, target).item(), expected, **EXACT)
    expected = stats.weightedtau(scores.numpy(), target.numpy()).statistic
    np.testing.assert_allclose(weighted_tau(scores, target).item(), expected, **EXACT)


@with_ties_or_without
def test_pairwise_accuracy_of_two_grades_is_the_area_under_the_roc_curve(values):
    scores, relevance = draw(values=values, grades=2)
    expected = [roc_auc_score(r, s) for s, r in zip(scores.numpy(), relevance.numpy(), strict=True)]
    np.testing.assert_allclose(pairwise_accuracy(scores, relevance).numpy(), expected, **EXACT)


def loop_err(grades, max_grade, k):
    total, reach = 0.0, 1.0
    for rank, grade in enumerate(grades[:k], 1):
        chance = (2**grade - 1) / 2**max_grade
        total, reach = total + reach * chance / rank, reach * (1 - chance)
    return total


@every_cut
def test_expected_reciprocal_rank_against_a_loop(k):
    scores, relevance = draw()
    ordered = relevance.gather(-1, scores.argsort(descending=True)).tolist()
    expected = [loop_err(grades, 4, k) for grades in ordered]
    np.testing.assert_allclose(expected_reciprocal_rank(scores, relevance, 4, k).numpy(), expected, **EXACT)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", [None, 1, 2, 4])
def test_ties_are_the_mean_over_their_orders(seed, k):
    scores, relevance = draw(1, 6, values=3, grades=4, seed=seed)
    scores, relevance = scores[0], relevance[0]
    relevant = relevance > 1
    relevant[0] = True
    values, grades, is_relevant = scores.tolist(), relevance.tolist(), relevant.tolist()
    sums = {"err": 0.0, "rr": 0.0, "precision": 0.0}
    orders = [
        sorted(order, key=lambda i: -values[i])  # sorted() is stable
        for order in itertools.permutations(range(6))
    ]
    for ordered in orders:
        hits = [is_relevant[i] for i in ordered][:k]
        sums["err"] += loop_err([grades[i] for i in ordered], 3, k)
        sums["rr"] += 1 / (hits.index(True) + 1) if any(hits) else 0.0
        sums["precision"] += sum(hits) / (k or 6)
    untied = -torch.arange(6.0, dtype=F64).expand(len(orders), 6)
    sums["ndcg"] = ndcg(untied, relevance[torch.tensor(orders)], k).sum().item()
    ours = {
        "err": expected_reciprocal_rank(scores, relevance, 3, k),
        "rr": reciprocal_rank(scores, relevant, k),
        "precision": precision_at_k(scores, relevant, k or 6),
        "ndcg": ndcg(scores, relevance, k),
    }
    for name, value in ours.items():
        np.testing.assert_allclose(value.item(), sums[name] / len(orders), rtol=0, atol=1e-12, err_msg=name)


def loop_rbo(first, second, p):
    n = len(first)
    shared = [len({*first[:d]} & {*second[:d]}) / d for d in range(1, n + 1)]
    return (1 - p) / p * sum(a * p**d for d, a in enumerate(shared, 1)) + p**n


@pytest.mark.parametrize("p", [0.3, 0.9])
def test_rank_biased_overlap_against_a_loop(p):
    scores, target = draw(20, 12, grades=10**9)
    expected = [
        loop_rbo(s.argsort(descending=True).tolist(), t.argsort(descending=True).tolist(), p)
        for s, t in zip(scores, target, strict=True)
    ]
    np.testing.assert_allclose(rbo(scores, target, p).numpy(), expected, **EXACT)
    assert rbo(scores[0], scores[0], p) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(3))
def test_ties_of_rank_biased_overlap_are_the_mean_over_their_orders(seed):
    scores, target = draw(1, 5, values=2, grades=3, seed=seed)
    orders = [
        [sorted(order, key=lambda i, x=x: -x[0, i].item()) for order in itertools.permutations(range(5))]
        for x in (scores, target)
    ]
    expected = np.mean([loop_rbo(a, b, 0.8) for a in orders[0] for b in orders[1]])
    np.testing.assert_allclose(rbo(scores, target, 0.8).numpy(), [expected], **EXACT)


def test_bad_persistence():
    for p in (0, 1, 1.5, math.nan, "0.9", True):
        with pytest.raises(ValueError, match=exactly(f"`p` must be a number between 0 and 1, got {p!r}.")):
            rbo(torch.zeros(3), torch.zeros(3), p)


def test_ties_under_transforms_are_those_outside():
    scores, relevance = draw(4, 6, values=3, grades=4)
    for metric in (partial(expected_reciprocal_rank, max_grade=3), ndcg, kendall_tau, weighted_tau, pairwise_accuracy):
        torch.testing.assert_close(torch.func.vmap(metric)(scores, relevance), metric(scores, relevance))


def test_all_tied_at_70000_items():
    n = 70_000
    scores, relevance = torch.zeros(n), torch.arange(n) % 7 == 0
    np.testing.assert_allclose(reciprocal_rank(scores, relevance, 2).item(), 1 / 7 + 6 / 7 / 7 / 2, rtol=1e-4)
    np.testing.assert_allclose(precision_at_k(scores, relevance, 10).item(), 1 / 7, rtol=1e-6)
    np.testing.assert_allclose(pairwise_accuracy(scores, relevance).item(), 0.5, rtol=1e-6)
    ranks = 1 / np.log2(np.arange(2, n + 2))
    np.testing.assert_allclose(ndcg(scores, relevance).item(), ranks.mean() * 10_000 / ranks[:10_000].sum(), rtol=1e-6)


# ---- grades of every size --------------------------------------------------------------------------------------------


def test_a_gain_of_two_to_the_sixty():
    scores = torch.tensor([0.1, 0.9, 0.5])
    for relevance in (torch.tensor([60, 3, 0]), torch.tensor([60.0, 3.0, 0.0])):
        torch.testing.assert_close(ndcg(scores, relevance), torch.tensor(0.5))
        torch.testing.assert_close(dcg(scores, relevance), torch.tensor(2.0**60 / 2))
    for relevance in (torch.tensor([2**60, 3, 0]), torch.tensor([2.0**60, 3.0, 0.0])):
        torch.testing.assert_close(ndcg(scores, relevance, gain="linear"), torch.tensor(0.5))
        torch.testing.assert_close(ndcg(scores, relevance), torch.tensor(0.5))  # 2^(2^60)
    message = (
        "`relevance` must be at most 128 where gains are exponential. Use gain='linear', or ndcg, "
        "got a largest value of 200."
    )
    with pytest.raises(ValueError, match=exactly(message)):
        dcg(scores, torch.tensor([200, 3, 0]))


def test_small_grades_have_linear_gains():
    scores = torch.tensor([0.1, 0.9, 0.5, 0.3], dtype=F64)
    relevance = torch.tensor([0.2, 0.5, 0.0, 1.0], dtype=F64)
    for small in (1e-12, 1e-30, 1e-300):
        expected = ndcg(scores, relevance, gain="linear")
        torch.testing.assert_close(ndcg(scores, small * relevance), expected, rtol=1e-10, atol=0)


def test_grades_out_of_range_are_refused():
    scores = torch.zeros(2, 3)
    message = (
        "`relevance` must be at least 0, got a smallest value of -2. "
        "Mask such items out with where=, or shift all values up."
    )
    grades = torch.tensor([[0, 1, -2], [0, 1, 2]])
    for metric in (ndcg, dcg, lambda s, r: expected_reciprocal_rank(s, r, 2)):
        with pytest.raises(ValueError, match=exactly(message)):
            metric(scores, grades)
    assert ndcg(scores, grades, where=grades >= 0).shape == (2,)
    message = "`relevance` must be at most 1 of `max_grade`, got a largest value of 2."
    with pytest.raises(ValueError, match=exactly(message)):
        expected_reciprocal_rank(scores, grades.abs(), 1)
    for options, message in [
        ({"gain": "cubic"}, "`gain` must be one of exponential, linear, got 'cubic'."),
        ({"ties": "random"}, "`ties` must be one of average, order, got 'random'."),
        ({"k": 0}, "`k` must be a whole number of at least 1, got 0."),
    ]:
        for metric in (ndcg, dcg):
            with pytest.raises(ValueError, match=exactly(message)):
                metric(scores, grades.abs(), **options)


def test_lists_of_one_item_and_of_one_grade():
    def value(metric, scores, relevance, *rest):
        return metric(torch.tensor(scores, dtype=F64), torch.tensor(relevance), *rest).item()

    assert value(ndcg, [0.3], [2]) == value(ndcg, [0.3, 0.1, 0.2], [2, 2, 2]) == 1
    assert value(dcg, [0.3], [2]) == 3
    assert value(dcg, [0.3, 0.2], [0, 0]) == 0
    assert value(expected_reciprocal_rank, [0.3], [2], 2) == 0.75
    assert value(precision_at_k, [0.3], [0], 2) == 0
    assert value(precision_at_k, [0.3], [1], 2) == 0.5
    assert value(reciprocal_rank, [0.3, 0.5], [True, False], 1) == 0
    needs = {
        ndcg: "an item of positive relevance",
        kendall_tau: "two items with different scores and different targets",
        weighted_tau: "two items with different scores and different targets",
        pairwise_accuracy: "two items with different targets",
    }
    for metric, needed in needs.items():
        message = f"{metric.__name__} is NaN for 1 of 1 lists: a list needs {needed}."
        for scores, relevance in [([0.3], [0]), ([0.3, 0.1, 0.2], [0, 0, 0])]:
            with pytest.warns(UndefinedMetricWarning, match=exactly(message)) as caught:
                assert math.isnan(value(metric, scores, relevance))
            assert caught[0].filename == __file__
