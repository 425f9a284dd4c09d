"""Pair losses against plain Python loops written from the formulas; what all losses promise: test_contract.py."""

import inspect
import math
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from sodeep import losses
from sodeep.losses import _chunks

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


def contrastive(p, n, positive_margin=0.9, negative_margin=0.6):
    return mean_active(positive_margin - s for s in p) + mean_active(s - negative_margin for s in n)


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
    "contrastive": (losses.contrastive_loss, contrastive, {}),
    "contrastive-wide": (
        losses.contrastive_loss,
        contrastive,
        {"positive_margin": 2.0, "negative_margin": -1.0},
    ),
    "triplet": (losses.triplet_loss, triplet, {}),
    "triplet-wide": (losses.triplet_loss, triplet, {"margin": 3.0}),
    "triplet-semihard": (losses.triplet_loss, triplet, {"mining": "semihard"}),
    "triplet-hard": (losses.triplet_loss, triplet, {"mining": "hard"}),
    "nt_xent": (losses.nt_xent_loss, nt_xent, {}),
    "nt_xent-warm": (losses.nt_xent_loss, nt_xent, {"temperature": 0.5}),
    "n_pairs": (losses.n_pairs_loss, n_pairs, {}),
    "nca": (losses.nca_loss, nca, {}),
    "nca-cold": (losses.nca_loss, nca, {"temperature": 0.1}),
    "lifted": (losses.lifted_structure_loss, lifted, {}),
    "lifted-negative": (losses.lifted_structure_loss, lifted, {"margin": -2.5}),
    "binomial": (losses.binomial_deviance_loss, binomial, {}),
    "bin_lifted": (losses.bin_lifted_loss, bin_lifted, {}),
    "multi_similarity": (losses.multi_similarity_loss, multi_similarity, {}),
    "multi_similarity-all": (
        losses.multi_similarity_loss,
        multi_similarity,
        {"alpha": 3.0, "beta": 20.0, "base": 0.2, "epsilon": None},
    ),
    "histogram": (losses.histogram_loss, histogram, {}),
    "histogram-coarse": (
        losses.histogram_loss,
        histogram,
        {"num_bins": 3, "low": -0.5, "high": 0.7},
    ),
}
NAMES = list(CASES)


def loss_of(name):
    function, _, options = CASES[name]
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
    _, function, options = CASES[name]
    real = torch.ones_like(relevant) if where is None else where
    lists = [(s[r & w].tolist(), s[~r & w].tolist()) for s, r, w in zip(scores.double(), relevant, real, strict=True)]
    if name.startswith("histogram"):
        lists = [([s for p, _ in lists for s in p], [s for _, n in lists for s in n])]
    lists = [(p, n) for p, n in lists if (p and n) or (not needs_both(name) and (p or n))]
    return mean(function(p, n, **options) for p, n in lists)


def gradient(loss, scores, relevant, total=False, **kwargs):
    leaf = scores.detach().clone().requires_grad_()
    value = loss(leaf, relevant, **kwargs)
    value = value.nansum() if total else value
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


@pytest.mark.parametrize("name", ["nt_xent", "n_pairs", "nca", "nca-cold", "lifted"])
@pytest.mark.parametrize("side", [True, False])
def test_sums_that_underflow(name, side):
    """One side of the first list so far below the other that e^x is 0 beside it, in float64 too."""
    scores, relevant = batch(q=3, n=7, seed=2)
    far = scores.clone()
    far[0] -= 300 * (relevant[0] == side)
    expected = reference(name, far, relevant)
    torch.testing.assert_close(loss_of(name)(far, relevant).item(), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loss_of(name)(far.float(), relevant).item(), expected, rtol=2e-5, atol=1e-5)
    assert gradcheck(lambda s: loss_of(name)(s, relevant), far.requires_grad_())


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    scores, relevant = batch(q=3, n=7, seed=2)
    relevant[2] = False
    assert gradcheck(lambda s: loss_of(name)(s, relevant), scores.requires_grad_())


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(name):
    scores, relevant = batch(q=2, n=6, seed=3)
    assert gradgradcheck(lambda s: loss_of(name)(s, relevant) + (s**3).sum(), scores.requires_grad_())


def test_histogram_is_of_the_whole_batch():
    scores, relevant = batch(q=6, n=8)
    whole = losses.histogram_loss(scores, relevant)
    torch.testing.assert_close(losses.histogram_loss(scores.view(-1), relevant.view(-1)), whole)
    alone = torch.stack([losses.histogram_loss(s, r) for s, r in zip(scores, relevant, strict=True)])
    assert abs(float(alone.mean() - whole)) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_lists_of_unequal_lengths(name):
    scores, relevant = batch(q=6, n=10, seed=8)
    where = torch.arange(10) < torch.tensor([10, 7, 4, 1, 0, 9]).unsqueeze(-1)
    value = loss_of(name)(scores.masked_fill(~where, float("nan")), relevant, where=where)
    torch.testing.assert_close(value.item(), reference(name, scores, relevant, where), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore::sodeep.losses.UndefinedListWarning")
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("histogram")])
@pytest.mark.parametrize("side", [None, True, False], ids=["both", "positives", "negatives"])
def test_gradient_of_lists_of_unequal_lengths(name, side):
    """That of the list alone, and finite where a list has one side only."""
    scores, relevant = batch(q=4, n=10, seed=8)
    if side is not None:
        relevant[2] = side
    lengths = [10, 7, 4, 0]
    where = torch.arange(10) < torch.tensor(lengths).unsqueeze(-1)
    loss = partial(loss_of(name), reduction="none")
    _, grad = gradient(loss, scores, relevant, total=True, where=where)
    for row, length in enumerate(lengths[:-1]):
        _, alone = gradient(loss, scores[row, :length], relevant[row, :length], total=True)
        torch.testing.assert_close(grad[row], torch.cat([alone, torch.zeros(10 - length, dtype=alone.dtype)]))
    assert (grad[-1] == 0).all()


# ---------------------------------------------------------------------------------------------------------------------
# Degenerate and extreme lists
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_gradient_points_the_right_way(name):
    scores, relevant = batch(q=8, n=12, seed=9)
    _, grad = gradient(loss_of(name), scores, relevant)
    assert (grad[relevant] <= 0).all()
    assert (grad[~relevant] >= 0).all()
    assert (grad != 0).any()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_relevance_made_of_bytes(name, masked):
    """To torch every byte but 0 is True."""
    scores, relevant = batch(q=4, n=8)
    given = (relevant * torch.tensor([255, 2, 1, 128]).unsqueeze(1)).to(torch.uint8).view(torch.bool)
    options = {"where": torch.arange(8) < torch.tensor([8, 5, 8, 3]).unsqueeze(1)} if masked else {}
    value, grad = gradient(loss_of(name), scores, given, **options)
    expected = gradient(loss_of(name), scores, relevant, **options)
    torch.testing.assert_close((value, grad), expected, rtol=0, atol=0)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("loss", [losses.n_pairs_loss, partial(losses.nt_xent_loss, temperature=0.07)])
def test_one_positive_far_behind_among_huge_scores(loss, masked):
    scores = torch.tensor([[-2e37, -3e37, -1.2e37, 0.0]])
    options = {"where": torch.tensor([[True, True, True, False]])} if masked else {}
    n = 4 if masked else 3
    temperature = 0.07 if isinstance(loss, partial) else 1
    scores[:, :3] *= temperature
    relevant = torch.arange(n)[None] == 0
    value, grad = gradient(loss, scores[:, :n], relevant, **options)
    torch.testing.assert_close(value, torch.tensor(8e36))
    torch.testing.assert_close(grad * temperature, torch.tensor([[-1.0, 0.0, 1.0, 0.0][:n]]))
    value, grad = gradient(loss, 10 * scores[:, :n] / temperature, relevant, **options)  # bounded, beyond a limit
    assert value.isfinite()
    assert grad.isfinite().all()


def test_offset_does_not_cost_triplets_their_precision():
    scores, relevant = batch(q=4, n=40, dtype=torch.float32)
    scores = (scores * 64).round() / 64  # exact at an offset of a thousand
    value = losses.triplet_loss(scores + 1000, relevant, margin=0.25)
    torch.testing.assert_close(value, losses.triplet_loss(scores, relevant, margin=0.25), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mining", ["all", "semihard"])
@pytest.mark.parametrize("scale", [1, 1e9])
def test_few_positives_or_many_is_the_same_triplet_loss(mining, scale, monkeypatch):
    scores, relevant = batch(q=5, n=40, dtype=torch.float32, seed=3)
    scores = (scores * 16).round() / 16 * scale
    loss = partial(losses.triplet_loss, mining=mining, margin=0.25)
    few = gradient(loss, scores, relevant)
    monkeypatch.setattr("sodeep.losses.contrastive.FEW_POSITIVES", 0)
    torch.testing.assert_close(gradient(loss, scores, relevant), few, rtol=0, atol=0)


def test_histogram_of_millions_of_equal_pairs():
    """A float32 counter stops at 2^24."""
    scores = torch.full((4200, 4200), 0.5)  # 17.6 million pairs
    relevant = torch.zeros_like(scores, dtype=torch.bool)
    scores[0, 0], relevant[0, 0] = 0.9, True
    scores[1:, 0] = 0.95
    expected = 4199 / (4200 * 4200 - 1)
    torch.testing.assert_close(losses.histogram_loss(scores, relevant).item(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("num_bins", [1, 2, 7, 100, 1000])
def test_histograms_have_sum_one_and_the_loss_is_a_probability(num_bins):
    scores = torch.linspace(-1, 1, 41).expand(3, 41).contiguous()  # many scores at nodes, both ends among them
    relevant = torch.arange(41) % 3 == torch.arange(3).unsqueeze(-1)
    value = losses.histogram_loss(scores, relevant, num_bins=num_bins)
    inverse = losses.histogram_loss(scores, ~relevant, num_bins=num_bins)
    assert 0 <= value <= 1
    assert value + inverse >= 1  # pairs within one node count on both sides


def test_mining_is_of_the_whole_list_and_has_no_gradient():
    scores = torch.tensor([[0.5, 0.9, 0.35, 0.45, 0.7]], dtype=torch.float64)
    relevant = torch.tensor([[True, True, False, False, False]])
    _, grad = gradient(losses.multi_similarity_loss, scores, relevant)
    assert grad.ne(0).tolist() == [[True, False, False, True, True]]  # 0.9 >= 0.7 + 0.1 and 0.35 <= 0.5 - 0.1
    kept = torch.tensor([[True, False, False, True, True]])
    torch.testing.assert_close(
        losses.multi_similarity_loss(scores, relevant),
        losses.multi_similarity_loss(scores, relevant, epsilon=None, where=kept),
    )


@pytest.mark.parametrize(
    "loss", [losses.nt_xent_loss, losses.nca_loss, losses.multi_similarity_loss, losses.bin_lifted_loss]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponents_beyond_the_range_keep_their_gradient(loss, dtype):
    """They are brought back into it, and the hardest negative is still pushed down, the easy one left alone."""
    options = {"temperature": 0.1} if "temperature" in inspect.signature(loss).parameters else {}
    scores = torch.tensor([[0.25, -0.75, 0.5, -0.5]], dtype=dtype) * torch.finfo(dtype).max
    value, grad = gradient(loss, scores, torch.tensor([[True, False, False, True]]), **options)
    assert value.isfinite()
    assert grad.isfinite().all()
    assert grad[0, 2] > 0
    assert grad[0, 1] == 0


# ---------------------------------------------------------------------------------------------------------------------
# A temperature that learns
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [losses.NTXentLoss, losses.NCALoss])
def test_a_temperature_that_learns(module, monkeypatch):
    scores, relevant = batch()
    temperature = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    loss = module(temperature)
    assert dict(loss.named_parameters()) == {"temperature": temperature}
    assert repr(loss) == f"{module.__name__}(temperature=1)"
    torch.testing.assert_close(loss(scores, relevant), module(1.0)(scores, relevant))
    assert loss(scores.float(), relevant).dtype == torch.float32
    leaf = scores.double().requires_grad_()
    assert gradcheck(lambda s, t: module.function(s, relevant, temperature=t), (leaf, temperature))
    whole = torch.autograd.grad(loss(leaf, relevant), temperature)
    monkeypatch.setattr(_chunks, "SMALL", 0)
    monkeypatch.setattr(_chunks, "chunk_elements", lambda device: 1)
    torch.testing.assert_close(torch.autograd.grad(loss(leaf, relevant), temperature), whole)


def test_a_temperature_that_is_none():
    scores, relevant = batch()
    remedy = "EmbeddingLoss(..., scale=) takes a module that gives log_scale.exp(), which stays positive."
    for temperature, got in ((torch.tensor(-0.5), "-0.5"), (torch.ones(2), "a tensor of shape (2,) and dtype float32")):
        with pytest.raises(ValueError, match=r".") as error:
            losses.nt_xent_loss(scores, relevant, temperature=temperature)
        assert str(error.value) == f"`temperature` must be one positive number, got {got}. {remedy}"


# ---------------------------------------------------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------------------------------------------------

NUMBER = "must be a finite number, got"


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (losses.contrastive_loss, {"positive_margin": float("nan")}, f"`positive_margin` {NUMBER} nan."),
        (losses.contrastive_loss, {"negative_margin": "0.5"}, f"`negative_margin` {NUMBER} '0.5'."),
        (losses.triplet_loss, {"margin": 0}, "`margin` must be a positive number, got 0."),
        (losses.triplet_loss, {"mining": "easy"}, "`mining` must be one of all, semihard, hard, got 'easy'."),
        (losses.nt_xent_loss, {"temperature": -1.0}, "`temperature` must be a positive number, got -1.0."),
        (losses.nca_loss, {"temperature": 0.0}, "`temperature` must be a positive number, got 0.0."),
        (losses.lifted_structure_loss, {"margin": None}, f"`margin` {NUMBER} None."),
        (losses.binomial_deviance_loss, {"alpha": 0.0}, "`alpha` must be a positive number, got 0.0."),
        (losses.bin_lifted_loss, {"beta": float("inf")}, "`beta` must be a positive number, got inf."),
        (losses.multi_similarity_loss, {"base": True}, f"`base` {NUMBER} True."),
        (losses.multi_similarity_loss, {"epsilon": float("inf")}, f"`epsilon` {NUMBER} inf."),
        (losses.histogram_loss, {"num_bins": 0}, "`num_bins` must be a whole number of at least 1, got 0."),
        (losses.histogram_loss, {"high": -1.0}, "`low` must be below `high`, got low=-1.0 and high=-1.0."),
    ],
)
def test_bad_options(loss, options, message):
    scores, relevant = batch()
    with pytest.raises(ValueError, match=r".") as error:
        loss(scores, relevant, **options)
    assert str(error.value) == message


def test_a_temperature_that_learns_on_groups():
    scores = torch.tensor([0.3, 0.1, 0.9, 0.2, 0.4], dtype=torch.float64)
    relevant, group = torch.tensor([True, False, False, True, False]), [0, 0, 0, 1, 1]
    temperature = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    loss = losses.nt_xent_loss(scores, relevant, temperature=temperature, group=group)
    torch.testing.assert_close(loss, losses.nt_xent_loss(scores, relevant, temperature=0.5, group=group))
    loss.backward()
    near = [losses.nt_xent_loss(scores, relevant, temperature=0.5 + step, group=group) for step in (1e-6, -1e-6)]
    torch.testing.assert_close(temperature.grad, (near[0] - near[1]) / 2e-6)
