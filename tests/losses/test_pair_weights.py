"""Pair weights against the closed forms of the papers, and the counts made from them."""

from functools import partial

import pytest
import torch

from sodeep import losses
from sodeep.losses.pair_weights import contributing_pairs, pair_weights
from sodeep.losses.quantized_ap import quantized_ap_loss
from sodeep.losses.smooth_ap import smooth_ap_loss

ALPHA, BETA, BASE = 2.0, 50.0, 0.5


def batch(q=6, n=14, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(q, n, generator=generator, dtype=torch.float64) * 1.9 - 0.95
    relevant = torch.rand(q, n, generator=generator) < 0.3
    relevant[:, 0], relevant[:, -1] = True, False
    return scores.to(dtype), relevant


def list_weights(loss, scores, relevant):
    """Weights within each list: the mean over Q lists taken out."""
    return pair_weights(loss, scores, relevant) * len(scores)


def check(loss, positive_weight, negative_weight, seed=0):
    """`positive_weight(s, p, n)` of a positive at `s` among positives `p` and negatives `n` of one list, and so on."""
    scores, relevant = batch(seed=seed)
    expected = torch.empty_like(scores)
    for i, (row, mask) in enumerate(zip(scores, relevant, strict=True)):
        p, n = row[mask], row[~mask]
        for j, s in enumerate(row):
            expected[i, j] = -positive_weight(s, p, n) if mask[j] else negative_weight(s, p, n)
    torch.testing.assert_close(list_weights(loss, scores, relevant), expected, rtol=1e-10, atol=1e-13)


# ---------------------------------------------------------------------------------------------------------------------
# Closed forms: Wang et al. 2019 and its supplement
# ---------------------------------------------------------------------------------------------------------------------


def test_multi_similarity_is_equation_12():
    check(
        partial(losses.multi_similarity_loss, epsilon=None),
        lambda s, p, n: (ALPHA * (BASE - s)).exp() / (1 + (ALPHA * (BASE - p)).exp().sum()),
        lambda s, p, n: (BETA * (s - BASE)).exp() / (1 + (BETA * (n - BASE)).exp().sum()),
    )


def test_mined_multi_similarity_is_equation_12_over_the_kept_pairs():
    def keep(p, n):
        return p[p < n.max() + 0.1], n[n > p.min() - 0.1]

    check(
        losses.multi_similarity_loss,
        lambda s, p, n: (
            (s < n.max() + 0.1) * (ALPHA * (BASE - s)).exp() / (1 + (ALPHA * (BASE - keep(p, n)[0])).exp().sum())
        ),
        lambda s, p, n: (
            (s > p.min() - 0.1) * (BETA * (s - BASE)).exp() / (1 + (BETA * (keep(p, n)[1] - BASE)).exp().sum())
        ),
    )


def test_binomial_deviance_is_the_logistic():
    check(
        losses.binomial_deviance_loss,
        lambda s, p, n: ALPHA / len(p) * torch.sigmoid(ALPHA * (BASE - s)),
        lambda s, p, n: BETA / len(n) * torch.sigmoid(BETA * (s - BASE)),
    )


def test_bin_lifted_is_equation_10():
    check(
        losses.bin_lifted_loss,
        lambda s, p, n: (torch.sigmoid(ALPHA * (BASE - s)) + (-ALPHA * s).exp() / (-ALPHA * p).exp().sum()) / 2,
        lambda s, p, n: (torch.sigmoid(BETA * (s - BASE)) + (BETA * s).exp() / (BETA * n).exp().sum()) / 2,
    )


def test_nca_is_equation_2():
    check(
        losses.nca_loss,
        lambda s, p, n: s.exp() / p.exp().sum() - s.exp() / (p.exp().sum() + n.exp().sum()),
        lambda s, p, n: s.exp() / (p.exp().sum() + n.exp().sum()),
    )


def test_lifted_structure_is_two_softmaxes():
    check(
        partial(losses.lifted_structure_loss, margin=3.0),
        lambda s, p, n: (-s).exp() / (-p).exp().sum(),
        lambda s, p, n: s.exp() / n.exp().sum(),
    )


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_nt_xent_is_one_softmax_a_positive(temperature):
    def share(s, p, n):  # of each positive's softmax
        return (s / temperature).exp() / ((p / temperature).exp() + (n / temperature).exp().sum())

    check(
        partial(losses.nt_xent_loss, temperature=temperature),
        lambda s, p, n: (1 - share(s, s, n)) / temperature / len(p),
        lambda s, p, n: share(s, p, n).sum() / temperature / len(p),
    )


@pytest.mark.parametrize("mining", ["all", "semihard"])
def test_triplet_weights_are_counts(mining):
    margin = 0.4

    def active(a, b):
        return (b - a + margin > 0) & (mining == "all" or b < a)

    def total(p, n):
        return max(1, int(active(p[:, None], n[None]).sum()))

    check(
        partial(losses.triplet_loss, margin=margin, mining=mining),
        lambda s, p, n: int(active(s, n).sum()) / total(p, n),
        lambda s, p, n: int(active(p, s).sum()) / total(p, n),
    )


def test_histogram_weights_are_the_other_histogram():
    """Supplement, Eq. 9, on nodes t_r = -1 + r D from r = 0 (it has r D - 1 from r = 1, one off)."""
    bins = 20
    scores, relevant = batch(q=12, seed=3)
    gap = 2 / bins
    nodes = -1 + gap * torch.arange(bins + 1, dtype=torch.float64)

    def density(s):
        return (1 - (s[:, None] - nodes).abs() / gap).clamp(min=0).mean(0)

    h_pos, h_neg = density(scores[relevant]), density(scores[~relevant])
    left = ((scores + 1) / gap).floor().long()  # s in [t_left, t_left + 1]
    expected = torch.where(
        relevant, -h_neg[left] / gap / int(relevant.sum()), h_pos[left + 1] / gap / int((~relevant).sum())
    )
    weights = pair_weights(partial(losses.histogram_loss, num_bins=bins), scores, relevant)
    torch.testing.assert_close(weights, expected, rtol=1e-10, atol=1e-14)


# ---------------------------------------------------------------------------------------------------------------------
# Closed forms: the two average precisions
# ---------------------------------------------------------------------------------------------------------------------


def test_quantized_ap_has_the_derivatives_of_its_supplement():
    """Revaud et al. 2019, supplement, Eqs. 5 to 9, for one query at a time."""
    bins = 20
    scores, relevant = batch(seed=4)
    gap = 2 / (bins - 1)
    centres = 1 - gap * torch.arange(bins, dtype=torch.float64)
    expected = torch.zeros_like(scores)
    for q, (s, y) in enumerate(zip(scores, relevant.double(), strict=True)):
        offset = s - centres[:, None]  # (M, N)
        delta = (1 - offset.abs() / gap).clamp(min=0)
        xi = delta.cumsum(0)
        precision, recall = (xi @ y) / xi.sum(1), delta @ y / y.sum()
        slope = -offset.sign() / gap * (offset.abs() <= gap)  # Eq. 7, the diagonal
        slope_xi = slope.cumsum(0)  # Eq. 6
        ones = torch.ones_like(y)
        for m in range(bins):
            if xi[m].sum() == 0:
                continue
            by_xi = xi[m] @ (torch.outer(ones, y) - torch.outer(y, ones)) / xi[m].sum() ** 2  # Eq. 8
            expected[q] -= recall[m] * by_xi * slope_xi[m] + precision[m] * y / y.sum() * slope[m]  # Eqs. 5 and 9
    weights = list_weights(partial(quantized_ap_loss, num_bins=bins), scores, relevant)
    torch.testing.assert_close(weights, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("tau", [0.01, 0.1])
def test_smooth_ap_has_the_gradient_of_its_supplement(tau):
    """Bleeker & de Rijke 2022, supplement, last formula: d AP / d q, of which d AP / d s is the part before the v."""
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(6, dtype=torch.float64, generator=generator)
    gallery = torch.nn.functional.normalize(torch.randn(15, 6, dtype=torch.float64, generator=generator))
    s = gallery @ query
    positive = torch.arange(15) % 3 == 0
    expected = torch.zeros_like(query)
    others = ~torch.eye(15, dtype=torch.bool)
    for i in positive.nonzero().squeeze(-1).tolist():
        g = torch.sigmoid((s - s[i]) / tau)  # D_ij = s_j - s_i: the supplement writes s_i - s_j
        sim = (g * (1 - g) / tau)[:, None] * (gallery[i] - gallery)
        p, n = positive & others[i], ~positive
        rank_p, rank_n = 1 + g[p].sum(), 1 + g[n].sum()
        rank = rank_p + rank_n - 1
        expected += (rank_p * sim[n].sum(0) - (rank_n - 1) * sim[p].sum(0)) / rank**2
    expected /= positive.sum()
    weights = pair_weights(partial(smooth_ap_loss, tau=tau), s, positive)
    torch.testing.assert_close(weights @ gallery, -expected, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# pair_weights
# ---------------------------------------------------------------------------------------------------------------------


def test_weights_of_any_callable():
    scores, relevant = batch()
    module = losses.NTXentLoss()
    torch.testing.assert_close(
        pair_weights(module, scores, relevant), pair_weights(losses.nt_xent_loss, scores, relevant)
    )
    mine = pair_weights(lambda s, r: (s.square() * r).sum(), scores, relevant)
    torch.testing.assert_close(mine, 2 * scores * relevant)


def test_weights_leave_the_caller_alone():
    scores, relevant = batch(q=2, n=4)
    scores.requires_grad_()
    with torch.no_grad():
        weights = pair_weights(losses.nca_loss, scores, relevant)
    assert not weights.requires_grad
    assert scores.grad is None
    torch.testing.assert_close(pair_weights(losses.nca_loss, scores * 1, relevant), weights)


def test_weights_of_masked_items_are_zero():
    scores, relevant = batch()
    where = torch.rand(scores.shape, generator=torch.Generator().manual_seed(2)) < 0.7
    weights = pair_weights(losses.nca_loss, scores.masked_fill(~where, float("nan")), relevant, where)
    assert not weights[~where].any()
    torch.testing.assert_close(weights[where].sum(), torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_have_the_dtype_of_the_scores(dtype):
    scores, relevant = batch(dtype=dtype)
    assert pair_weights(losses.nca_loss, scores, relevant).dtype == dtype


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (
            partial(losses.nca_loss, return_stats=True),
            TypeError,
            "`loss` must give a scalar tensor, got tuple. Leave return_stats off.",
        ),
        (
            lambda s, r: s.sum(-1),
            ValueError,
            "`loss` must give a scalar tensor, got shape (6,). Take its mean.",
        ),
        (
            lambda s, r: r.sum(),
            ValueError,
            "`loss` must depend on `scores` by differentiable steps, got a value without a graph.",
        ),
    ],
)
def test_bad_losses(loss, error, message):
    with pytest.raises(error, match=r".") as caught:
        pair_weights(loss, *batch())
    assert str(caught.value) == message


@pytest.mark.parametrize("threshold", [-0.1, 1, float("nan"), "0.1"])
def test_bad_threshold(threshold):
    with pytest.raises(ValueError, match=r".") as caught:
        contributing_pairs(losses.nca_loss, *batch(), threshold=threshold)
    assert str(caught.value) == f"`threshold` must be a number in [0, 1), got {threshold!r}."


@pytest.mark.parametrize("threshold", [-0.1, float("nan"), float("inf"), "0.1"])
def test_bad_absolute_threshold(threshold):
    with pytest.raises(ValueError, match=r".") as caught:
        contributing_pairs(losses.nca_loss, *batch(), threshold=threshold, relative_to=None)
    assert str(caught.value) == f"`threshold` must be a finite number of at least 0, got {threshold!r}."


@pytest.mark.parametrize("relative_to", ["list", 1, False])
def test_bad_scale_of_the_threshold(relative_to):
    with pytest.raises(ValueError, match=r".") as caught:
        contributing_pairs(losses.nca_loss, *batch(), relative_to=relative_to)
    assert str(caught.value) == f"`relative_to` must be 'query', 'batch' or None, got {relative_to!r}."


# ---------------------------------------------------------------------------------------------------------------------
# contributing_pairs
# ---------------------------------------------------------------------------------------------------------------------


def test_counts_of_the_triplet_loss():
    """COCOS: the negatives with a positive hinge; for the hardest one, at most one."""
    scores, relevant = batch(q=20, seed=6)
    active = (scores[:, :, None] < scores[:, None] + 0.2) & relevant[:, :, None] & ~relevant[:, None]
    counts = contributing_pairs(losses.triplet_loss, scores, relevant, threshold=0)
    torch.testing.assert_close(counts.negatives, active.any(1).sum(-1))
    torch.testing.assert_close(counts.positives, active.any(2).sum(-1))
    torch.testing.assert_close(counts.moved, active.any(1).any(-1))
    hardest = contributing_pairs(partial(losses.triplet_loss, mining="hard"), scores, relevant)
    torch.testing.assert_close(hardest.negatives, counts.moved.long())


def test_counts_of_the_softmax():
    """COCOS: the negatives with more than a hundredth of the probability, here relative to the largest weight."""
    scores, relevant = batch(q=20, seed=7)
    relevant[:] = False
    relevant[:, 3] = True
    probability = (scores / 0.1).softmax(-1)
    largest = torch.where(relevant, 1 - probability, probability).amax(-1, keepdim=True)
    counts = contributing_pairs(partial(losses.nt_xent_loss, temperature=0.1), scores, relevant, threshold=0.01)
    torch.testing.assert_close(counts.negatives, ((probability > 0.01 * largest) & ~relevant).sum(-1))
    torch.testing.assert_close(counts.positives, torch.ones(20, dtype=torch.int64))
    assert counts.moved.all()


@pytest.mark.parametrize("relative_to", ["query", "batch", None])
def test_counts_by_a_loop(relative_to):
    """Pair by pair, against the largest weight of the query, of the batch, or against no weight at all."""
    scores, relevant = batch(q=20, seed=9)
    scores = scores * torch.linspace(0.2, 3, 20).unsqueeze(1)  # some queries are solved, some are far from it
    loss = partial(losses.nt_xent_loss, temperature=0.2)
    weights = pair_weights(loss, scores, relevant).abs().tolist()
    counts = contributing_pairs(loss, scores, relevant, threshold=0.02, relative_to=relative_to)
    largest = max(max(row) for row in weights)
    for q, row in enumerate(weights):
        least = 0.02 * {"query": max(row), "batch": largest, None: 1}[relative_to]
        found = [place for place, weight in enumerate(row) if weight > least]
        assert int(counts.positives[q]) == sum(bool(relevant[q, place]) for place in found)
        assert int(counts.negatives[q]) == sum(not relevant[q, place] for place in found)
        assert bool(counts.moved[q]) == bool(found)
    assert counts.negatives.unique().numel() > 3


def test_a_small_gradient_contributes_to_its_query_alone():
    """The second query is solved: it has pairs of its own, but next to no weight in the batch or at all."""
    scores = torch.tensor([[0.1, 0.9, 0.0], [0.9, 0.0, -0.1]])
    relevant = torch.tensor([[True, False, False]] * 2)
    loss = partial(losses.nt_xent_loss, temperature=0.1)
    assert contributing_pairs(loss, scores, relevant).moved.tolist() == [True, True]
    assert contributing_pairs(loss, scores, relevant, relative_to="batch").moved.tolist() == [True, False]
    assert contributing_pairs(loss, scores, relevant, threshold=0.005, relative_to=None).moved.tolist() == [True, False]
    # the absolute one does not know of the others
    assert contributing_pairs(loss, 0 * scores, relevant, threshold=10, relative_to=None).moved.tolist() == [False] * 2


@pytest.mark.parametrize("relative_to", ["query", "batch", None])
def test_no_queries(relative_to):
    scores = torch.zeros(3, 0, 4)
    with pytest.warns(losses.UndefinedListWarning):
        counts = contributing_pairs(losses.nca_loss, scores, scores > 0, relative_to=relative_to)
    assert [tuple(part.shape) for part in counts] == [(3, 0)] * 3


def test_undefined_queries_are_apart():
    scores, relevant = batch()
    relevant[2] = False
    counts = contributing_pairs(losses.nca_loss, scores, relevant)
    assert counts.moved.tolist() == [True, True, False, True, True, True]
    assert counts.positives[2] == counts.negatives[2] == 0


def test_both_directions_of_images_and_captions():
    """Five captions an image. Reading the positives of caption i from columns 5 i on leaves most captions with none."""
    generator = torch.Generator().manual_seed(8)
    images = torch.nn.functional.normalize(torch.randn(16, 8, generator=generator), dim=-1)
    captions = torch.nn.functional.normalize(
        images.repeat_interleave(5, 0) + 0.8 * torch.randn(80, 8, generator=generator), dim=-1
    )
    scores = images @ captions.t()
    relevant = torch.arange(16)[:, None] == torch.arange(80) // 5
    loss = partial(smooth_ap_loss, tau=0.1)
    to_captions = contributing_pairs(loss, scores, relevant)
    to_images = contributing_pairs(loss, scores.t(), relevant.t())
    assert to_captions.moved.all()
    assert to_images.moved.all()
    assert (to_images.positives == 1).all()
    # the same captions one by one, in any order
    order = torch.randperm(80, generator=generator)
    shuffled = contributing_pairs(loss, scores.t()[order], relevant.t()[order])
    torch.testing.assert_close(shuffled.negatives, to_images.negatives[order])


def test_counts_keep_the_shape_of_the_batch():
    scores, relevant = batch()
    counts = contributing_pairs(losses.nca_loss, scores, relevant)
    nested = contributing_pairs(losses.nca_loss, scores.view(2, 3, 14), relevant.view(2, 3, 14))
    single = contributing_pairs(losses.nca_loss, scores[0], relevant[0])
    for whole, parts, one in zip(counts, nested, single, strict=True):
        torch.testing.assert_close(parts, whole.view(2, 3))
        torch.testing.assert_close(one, whole[0])


def test_counts_ignore_masked_items():
    scores, relevant = batch()
    where = torch.rand(scores.shape, generator=torch.Generator().manual_seed(3)) < 0.6
    where[:, 0] = where[:, -1] = True
    counts = contributing_pairs(losses.nca_loss, scores.masked_fill(~where, float("inf")), relevant, where=where)
    for q in range(len(scores)):
        alone = contributing_pairs(losses.nca_loss, scores[q][where[q]], relevant[q][where[q]])
        assert (counts.positives[q], counts.negatives[q]) == (alone.positives, alone.negatives)


def test_relevance_of_numbers_reaches_the_loss_as_booleans():
    def mine(scores, relevant):
        return (scores * ~relevant).sum() - (scores * relevant).sum()

    scores = torch.tensor([[0.8, 0.3]])
    for relevant in (torch.tensor([[True, False]]), torch.tensor([[1, 0]]), torch.tensor([[1.0, 0.0]])):
        assert pair_weights(mine, scores, relevant).tolist() == [[-1, 1]]
