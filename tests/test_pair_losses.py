"""Pair losses against plain Python loops written from the formulas, and the contract they share."""

import math
import warnings
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from sodeep.losses import pair
from sodeep.losses._common import UndefinedListWarning

# ---------------------------------------------------------------------------------------------------------------------
# References: one list, positives `p` and negatives `n` as Python floats
# ---------------------------------------------------------------------------------------------------------------------


def mean(values):
    values = list(values)
    return math.fsum(values) / len(values) if values else 0.0


def mean_active(hinges):
    return mean(h for h in hinges if h > 0)


def log_sum_exp(values):
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def contrastive(p, n, pos_margin=0.9, neg_margin=0.6):
    return mean_active(pos_margin - s for s in p) + mean_active(s - neg_margin for s in n)


def triplet(p, n, margin=0.2, mining="all"):
    if mining == "hard":
        n = [max(n)]
    pairs = [(a, b) for a in p for b in n if mining != "semihard" or a - margin < b < a]
    return mean_active(b - a + margin for a, b in pairs)


def nt_xent(p, n, temperature=0.07):
    return mean(log_sum_exp([a / temperature] + [b / temperature for b in n]) - a / temperature for a in p)


def n_pairs(p, n):
    return mean(log_sum_exp([0.0] + [b - a for b in n]) for a in p)


def nca(p, n, temperature=1.0):
    return log_sum_exp([s / temperature for s in p + n]) - log_sum_exp([s / temperature for s in p])


def lifted(p, n, margin=1.0):
    return max(0.0, log_sum_exp([-s for s in p]) + log_sum_exp([s + margin for s in n]))


def binomial(p, n, alpha=2.0, beta=50.0, base=0.5):
    return mean(log_sum_exp([0, alpha * (base - s)]) for s in p) + mean(log_sum_exp([0, beta * (s - base)]) for s in n)


def bin_lifted(p, n, alpha=2.0, beta=50.0, base=0.5):
    x, y = [alpha * (base - s) for s in p], [beta * (s - base) for s in n]
    return sum(
        (math.fsum(log_sum_exp([0, v]) for v in side) + log_sum_exp(side)) / (2 * steepness)
        for side, steepness in ((x, alpha), (y, beta))
    )


def multi_similarity(p, n, alpha=2.0, beta=50.0, base=0.5, epsilon=0.1):
    if epsilon is not None:
        p, n = [s for s in p if s < max(n) + epsilon], [s for s in n if s > min(p) - epsilon]
    return (
        log_sum_exp([0.0] + [alpha * (base - s) for s in p]) / alpha
        + log_sum_exp([0.0] + [beta * (s - base) for s in n]) / beta
    )


def histogram(p, n, num_bins=100, low=-1.0, high=1.0):
    """On all pairs of a batch. By the kernel of Eq. 5, node by node."""
    gap = (high - low) / num_bins
    nodes = [low + r * gap for r in range(num_bins + 1)]
    pos, neg = (
        [mean(max(0.0, 1 - abs(min(max(s, low), high) - t) / gap) for s in side) for t in nodes] for side in (p, n)
    )
    return math.fsum(neg[r] * math.fsum(pos[: r + 1]) for r in range(num_bins + 1))


EITHER_SIDE = ("contrastive", "binomial")
CASES = {
    "contrastive": (pair.contrastive_loss, pair.ContrastiveLoss, contrastive, {}),
    "contrastive-wide": (
        pair.contrastive_loss,
        pair.ContrastiveLoss,
        contrastive,
        {"pos_margin": 2.0, "neg_margin": -1.0},
    ),
    "triplet": (pair.triplet_loss, pair.TripletLoss, triplet, {}),
    "triplet-wide": (pair.triplet_loss, pair.TripletLoss, triplet, {"margin": 3.0}),
    "triplet-semihard": (pair.triplet_loss, pair.TripletLoss, triplet, {"mining": "semihard"}),
    "triplet-hard": (pair.triplet_loss, pair.TripletLoss, triplet, {"mining": "hard"}),
    "nt_xent": (pair.nt_xent_loss, pair.NTXentLoss, nt_xent, {}),
    "nt_xent-warm": (pair.nt_xent_loss, pair.NTXentLoss, nt_xent, {"temperature": 0.5}),
    "n_pairs": (pair.n_pairs_loss, pair.NPairsLoss, n_pairs, {}),
    "nca": (pair.nca_loss, pair.NCALoss, nca, {}),
    "nca-cold": (pair.nca_loss, pair.NCALoss, nca, {"temperature": 0.1}),
    "lifted": (pair.lifted_structure_loss, pair.LiftedStructureLoss, lifted, {}),
    "lifted-negative": (pair.lifted_structure_loss, pair.LiftedStructureLoss, lifted, {"margin": -2.5}),
    "binomial": (pair.binomial_deviance_loss, pair.BinomialDevianceLoss, binomial, {}),
    "bin_lifted": (pair.bin_lifted_loss, pair.BinLiftedLoss, bin_lifted, {}),
    "multi_similarity": (pair.multi_similarity_loss, pair.MultiSimilarityLoss, multi_similarity, {}),
    "multi_similarity-all": (
        pair.multi_similarity_loss,
        pair.MultiSimilarityLoss,
        multi_similarity,
        {"alpha": 3.0, "beta": 20.0, "base": 0.2, "epsilon": None},
    ),
    "histogram": (pair.histogram_loss, pair.HistogramLoss, histogram, {}),
    "histogram-coarse": (
        pair.histogram_loss,
        pair.HistogramLoss,
        histogram,
        {"num_bins": 3, "low": -0.5, "high": 0.7},
    ),
}
NAMES = list(CASES)
PER_LIST = [name for name in NAMES if not name.startswith("histogram")]


def loss_of(name):
    function, _, _, options = CASES[name]
    return partial(function, **options)


def needs_both(name):
    return not name.startswith(EITHER_SIDE)


def batch(q=5, n=9, seed=0, dtype=torch.float64, share=0.4):
    """Scores in (-1, 1) and a relevance in which the first item is relevant and the last is not."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(q, n, generator=generator, dtype=torch.float64) * 1.98 - 0.99
    relevant = torch.rand(q, n, generator=generator) < share
    relevant[:, 0], relevant[:, -1] = True, False
    return scores.to(dtype), relevant


def reference(name, scores, relevant, where=None):
    """The loss of (Q, N) by the loops above, over the lists that are defined."""
    _, _, function, options = CASES[name]
    real = torch.ones_like(relevant) if where is None else where
    lists = [(s[r & w].tolist(), s[~r & w].tolist()) for s, r, w in zip(scores.double(), relevant, real, strict=True)]
    if name.startswith("histogram"):
        lists = [([s for p, _ in lists for s in p], [s for _, n in lists for s in n])]
    lists = [(p, n) for p, n in lists if (p and n) or (not needs_both(name) and (p or n))]
    return mean(function(p, n, **options) for p, n in lists)


def gradient(loss, scores, relevant, **kwargs):
    leaf = scores.detach().clone().requires_grad_()
    value = loss(leaf, relevant, **kwargs)
    value.backward()
    return value.detach(), leaf.grad


# ---------------------------------------------------------------------------------------------------------------------
# Values and gradients
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_loops(name, seed):
    scores, relevant = batch(q=6, n=11, seed=seed)
    expected = reference(name, scores, relevant)
    torch.testing.assert_close(loss_of(name)(scores, relevant).item(), expected, rtol=1e-12, atol=1e-12)
    single = loss_of(name)(scores.float(), relevant)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.item(), expected, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_equals_the_loops_with_ties(name):
    scores, relevant = batch(q=6, n=15, seed=5)
    scores = (scores * 4).round() / 4  # many equal scores, across the sides too, and scores at the margins
    torch.testing.assert_close(
        loss_of(name)(scores, relevant).item(), reference(name, scores, relevant), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    scores, relevant = batch(q=3, n=7, seed=2)
    relevant[2] = False
    assert gradcheck(lambda s: loss_of(name)(s, relevant), scores.requires_grad_())


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(name):
    scores, relevant = batch(q=2, n=6, seed=3)
    assert gradgradcheck(lambda s: loss_of(name)(s, relevant) + (s**3).sum(), scores.requires_grad_())


@pytest.mark.parametrize("name", PER_LIST)
def test_batch_is_the_mean_of_its_lists(name):
    scores, relevant = batch(q=6, n=8)
    alone = torch.stack([loss_of(name)(s, r) for s, r in zip(scores, relevant, strict=True)])
    torch.testing.assert_close(loss_of(name)(scores, relevant), alone.mean())
    torch.testing.assert_close(loss_of(name)(scores.view(2, 3, 8), relevant.view(2, 3, 8)), alone.mean())


def test_histogram_is_of_the_whole_batch():
    scores, relevant = batch(q=6, n=8)
    whole = pair.histogram_loss(scores, relevant)
    torch.testing.assert_close(pair.histogram_loss(scores.view(-1), relevant.view(-1)), whole)
    alone = torch.stack([pair.histogram_loss(s, r) for s, r in zip(scores, relevant, strict=True)])
    assert abs(float(alone.mean() - whole)) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_order_plays_no_role(name):
    scores, relevant = batch(q=6, n=12, seed=7)
    scores[:, 3] = scores[:, 4]
    value, grad = gradient(loss_of(name), scores, relevant)
    generator = torch.Generator().manual_seed(1)
    rows, columns = torch.randperm(6, generator=generator), torch.randperm(12, generator=generator)
    moved, moved_grad = gradient(loss_of(name), scores[rows][:, columns], relevant[rows][:, columns])
    torch.testing.assert_close(moved, value, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(moved_grad, grad[rows][:, columns], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_masked_is_deleted(name):
    scores, relevant = batch(q=5, n=8, seed=4)
    value, grad = gradient(loss_of(name), scores, relevant)
    junk = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.3], dtype=torch.float64).expand(5, 4)
    wide = torch.cat([junk[:, :2], scores, junk[:, 2:]], -1)
    wide_relevant = torch.cat([torch.ones(5, 2, dtype=torch.bool), relevant, torch.zeros(5, 2, dtype=torch.bool)], -1)
    where = torch.zeros(5, 12, dtype=torch.bool)
    where[:, 2:-2] = True
    masked, masked_grad = gradient(loss_of(name), wide, wide_relevant, where=where)
    torch.testing.assert_close(masked, value)
    torch.testing.assert_close(masked_grad[:, 2:-2], grad)
    torch.testing.assert_close(masked_grad[~where], torch.zeros(20, dtype=torch.float64))


@pytest.mark.parametrize("name", NAMES)
def test_lists_of_unequal_lengths(name):
    scores, relevant = batch(q=6, n=10, seed=8)
    where = torch.arange(10) < torch.tensor([10, 7, 4, 1, 0, 9]).unsqueeze(-1)
    value = loss_of(name)(scores.masked_fill(~where, float("nan")), relevant, where=where)
    torch.testing.assert_close(value.item(), reference(name, scores, relevant, where), rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# Degenerate and extreme lists
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PER_LIST)
def test_undefined_lists_are_left_out(name):
    scores, relevant = batch(q=6, n=8, seed=1)
    relevant[1], relevant[4] = False, True
    value, grad = gradient(loss_of(name), scores, relevant)
    torch.testing.assert_close(value.item(), reference(name, scores, relevant))
    if needs_both(name):
        kept = [0, 2, 3, 5]
        torch.testing.assert_close(value, loss_of(name)(scores[kept], relevant[kept]))
        torch.testing.assert_close(grad[[1, 4]], torch.zeros(2, 8, dtype=torch.float64))
    total, defined = loss_of(name)(scores, relevant, return_stats=True)[1]
    assert (total, int(defined)) == (6, 4 if needs_both(name) else 6)


@pytest.mark.parametrize("name", [name for name in NAMES if needs_both(name)])
@pytest.mark.parametrize("side", [False, True])
def test_no_list_defined(name, side):
    scores, relevant = batch(q=3, n=4)
    relevant[:] = side
    with pytest.warns(UndefinedListWarning, match="0 of 3 lists have"):
        value, grad = gradient(loss_of(name), scores, relevant)
    assert value == 0
    torch.testing.assert_close(grad, torch.zeros_like(scores))


@pytest.mark.parametrize("name", NAMES)
def test_no_lists(name):
    with pytest.warns(UndefinedListWarning, match="0 of 0 lists have"):
        value, grad = gradient(loss_of(name), torch.zeros(0, 5), torch.zeros(0, 5, dtype=torch.bool))
    assert value == 0
    assert grad.shape == (0, 5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "kind", ["ties", "constant", "huge", "tiny", "far", "duplicates", "opposite", "one-item", "apart"]
)
def test_finite_on_extreme_lists(name, dtype, kind):
    scores, relevant = batch(q=4, n=1 if kind == "one-item" else 12, seed=6, dtype=dtype)
    relevant[2], relevant[3] = False, True
    scores = {
        "ties": (scores * 2).round() / 2,
        "constant": torch.full_like(scores, 0.3),
        "huge": scores * 1e30,
        "tiny": scores * 1e-30,
        "far": scores + 1e6,
        "duplicates": torch.ones_like(scores),
        "opposite": -torch.ones_like(scores),
        "one-item": scores,
        "apart": torch.where(relevant, -1e4, 1e4).to(dtype),
    }[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedListWarning)
        value, grad = gradient(loss_of(name), scores, relevant)
    assert torch.isfinite(value)
    assert torch.isfinite(grad).all()
    assert grad.dtype == dtype


@pytest.mark.parametrize("name", NAMES)
def test_gradient_points_the_right_way(name):
    scores, relevant = batch(q=8, n=12, seed=9)
    _, grad = gradient(loss_of(name), scores, relevant)
    assert (grad[relevant] <= 0).all()
    assert (grad[~relevant] >= 0).all()
    assert (grad != 0).any()


def test_offset_does_not_cost_triplets_their_precision():
    scores, relevant = batch(q=4, n=40, dtype=torch.float32)
    scores = (scores * 64).round() / 64  # exact at an offset of a thousand
    value = pair.triplet_loss(scores + 1000, relevant, margin=0.25)
    torch.testing.assert_close(value, pair.triplet_loss(scores, relevant, margin=0.25), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mining", ["all", "semihard"])
@pytest.mark.parametrize("scale", [1, 1e9])
def test_few_positives_or_many_is_the_same_triplet_loss(mining, scale, monkeypatch):
    scores, relevant = batch(q=5, n=40, dtype=torch.float32, seed=3)
    scores = (scores * 16).round() / 16 * scale
    loss = partial(pair.triplet_loss, mining=mining, margin=0.25)
    few = gradient(loss, scores, relevant)
    monkeypatch.setattr(pair, "FEW_POSITIVES", 0)
    torch.testing.assert_close(gradient(loss, scores, relevant), few, rtol=0, atol=0)


def test_histogram_of_millions_of_equal_pairs():
    """A float32 counter stops at 2^24."""
    scores = torch.full((4200, 4200), 0.5)  # 17.6 million pairs
    relevant = torch.zeros_like(scores, dtype=torch.bool)
    scores[0, 0], relevant[0, 0] = 0.9, True
    scores[1:, 0] = 0.95
    expected = 4199 / (4200 * 4200 - 1)
    torch.testing.assert_close(pair.histogram_loss(scores, relevant).item(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("num_bins", [1, 2, 7, 100, 1000])
def test_histograms_have_sum_one_and_the_loss_is_a_probability(num_bins):
    scores = torch.linspace(-1, 1, 41).expand(3, 41).contiguous()  # many scores at nodes, both ends among them
    relevant = torch.arange(41) % 3 == torch.arange(3).unsqueeze(-1)
    value = pair.histogram_loss(scores, relevant, num_bins=num_bins)
    inverse = pair.histogram_loss(scores, ~relevant, num_bins=num_bins)
    assert 0 <= value <= 1
    assert value + inverse >= 1  # pairs within one node count on both sides


def test_mining_is_of_the_whole_list_and_has_no_gradient():
    scores = torch.tensor([[0.5, 0.9, 0.35, 0.45, 0.7]], dtype=torch.float64)
    relevant = torch.tensor([[True, True, False, False, False]])
    _, grad = gradient(pair.multi_similarity_loss, scores, relevant)
    assert grad.ne(0).tolist() == [[True, False, False, True, True]]  # 0.9 >= 0.7 + 0.1 and 0.35 <= 0.5 - 0.1
    kept = torch.tensor([[True, False, False, True, True]])
    torch.testing.assert_close(
        pair.multi_similarity_loss(scores, relevant),
        pair.multi_similarity_loss(scores, relevant, epsilon=None, where=kept),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Ways to call
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_module_is_the_function(name):
    _, module, _, options = CASES[name]
    scores, relevant = batch()
    where = torch.rand(5, 9, generator=torch.Generator().manual_seed(3)) < 0.8
    torch.testing.assert_close(module(**options)(scores, relevant), loss_of(name)(scores, relevant))
    value, stats = module(**options)(scores, relevant, where=where, return_stats=True)
    expected, expected_stats = loss_of(name)(scores, relevant, where=where, return_stats=True)
    torch.testing.assert_close(value, expected)
    assert stats == expected_stats
    assert not list(module(**options).parameters())
    assert all(f"{key}={option!r}" in repr(module(**options)) for key, option in options.items())


@pytest.mark.parametrize("name", NAMES)
def test_numbers_as_relevance(name):
    scores, relevant = batch()
    torch.testing.assert_close(loss_of(name)(scores, relevant.int()), loss_of(name)(scores, relevant), rtol=0, atol=0)
    torch.testing.assert_close(loss_of(name)(scores, relevant.float()), loss_of(name)(scores, relevant), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_under_autocast_is_float32(name, dtype):
    scores, relevant = batch(dtype=dtype)
    expected, expected_grad = gradient(loss_of(name), scores.float(), relevant)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, grad = gradient(loss_of(name), scores, relevant)
    assert value.dtype == torch.float32
    assert grad.dtype == dtype
    torch.testing.assert_close(value, expected, rtol=0, atol=0)
    torch.testing.assert_close(grad, expected_grad.to(dtype))


@pytest.mark.parametrize("name", NAMES)
def test_non_contiguous(name):
    scores, relevant = batch(q=6, n=8)
    value, grad = gradient(loss_of(name), scores, relevant)
    turned = scores.t().contiguous().t()
    strided = torch.stack([scores, scores * 0], -1)[..., 0]
    for other in (turned, strided):
        assert not other.is_contiguous()
        leaf = other.detach().requires_grad_()
        result = loss_of(name)(leaf, relevant.t().contiguous().t())
        result.backward()
        torch.testing.assert_close(result.detach(), value)
        torch.testing.assert_close(leaf.grad, grad)


@pytest.mark.parametrize("name", NAMES)
def test_func_grad_and_vmap(name):
    scores, relevant = batch(q=3, n=6)
    _, expected = gradient(loss_of(name), scores, relevant)
    torch.testing.assert_close(torch.func.grad(loss_of(name))(scores, relevant), expected)
    alone = torch.stack([gradient(loss_of(name), s, r)[1] for s, r in zip(scores, relevant, strict=True)])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss_of(name)))(scores, relevant), alone)


ONE_EACH = [name for name in NAMES if not name.endswith(("-wide", "-warm", "-cold", "-negative", "-all", "-coarse"))]


@pytest.mark.parametrize("name", ONE_EACH)
def test_compiled_equals_eager(name):
    scores, relevant = batch(q=4, n=8)
    relevant[1] = False
    where = torch.rand(4, 8, generator=torch.Generator().manual_seed(3)) < 0.9
    torch._dynamo.reset()
    compiled = torch.compile(loss_of(name), fullgraph=True, backend="aot_eager")
    value, grad = gradient(loss_of(name), scores, relevant, where=where)
    result, result_grad = gradient(compiled, scores, relevant, where=where)
    torch.testing.assert_close(result, value)
    torch.testing.assert_close(result_grad, grad)


def exact_average_precision(scores, relevant):
    values = []
    for s, r in zip(scores.tolist(), relevant.tolist(), strict=True):
        hits = [hit for _, hit in sorted(zip(s, r, strict=True), reverse=True)]
        values.append(mean(sum(hits[: i + 1]) / (i + 1) for i, hit in enumerate(hits) if hit))
    return mean(values)


@pytest.mark.parametrize("name", NAMES)
def test_descent_raises_average_precision(name):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(24) // 4
    embeddings = torch.randn(24, 16, generator=generator).requires_grad_()
    others = ~torch.eye(24, dtype=torch.bool)
    relevant = (labels.unsqueeze(1) == labels)[others].view(24, 23)

    def scores():
        unit = torch.nn.functional.normalize(embeddings)
        return (unit @ unit.t())[others].view(24, 23)

    optimizer = torch.optim.SGD([embeddings], lr=1.0, momentum=0.9)
    before = exact_average_precision(scores(), relevant)
    for _ in range(100):
        optimizer.zero_grad()
        loss_of(name)(scores(), relevant).backward()
        optimizer.step()
    assert exact_average_precision(scores(), relevant) > before + 0.2


# ---------------------------------------------------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------------------------------------------------

NUMBER = "must be a finite number, got"


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (pair.contrastive_loss, {"pos_margin": float("nan")}, f"`pos_margin` {NUMBER} nan."),
        (pair.contrastive_loss, {"neg_margin": "0.5"}, f"`neg_margin` {NUMBER} '0.5'."),
        (pair.triplet_loss, {"margin": 0}, "`margin` must be a positive number, got 0."),
        (pair.triplet_loss, {"mining": "easy"}, "`mining` must be one of all, semihard, hard, got 'easy'."),
        (pair.nt_xent_loss, {"temperature": -1.0}, "`temperature` must be a positive number, got -1.0."),
        (pair.nca_loss, {"temperature": 0.0}, "`temperature` must be a positive number, got 0.0."),
        (pair.lifted_structure_loss, {"margin": None}, f"`margin` {NUMBER} None."),
        (pair.binomial_deviance_loss, {"alpha": 0.0}, "`alpha` must be a positive number, got 0.0."),
        (pair.bin_lifted_loss, {"beta": float("inf")}, "`beta` must be a positive number, got inf."),
        (pair.multi_similarity_loss, {"base": True}, f"`base` {NUMBER} True."),
        (pair.multi_similarity_loss, {"epsilon": float("inf")}, f"`epsilon` {NUMBER} inf."),
        (pair.histogram_loss, {"num_bins": 0}, "`num_bins` must be a whole number of at least 1, got 0."),
        (pair.histogram_loss, {"high": -1.0}, "`low` must be below `high`, got low=-1.0 and high=-1.0."),
    ],
)
def test_bad_options(loss, options, message):
    scores, relevant = batch()
    with pytest.raises(ValueError, match=r".") as error:
        loss(scores, relevant, **options)
    assert str(error.value) == message


@pytest.mark.parametrize("name", NAMES)
def test_bad_arguments(name):
    scores, relevant = batch(q=2, n=3)
    with pytest.raises(ValueError, match=r".") as error:
        loss_of(name)(scores, relevant[:1])
    assert str(error.value) == "`relevant` must have the shape of `scores` (2, 3), got (1, 3)."
    with pytest.raises(TypeError, match=r".") as error:
        loss_of(name)(scores.long(), relevant)
    assert str(error.value) == (
        "`scores` must be real floating point, got dtype int64. Convert it first: scores.float()."
    )
    scores[1, 2] = float("nan")
    with pytest.raises(ValueError, match=r".") as error:
        loss_of(name)(scores, relevant)
    assert str(error.value) == (
        "`scores` must be finite, got 1 NaN or infinite of 6 values, the first (nan) at index (1, 2). "
        "Mask such items out with where=, or find the step that made them (torch.autograd.set_detect_anomaly)."
    )
