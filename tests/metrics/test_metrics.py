"""Exact metrics against plain loops, scipy and scikit-learn, with and without ties.

What all metrics promise is in test_contract.py.
"""

import itertools
import re
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import average_precision_score

from sodeep.metrics import (
    UndefinedMetricWarning,
    asp,
    average_precision,
    hit_rate_at_k,
    map_at_r,
    median_rank,
    pmrp,
    r_precision,
    recall_at_k,
    spearman_corr,
)
from sodeep.metrics._per_list import Order

F64 = torch.float64


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def exactly(message):
    return f"^{re.escape(message)}$"


def hit_rate_at_3(scores, relevant, **options):
    return hit_rate_at_k(scores, relevant, 3, **options)


def recall_at_3(scores, relevant, **options):
    return recall_at_k(scores, relevant, 3, **options)


def average_precision_at_3(scores, relevant, **options):
    return average_precision(scores, relevant, 3, **options)


RETRIEVAL = [
    average_precision,
    average_precision_at_3,
    map_at_r,
    r_precision,
    recall_at_3,
    hit_rate_at_3,
    median_rank,
]
ORDERS = [spearman_corr, asp]


def draw(metric, lists, n, seed=0, values=None):
    """Scores (lists, n), float64, and a second argument that fits `metric`; `values` = how many distinct ones."""
    generator = seeded(seed)
    scores = torch.randn(lists, n, dtype=F64, generator=generator)
    if values is not None:
        scores = torch.randint(values, (lists, n), generator=generator).to(F64) - values / 2
    if metric in ORDERS:
        other = torch.randint(4, (lists, n), generator=generator).to(F64)
        other[:, :2] = torch.tensor([0.0, 1.0])  # never constant
        scores[:, :2] += torch.tensor([0.0, 0.5])
        return scores, other
    relevant = torch.rand(lists, n, generator=generator) < 0.3
    relevant[:, 0] = True
    return scores, relevant


# ---- against others --------------------------------------------------------------------------------------------------


def at_or_above_loop(scores, relevant, k=None, divisor=None):
    """AP from its formula; `k` only without ties."""
    positives = [i for i, r in enumerate(relevant) if r]
    total = 0.0
    for i in positives:
        through = [j for j in range(len(scores)) if scores[j] >= scores[i]]
        if k is None or len(through) <= k:
            total += sum(relevant[j] for j in through) / len(through)
    return total / (divisor or len(positives))


@pytest.mark.parametrize("values", [None, 2, 5])
def test_average_precision_is_that_of_scikit_learn(values):
    scores, relevant = draw(average_precision, 50, 23, values=values)
    expected = [average_precision_score(r, s) for s, r in zip(scores.numpy(), relevant.numpy(), strict=True)]
    result = average_precision(scores, relevant)
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=1e-12)
    loops = [at_or_above_loop(s, r) for s, r in zip(scores.tolist(), relevant.tolist(), strict=True)]
    np.testing.assert_allclose(result.numpy(), loops, rtol=0, atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 5, 23, 100])
def test_cuts_against_loops(k):
    scores, relevant = draw(average_precision, 40, 23)
    for s, r, ap, ap_relevant, recall, hit in zip(
        scores.tolist(),
        relevant.tolist(),
        average_precision(scores, relevant, k).tolist(),
        average_precision(scores, relevant, k, divisor="relevant").tolist(),
        recall_at_k(scores, relevant, k).tolist(),
        hit_rate_at_k(scores, relevant, k).tolist(),
        strict=True,
    ):
        ordered = [r[i] for i in sorted(range(23), key=lambda i: -s[i])]
        hits, total = sum(ordered[:k]), sum(r)
        np.testing.assert_allclose(ap, at_or_above_loop(s, r, k, min(k, total)), rtol=0, atol=1e-12)
        np.testing.assert_allclose(ap_relevant, at_or_above_loop(s, r, k, total), rtol=0, atol=1e-12)
        np.testing.assert_allclose(recall, hits / total, rtol=0, atol=1e-12)
        assert hit == float(hits > 0)


def test_cut_at_r_and_first_rank_against_loops():
    scores, relevant = draw(map_at_r, 40, 23)
    for s, r, at_r, precision, first in zip(
        scores.tolist(),
        relevant.tolist(),
        map_at_r(scores, relevant).tolist(),
        r_precision(scores, relevant).tolist(),
        median_rank(scores, relevant).tolist(),
        strict=True,
    ):
        total = sum(r)
        ordered = [r[i] for i in sorted(range(23), key=lambda i: -s[i])]
        expected = sum(sum(ordered[: i + 1]) / (i + 1) for i in range(total) if ordered[i]) / total
        np.testing.assert_allclose(at_r, expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(precision, sum(ordered[:total]) / total, rtol=0, atol=1e-12)
        assert first == ordered.index(True) + 1


@pytest.mark.parametrize("seed", range(6))
def test_ties_are_the_mean_over_their_orders(seed):
    """Recall, hit rate, R-precision and the first rank: the mean over all orders of the items, which break the ties."""
    generator = seeded(seed)
    scores = torch.randint(3, (6,), generator=generator).to(F64)
    relevant = torch.rand(6, generator=generator) < 0.4
    relevant[0] = True
    total = int(relevant.sum())
    sums = {"first": 0.0, "r": 0.0, **{(name, k): 0.0 for name in ("recall", "hit") for k in range(1, 8)}}
    orders = list(itertools.permutations(range(6)))
    for order in orders:
        ordered = [bool(relevant[i]) for i in sorted(order, key=lambda i: -scores[i].item())]  # sorted() is stable
        sums["first"] += ordered.index(True) + 1
        sums["r"] += sum(ordered[:total]) / total
        for k in range(1, 8):
            sums["recall", k] += sum(ordered[:k]) / total
            sums["hit", k] += any(ordered[:k])
    ours = {
        "first": median_rank(scores, relevant),
        "r": r_precision(scores, relevant),
        **{("recall", k): recall_at_k(scores, relevant, k) for k in range(1, 8)},
        **{("hit", k): hit_rate_at_k(scores, relevant, k) for k in range(1, 8)},
    }
    for name, value in ours.items():
        np.testing.assert_allclose(value.item(), sums[name] / len(orders), rtol=0, atol=1e-12, err_msg=str(name))


def test_ties_of_average_precision_at_a_cut():
    # 3 2 2 2 1 with hits at the 3, one 2 and the 1; k = 3 cuts the 2s: each is in with a chance of 2/3
    scores = torch.tensor([3.0, 2.0, 2.0, 2.0, 1.0], dtype=F64)
    relevant = torch.tensor([1, 0, 1, 0, 1])
    expected = (1 + 2 / 3 * (2 / 4)) / 3
    torch.testing.assert_close(average_precision(scores, relevant, 3), torch.tensor(expected, dtype=F64))
    torch.testing.assert_close(map_at_r(scores, relevant), torch.tensor(expected, dtype=F64))


@pytest.mark.parametrize("values", [None, 3])
def test_spearman_is_that_of_scipy(values):
    scores, target = draw(spearman_corr, 30, 17, values=values)
    expected = [stats.spearmanr(s, t).statistic for s, t in zip(scores.numpy(), target.numpy(), strict=True)]
    np.testing.assert_allclose(spearman_corr(scores, target).numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("values", [None, 3])
def test_asp_against_a_loop(values):
    scores, semantic = draw(asp, 30, 17, values=values)
    for s, c, value in zip(scores.numpy(), semantic.numpy(), asp(scores, semantic).tolist(), strict=True):
        x, y = stats.rankdata(-s), stats.rankdata(-c)
        expected = np.mean([min(a, b) / max(a, b) for a, b in zip(x, y, strict=True)])
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-12)


WHOLE = torch.tensor([2**53 + 1, 2**53, -(2**63), 2**63 - 1, 2**53 + 2, 2**53, 2**63 - 2])
"""Numbers that float64 does not distinguish, with one pair of equals."""
UNSIGNED = (WHOLE ^ -(2**63)).view(torch.uint64)
ORDER = torch.tensor([3.0, 2, 1, 6, 4, 2, 5])
WHOLE_DTYPES = [
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


@pytest.mark.parametrize("metric", [spearman_corr, asp])
def test_whole_numbers_beyond_float64_have_their_order(metric):
    scores = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    where = torch.arange(7) < torch.tensor([[7], [6], [5]])
    for mask in (None, where):
        expected = metric(scores, ORDER.expand(3, 7), mask)
        torch.testing.assert_close(metric(scores, WHOLE.expand(3, 7), mask), expected, rtol=0, atol=0)
        torch.testing.assert_close(metric(scores, UNSIGNED.expand(3, 7), mask), expected, rtol=0, atol=0)
    assert metric(ORDER, WHOLE) == metric(ORDER, UNSIGNED) == 1


@pytest.mark.parametrize("dtype", [torch.bool, *WHOLE_DTYPES])
def test_whole_numbers_of_any_size(dtype):
    scores, target = torch.tensor([0.3, 0.1, 0.2, 0.4]), torch.tensor([1, 0, 1, 0])
    for metric in (spearman_corr, asp):
        assert metric(scores, target.to(dtype)) == metric(scores, target.float())


def test_asp_of_the_published_example():
    # ranks 1 3 2 5 4 and 3 1 4 5 2 (DAA supplement): 1/3, 1/3, 2/4, 5/5, 2/4
    semantic, similarity = -torch.tensor([1.0, 3, 2, 5, 4], dtype=F64), -torch.tensor([3.0, 1, 4, 5, 2], dtype=F64)
    expected = torch.tensor((1 / 3 + 1 / 3 + 1 / 2 + 1 + 1 / 2) / 5, dtype=F64)
    torch.testing.assert_close(asp(similarity, semantic), expected)


def test_pmrp_against_a_loop():
    generator = seeded()
    queries = (torch.rand(12, 7, generator=generator) < 0.3).long()
    gallery = (torch.rand(15, 7, generator=generator) < 0.3).long()
    scores = torch.randn(12, 15, dtype=F64, generator=generator)
    zetas = (0, 1, 2)
    expected = []
    for q in range(12):
        per_zeta = []
        for zeta in zetas:
            code = queries[q].tolist()
            plausible = [sum(a != b for a, b in zip(code, g, strict=True)) <= zeta for g in gallery.tolist()]
            if any(plausible):
                ordered = [plausible[i] for i in scores[q].argsort(descending=True).tolist()]
                per_zeta.append(sum(ordered[: sum(plausible)]) / sum(plausible))
        expected.append(np.mean(per_zeta) if per_zeta else np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        result = pmrp(scores, queries, gallery)
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=1e-12)
    one = pmrp(scores[:3], queries[:3], queries[:3].repeat(5, 1), zetas=[7])  # everything is plausible
    torch.testing.assert_close(one, torch.ones(3, dtype=F64))


def test_pmrp_leaves_masked_items_out():
    codes = torch.tensor([[1, 0], [1, 0], [0, 1]])
    scores = torch.tensor([[9.0, 1.0, 2.0], [1.0, 9.0, 2.0], [1.0, 2.0, 9.0]])
    where = ~torch.eye(3, dtype=torch.bool)
    message = "pmrp is NaN for 1 of 3 lists: a list needs a plausible match."
    with pytest.warns(UndefinedMetricWarning, match=exactly(message)) as caught:
        result = pmrp(scores, codes, codes, zetas=[0], where=where)
    assert caught[0].filename == __file__
    torch.testing.assert_close(result, torch.tensor([0.0, 0.0, torch.nan]), equal_nan=True)


# ---- half precision --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "n", "step"), [(torch.bfloat16, 300, 256), (torch.float16, 3000, 2048)])
def test_half_precision_scores_are_compared_exactly(dtype, n, step):
    scores = ((torch.randperm(n, generator=seeded()) - n // 2) / step).to(dtype)
    assert len(scores.unique()) == n
    assert spearman_corr(scores, scores) == 1
    assert spearman_corr(scores, -scores) == -1
    assert asp(scores, scores) == 1
    relevant = torch.rand(n, generator=seeded(1)) < 0.3
    for metric in RETRIEVAL:
        result = metric(scores, relevant)
        assert result.dtype == torch.float32
        assert torch.equal(result, metric(scores.float(), relevant))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert spearman_corr(scores, scores) == 1
        assert torch.equal(average_precision(scores, relevant), average_precision(scores.float(), relevant))
        codes = torch.eye(2)[torch.arange(n) % 2]
        own = pmrp(scores.expand(2, n), codes[:2], codes)
    assert torch.equal(own, pmrp(scores.float().expand(2, n), codes[:2], codes))


# ---- ranges and degenerate lists -------------------------------------------------------------------------------------

ALL = [*ORDERS, *RETRIEVAL]


@pytest.mark.parametrize("metric", ALL)
def test_range_and_best_order(metric):
    scores, other = draw(metric, 200, 9, values=5)
    result = metric(scores, other)
    best = metric(other.to(F64), other)
    torch.testing.assert_close(best[: len(best)], torch.ones_like(best) if metric is not recall_at_3 else best)
    if metric is median_rank:
        assert (result >= best).all()
    else:
        assert (result <= best + 1e-15).all()
        assert (result >= (-1 if metric is spearman_corr else 0)).all()


@pytest.mark.parametrize("metric", ALL)
def test_all_tied_at_70000_items(metric):
    n = 70_000
    scores = torch.zeros(n)
    if metric in ORDERS:
        other = torch.arange(n)
        expected = {
            asp: np.mean(np.minimum(np.arange(1, n + 1), (n + 1) / 2) / np.maximum(np.arange(1, n + 1), (n + 1) / 2)),
            spearman_corr: np.nan,
        }[metric]
    else:
        other = torch.arange(n) % 7 == 0
        share = 10_000 / n
        chance = 1 - (1 - share) * (n - 10_000 - 1) / (n - 1) * (n - 10_000 - 2) / (n - 2)
        expected = {
            average_precision: share,
            average_precision_at_3: share * 3 / n * 10_000 / 3,
            map_at_r: share * share,
            r_precision: share,
            recall_at_3: 3 / n,
            hit_rate_at_3: chance,
            median_rank: (n + 1) / (10_000 + 1),
        }[metric]
    with warnings.catch_warnings():
        warnings.simplefilter("error" if metric is not spearman_corr else "ignore")
        np.testing.assert_allclose(metric(scores, other).item(), expected, rtol=1e-6)


@pytest.mark.parametrize("metric", RETRIEVAL)
def test_degenerate_lists(metric):
    def value(scores, relevant, **options):
        return metric(torch.tensor(scores, dtype=F64), torch.tensor(relevant), **options)

    assert value([0.3], [True]) == 1
    best = 1.0 if metric is not recall_at_3 else 3 / 4
    torch.testing.assert_close(value([0.3, 0.2, 0.1, 0.0], [True] * 4), torch.tensor(best, dtype=F64))
    torch.testing.assert_close(value([0.0] * 4, [True] * 4), torch.tensor(best, dtype=F64))
    name = metric.__name__.replace("_at_3", "_at_k").replace("average_precision_at_k", "average_precision")
    for arguments in [([0.1, 0.2], [False, False], None), ([0.1, 0.2], [True, False], torch.tensor([False, True]))]:
        message = f"{name} is NaN for 1 of 1 lists: a list needs a relevant item."
        with pytest.warns(UndefinedMetricWarning, match=exactly(message)):
            assert value(*arguments[:2], where=arguments[2]).isnan()


def test_samples_by_two_outputs_give_a_warning():
    scores, target = torch.randn(2, 60, 2, generator=seeded(), dtype=F64)
    message = (
        "spearman_corr got many lists of two items, whose rank correlation is 1 or -1. The last axis is the list: with "
        "scores and target of shape (samples, 2 outputs), did you mean spearman_corr(scores.T, target.T)?"
    )
    with pytest.warns(UserWarning, match=exactly(message)) as caught:
        assert spearman_corr(scores, target).abs().tolist() == [1.0] * 60
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert spearman_corr(scores.T, target.T).shape == (2,)
    spearman_corr(scores[:7], target[:7])  # a few pairs
    spearman_corr(scores, target, torch.ones(60, 2, dtype=torch.bool))  # padded lists


def test_lists_of_one_item_give_a_hint():
    scores, target = torch.randn(2, 5, 1, generator=seeded(), dtype=F64)
    message = (
        "spearman_corr is NaN for 5 of 5 lists: a list needs two items with different scores and different targets "
        "(lists of one item: did you mean scores.squeeze(-1) and target.squeeze(-1)?)."
    )
    with pytest.warns(UndefinedMetricWarning, match=exactly(message)):
        spearman_corr(scores, target)
    message = (
        "average_precision is NaN for 4 of 5 lists: a list needs a relevant item "
        "(lists of one item: did you mean scores.squeeze(-1) and relevant.squeeze(-1)?)."
    )
    with pytest.warns(UndefinedMetricWarning, match=exactly(message)):
        average_precision(scores, torch.arange(5)[:, None] == 1)


def test_undefined_orders():
    rows = [([1.0, 1, 1], [1, 2, 3]), ([1.0, 2, 3], [2, 2, 2]), ([1.0, 2, 3], [1, 2, 3])]
    scores, target = (torch.tensor(x) for x in zip(*rows, strict=True))
    message = (
        "spearman_corr is NaN for 2 of 3 lists: a list needs two items with different scores and different targets."
    )
    with pytest.warns(UndefinedMetricWarning, match=exactly(message)) as caught:
        result = spearman_corr(scores, target)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    torch.testing.assert_close(result, torch.tensor([torch.nan, torch.nan, 1]), equal_nan=True)
    with pytest.warns(UndefinedMetricWarning):
        assert spearman_corr(torch.tensor([0.1]), torch.tensor([1.0])).isnan()
    assert asp(torch.tensor([0.1]), torch.tensor([1.0])) == 1
    with pytest.warns(UndefinedMetricWarning, match=exactly("asp is NaN for 1 of 1 lists: a list needs an item.")):
        assert asp(torch.tensor([0.1]), torch.tensor([1.0]), torch.tensor([False])).isnan()


def test_chunks_bound_the_work_at_a_time(monkeypatch):
    """No Q x N x N tensor, and no more than about a million items ordered at a time."""
    seen = []
    of = Order.of
    monkeypatch.setattr(Order, "of", lambda scores, *rest: (seen.append(scores.numel()), of(scores, *rest))[1])
    scores, relevant = draw(average_precision, 300, 10_000)
    assert average_precision(scores, relevant).shape == (300,)
    assert sum(seen) == 3_000_000
    assert max(seen) <= 2**20


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_bad_options():
    scores, relevant = torch.zeros(2, 3), torch.ones(2, 3).bool()
    for k in (0, -1, 2.5, True):
        for metric in (average_precision, recall_at_k, hit_rate_at_k):
            with pytest.raises(ValueError, match=exactly(f"`k` must be a whole number of at least 1, got {k}.")):
                metric(scores, relevant, k)
    with pytest.raises(ValueError, match=exactly("`divisor` must be one of min, relevant, got 'hits'.")):
        average_precision(scores, relevant, 2, divisor="hits")
    with pytest.raises(ValueError, match=exactly("`chunk_size` must be a whole number of at least 1, got 0.")):
        map_at_r(scores, relevant, chunk_size=0)


def test_bad_codes():
    scores, queries, gallery = torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(3, 4)
    for message, arguments in [
        ("`scores` must be (Q, N), one row per query, got shape (3,).", (scores[0], queries, gallery)),
        (
            "`query_codes` must be a tensor of shape (2, C), got a tensor of shape (3, 4) and dtype float32.",
            (scores, gallery, gallery),
        ),
        (
            "`gallery_codes` must be a tensor of shape (3, C), got a tensor of shape (2, 4) and dtype float32.",
            (scores, queries, queries),
        ),
        (
            "`query_codes` must hold 0 and 1 only, got a tensor of shape (2, 4) and dtype float32 with other values.",
            (scores, queries + 2, gallery),
        ),
        (
            "`gallery_codes` must have as many places as `query_codes` (4), got 3.",
            (scores, queries, gallery[:, :3]),
        ),
        ("`zetas` must hold at least one number of places, got none.", (scores, queries, gallery, ())),
        ("`zetas` must be a whole number of at least 0, got -1.", (scores, queries, gallery, (0, -1))),
    ]:
        with pytest.raises(ValueError, match=exactly(message)):
            pmrp(*arguments)
