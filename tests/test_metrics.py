"""Exact metrics: against plain loops, scipy and scikit-learn, with and without ties, masks and degenerate lists."""

import itertools
import re
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import average_precision_score

from sodeep import metrics
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


# ---- cases of users --------------------------------------------------------------------------------------------------


def test_spearman_with_ties_on_both_sides():
    pred = torch.tensor([3, 1, 3, 2, 1, 5, 3, 2], dtype=F64)
    target = torch.tensor([2, 2, 4, 1, 1, 4, 3, 3])
    for order in [torch.arange(8), *(torch.randperm(8, generator=seeded(i)) for i in range(5))]:
        rho = spearman_corr(pred[order], target[order])
        torch.testing.assert_close(rho, torch.tensor(0.7342360411356583, dtype=F64), rtol=0, atol=1e-12)


def test_padded_lists():
    scores = torch.tensor([[0.2, 0.9, 0.5, 0, 0], [-0.3, 0.1, 0.4, -0.8, 0.0]], dtype=F64)
    target = torch.tensor([[1, 2, 3, 0, 0], [2, 3, 5, 1, 4]], dtype=F64)
    where = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    for pad in (0, -1, 1e9, torch.nan):
        padded = scores.masked_fill(~where, pad), target.masked_fill(~where, pad)
        torch.testing.assert_close(spearman_corr(*padded, where), torch.tensor([0.5, 0.9], dtype=F64))
        torch.testing.assert_close(spearman_corr(-padded[0], padded[1], where), torch.tensor([-0.5, -0.9], dtype=F64))


def test_query_without_positives():
    scores = torch.tensor([[0.9, 0.2, 0.4], [0.3, 0.8, 0.1]], dtype=F64)
    relevant = torch.tensor([[0, 1, 0], [0, 0, 0]])
    message = "average_precision is NaN for 1 of 2 lists: a list needs a relevant item."
    with pytest.warns(UndefinedMetricWarning, match=exactly(message)) as caught:
        ap = average_precision(scores, relevant)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    torch.testing.assert_close(ap, torch.tensor([1 / 3, torch.nan], dtype=F64), equal_nan=True)
    torch.testing.assert_close(ap.nanmean(), torch.tensor(1 / 3, dtype=F64))


def test_rows_not_sorted_by_class():
    for degrees, labels in [([0, 20, 70, 30, 80, 100], "AAABBB"), ([0, 30, 20, 80, 70, 100], "ABABAB")]:
        angle = torch.deg2rad(torch.tensor(degrees, dtype=F64))
        scores = (angle - angle.unsqueeze(-1)).cos()
        relevant = torch.tensor([[a == b for b in labels] for a in labels])
        ap = average_precision(scores, relevant, where=~torch.eye(6, dtype=torch.bool))
        torch.testing.assert_close(1 - ap.mean(), torch.tensor(151 / 360, dtype=F64))


def test_average_precision_cut_at_k():
    scores = -torch.arange(13, dtype=F64)
    for total, divisor, expected in [(4, "min", 5 / 12), (8, "min", 1 / 3), (8, "relevant", 5 / 24)]:
        relevant = torch.tensor([1, 0, 1, 0, 0] + [1] * (total - 2) + [0] * (10 - total))
        ap = average_precision(scores, relevant, 5, divisor=divisor)
        torch.testing.assert_close(ap, torch.tensor(expected, dtype=F64), rtol=0, atol=1e-12)


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


# ---- one contract over all -------------------------------------------------------------------------------------------

ALL = [*ORDERS, *RETRIEVAL]


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize("values", [None, 3])
def test_batch_is_its_lists_whatever_its_shape_or_chunks(metric, values):
    scores, other = draw(metric, 12, 9, values=values)
    expected = torch.stack([metric(s, o) for s, o in zip(scores, other, strict=True)])
    assert expected.shape == (12,)
    for shape in [(12,), (3, 4), (2, 1, 6)]:
        result = metric(scores.reshape(*shape, 9), other.reshape(*shape, 9))
        torch.testing.assert_close(result, expected.reshape(shape), rtol=0, atol=1e-15)
    for chunk_size in (1, 5, 100):
        assert torch.equal(metric(scores, other, chunk_size=chunk_size), metric(scores, other))
    strided = scores.T.contiguous().T, other.T.contiguous().T
    assert torch.equal(metric(*strided), metric(scores, other))


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize("values", [None, 3])
def test_order_of_the_items_changes_nothing(metric, values):
    scores, other = draw(metric, 12, 9, values=values)
    for seed in range(3):
        order = torch.randperm(9, generator=seeded(seed))
        torch.testing.assert_close(metric(scores[:, order], other[:, order]), metric(scores, other), rtol=0, atol=1e-14)


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize("values", [None, 3])
def test_masked_is_deleted(metric, values):
    scores, other = draw(metric, 10, 9, values=values)
    where = torch.rand(10, 9, generator=seeded(5)) < 0.6
    where[:, :2] = True
    expected = torch.stack([metric(s[w], o[w]) for s, o, w in zip(scores, other, where, strict=True)])
    for fill in (0.0, 1e9, -1e9, torch.nan, torch.inf, -torch.inf):
        masked_other = other if other.dtype == torch.bool else other.masked_fill(~where, fill)
        result = metric(scores.masked_fill(~where, fill), masked_other, where=where)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("metric", ALL)
def test_only_the_order_of_scores_counts(metric):
    scores, other = draw(metric, 10, 9)
    expected = metric(scores, other)
    for moved in (scores - 100, scores * 1e-20, scores * 1e20, scores.exp()):  # all below zero, tiny, huge, all above
        assert torch.equal(metric(moved, other), expected)


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
def test_no_gradient_and_inputs_untouched(metric):
    scores, other = draw(metric, 4, 6)
    scores.requires_grad_()
    before, other_before = scores.detach().clone(), other.clone()
    assert not metric(scores, other).requires_grad
    assert torch.equal(scores.detach(), before)
    assert torch.equal(other, other_before)


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


@pytest.mark.parametrize("metric", ALL)
def test_no_lists(metric):
    result = metric(torch.zeros(0, 5), torch.zeros(0, 5))
    assert result.shape == (0,)


@pytest.mark.parametrize("metric", ALL)
def test_compiles_whole(metric):
    scores, other = draw(metric, 6, 8, values=4)
    compiled = torch.compile(metric, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(scores, other), metric(scores, other))


def test_chunks_bound_the_work_at_a_time(monkeypatch):
    """No Q x N x N tensor, and no more than about a million items ordered at a time."""
    seen = []
    of = metrics._Order.of
    monkeypatch.setattr(metrics._Order, "of", lambda scores, *rest: (seen.append(scores.numel()), of(scores, *rest))[1])
    scores, relevant = draw(average_precision, 300, 10_000)
    assert average_precision(scores, relevant).shape == (300,)
    assert sum(seen) == 3_000_000
    assert max(seen) <= 2**20


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", RETRIEVAL)
def test_bad_retrieval_input(metric):
    scores, relevant = torch.zeros(2, 3), torch.ones(2, 3).bool()
    for error, message, arguments in [
        (
            ValueError,
            "`relevant` must have the shape of `scores` (2, 3), got (2, 3, 1). "
            "Drop the extra axis: relevant.squeeze(-1).",
            (scores, relevant.unsqueeze(-1)),
        ),
        (
            ValueError,
            "`relevant` must be boolean (or all 0 and 1), got dtype float32 with other values. "
            "Say what counts as relevant, for example relevant > 0.",
            (scores, relevant * 0.5),
        ),
        (
            TypeError,
            "`scores` must be real floating point, got dtype int64. Convert it first: scores.float().",
            (scores.long(), relevant),
        ),
        (
            ValueError,
            "`scores` must be finite, got 6 NaN or infinite of 6 values, the first (nan) at index (0, 0). Mask such "
            "items out with where=, or find the step that made them (torch.autograd.set_detect_anomaly).",
            (scores * torch.nan, relevant),
        ),
    ]:
        with pytest.raises(error, match=exactly(message)):
            metric(*arguments)


@pytest.mark.parametrize(("metric", "name"), [(spearman_corr, "target"), (asp, "semantic")])
def test_bad_order_input(metric, name):
    message = f"`{name}` must have the shape of `scores` (3, 1), got (3,). Drop the extra axis: scores.squeeze(-1)."
    with pytest.raises(ValueError, match=exactly(message)):
        metric(torch.zeros(3, 1), torch.zeros(3))
    message = (
        f"`{name}` must be finite, got 1 NaN or infinite of 2 values, the first (nan) at index (1,). Mask such "
        "items out with where=, or find the step that made them (torch.autograd.set_detect_anomaly)."
    )
    with pytest.raises(ValueError, match=exactly(message)):
        metric(torch.zeros(2), torch.tensor([0, torch.nan]))


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
