"""Retrieval losses and ASP against plain loops written from the formulas; what all losses promise: test_contract.py."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

import sodeep
from sodeep.losses import _per_query, quantized_ap, smooth_ap
from sodeep.losses.asp import asp_loss
from sodeep.losses.quantized_ap import fast_ap_loss, quantized_ap_loss
from sodeep.losses.smooth_ap import recall_at_k_loss, smooth_ap_loss, sup_ap_loss
from sodeep.ranks import exact_rank, sigmoid_rank

# ---------------------------------------------------------------------------------------------------------------------
# One list at a time, in plain Python, from the formulas


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def slow_smooth_ap(s, y, tau=0.01):
    P = [i for i in range(len(s)) if y[i]]
    total = 0.0
    for i in P:
        among = 1 + sum(sigmoid((s[j] - s[i]) / tau) for j in P if j != i)
        total += among / (among + sum(sigmoid((s[j] - s[i]) / tau) for j in range(len(s)) if not y[j]))
    return 1 - total / len(P)


def slow_quantized_ap(s, y, num_bins=20, low=-1.0, high=1.0):
    gap = (high - low) / (num_bins - 1)
    seen = seen_positive = ap = 0.0
    for m in range(num_bins):
        kernel = [max(0.0, 1 - abs(min(max(x, low), high) - (high - m * gap)) / gap) for x in s]
        here = sum(k for k, relevant in zip(kernel, y, strict=True) if relevant)
        seen, seen_positive = seen + sum(kernel), seen_positive + here
        ap += seen_positive / seen * here if here else 0.0
    return 1 - ap / sum(y)


def slow_fast_ap(s, y, num_bins=10):
    width = 4 / num_bins
    H = H_positive = total = 0.0
    for node in range(num_bins + 1):
        h = [max(0.0, 1 - abs(min(max(2 - 2 * x, 0), 4) - node * width) / width) for x in s]
        h_positive = sum(k for k, relevant in zip(h, y, strict=True) if relevant)
        H, H_positive = H + sum(h), H_positive + h_positive
        total += h_positive * H_positive / H if H else 0.0
    return 1 - total / sum(y)


def slow_sup_ap(s, y, tau=0.01, rho=100.0, delta=0.05, offset=None, calibration=1.0):
    def bound(d):
        if d <= 0:
            return sigmoid(d / tau)
        if d <= delta:
            return 0.5 + sigmoid(d / tau)
        return rho * (d - delta) + (0.5 + sigmoid(delta / tau) if offset is None else offset)

    P, N = [x for x, r in zip(s, y, strict=True) if r], [x for x, r in zip(s, y, strict=True) if not r]
    ap = 0.0
    for i, x in enumerate(P):
        rank = 1 + sum((z > x) + 0.5 * (z == x) for j, z in enumerate(P) if j != i)
        ap += rank / (rank + sum(bound(z - x) for z in N)) / len(P)
    pull, push = sum(max(0, 0.9 - x) for x in P) / len(P), sum(max(0, x - 0.6) for x in N) / max(1, len(N))
    return 1 - ap + calibration * (pull + push)


def slow_recall_at_k(s, y, k=(1, 2, 4, 8, 16), tau_rank=0.01, tau_k=1.0):
    n = len(s)
    ranks = [1 + sum(sigmoid((s[j] - s[i]) / tau_rank) for j in range(n) if j != i) for i in range(n) if y[i]]
    recall = [min(c, sum(sigmoid((c - r) / tau_k) for r in ranks)) / min(c, len(ranks)) for c in k]
    return 1 - sum(recall) / len(recall)


def slow_asp(s, c, tau=0.01):
    n = len(s)

    def ranks(x):
        return [1 + sum(sigmoid((x[j] - x[i]) / tau) for j in range(n) if j != i) for i in range(n)]

    return 1 - sum(min(a, b) / max(a, b) for a, b in zip(ranks(s), ranks(c), strict=True)) / n


def exact_ap(scores, relevant):
    """Mean exact AP of lists without ties."""
    values = []
    for s, y in zip(scores.tolist(), relevant.tolist(), strict=True):
        hits = [r for _, r in sorted(zip(s, y, strict=True), reverse=True)]
        values.append(sum(sum(hits[: i + 1]) / (i + 1) for i, hit in enumerate(hits) if hit) / sum(hits))
    return sum(values) / len(values)


# ---------------------------------------------------------------------------------------------------------------------
# The losses, each with options that leave it smooth enough for finite differences, and data


LOSSES = {
    "smooth_ap": (smooth_ap_loss, slow_smooth_ap, {"tau": 0.1}),
    "quantized_ap": (quantized_ap_loss, slow_quantized_ap, {"num_bins": 7}),
    "quantized_ap_0_1": (
        partial(quantized_ap_loss, num_bins=25, low=0.0),
        partial(slow_quantized_ap, num_bins=25, low=0),
        {},
    ),
    "fast_ap": (fast_ap_loss, slow_fast_ap, {"num_bins": 5}),
    "sup_ap": (sup_ap_loss, slow_sup_ap, {"tau": 0.1, "delta": 0.3, "rho": 2.0}),
    "sup_ap_released": (partial(sup_ap_loss, offset=1.44), partial(slow_sup_ap, offset=1.44), {"tau": 0.1, "rho": 2.0}),
    "sup_ap_alone": (partial(sup_ap_loss, calibration=0.0), partial(slow_sup_ap, calibration=0.0), {"tau": 0.1}),
    "recall_at_k": (recall_at_k_loss, slow_recall_at_k, {"tau_rank": 0.1}),
    "asp": (asp_loss, slow_asp, {"tau": 0.1}),
}
every_loss = pytest.mark.parametrize("name", LOSSES)
every_retrieval_loss = pytest.mark.parametrize("name", [name for name in LOSSES if name != "asp"])


def lists(name, Q=6, N=11, seed=0, dtype=torch.float64):
    """Scores in (-1, 1) and a target with one to four relevant items a list (semantic scores for ASP)."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.rand(Q, N, generator=generator, dtype=dtype) - 1
    if name == "asp":
        return scores, torch.rand(Q, N, generator=generator, dtype=dtype)
    relevant = torch.rand(Q, N, generator=generator).argsort(1) < 1 + torch.arange(Q).unsqueeze(1) % 4
    return scores, relevant


def value_and_grad(loss, scores, target, **options):
    scores = scores.clone().requires_grad_()
    value = loss(scores, target, **options)
    return value.detach(), torch.autograd.grad(value, scores)[0]


@every_loss
def test_equals_the_plain_loop(name):
    loss, slow, _ = LOSSES[name]
    scores, target = lists(name)
    expected = sum(map(slow, scores.tolist(), target.tolist())) / len(scores)
    torch.testing.assert_close(loss(scores, target), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(loss(scores.float(), target), torch.tensor(expected).float(), rtol=0, atol=1e-5)


@every_loss
def test_gradient_by_finite_differences(name):
    loss, _, smooth = LOSSES[name]
    scores, target = lists(name, Q=3, N=8, seed=1)
    where = torch.rand(scores.shape, generator=torch.Generator().manual_seed(2)) < 0.8
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: loss(s, target, **smooth), scores)
    assert torch.autograd.gradcheck(lambda s: loss(s, target, where=where, **smooth), scores)


@pytest.mark.parametrize("name", ["smooth_ap", "quantized_ap", "fast_ap", "sup_ap_alone"])
def test_all_relevant_is_perfect(name):
    loss, *_ = LOSSES[name]
    scores, relevant = lists(name)
    value, grad = value_and_grad(loss, scores, relevant | True)
    torch.testing.assert_close(value, torch.zeros_like(value), rtol=0, atol=1e-12)
    torch.testing.assert_close(grad, torch.zeros_like(grad), rtol=0, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# Pairs in chunks


@every_retrieval_loss
def test_chunks_change_nothing(name, monkeypatch):
    loss, *_ = LOSSES[name]
    scores, relevant = lists(name, Q=9, N=13)
    relevant[3] = True
    expected = value_and_grad(loss, scores, relevant)
    for elements in (1, 30, 100):
        for module in (smooth_ap, quantized_ap):
            monkeypatch.setattr(module, "chunk_elements", lambda device, elements=elements: elements)
        torch.testing.assert_close(value_and_grad(loss, scores, relevant), expected, rtol=0, atol=1e-12)


def test_one_dominant_class_means_more_chunks_not_larger_ones():
    scores = torch.rand(700, 600, generator=torch.Generator().manual_seed(0))
    relevant = torch.ones_like(scores, dtype=torch.bool)
    largest = _per_query.chunk_elements(scores.device)
    first = next(iter(smooth_ap._pairs_in_chunks(scores, relevant, relevant.nonzero())))
    assert first.gap.numel() <= largest
    assert largest < scores.numel()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # of torch's jvp itself
@every_retrieval_loss
def test_second_derivative_is_refused(name):
    loss, *_ = LOSSES[name]
    scores, relevant = lists(name)
    scores.requires_grad_()
    (grad,) = torch.autograd.grad(loss(scores, relevant), scores, create_graph=True)
    message = (
        r"^second derivatives of the retrieval losses are not implemented\. Drop create_graph=True, or take the "
        r"gradient outside forward mode\.$"
    )
    with pytest.raises(NotImplementedError, match=message):
        grad.sum().backward()
    gradient = torch.func.grad(lambda s: loss(s, relevant))
    with pytest.raises(NotImplementedError, match=message):
        torch.func.jvp(gradient, (scores.detach(),), (torch.ones_like(scores),))


# ---------------------------------------------------------------------------------------------------------------------
# Smooth-AP


def off_diagonal(matrix):
    n = len(matrix)
    return matrix[~torch.eye(n, dtype=torch.bool)].view(n, n - 1)


def released_smooth_ap(similarity, per_class, tau):
    """The published batch form: classes of one size in a row, the query among its own relevant items; dense."""
    B = len(similarity)
    above = torch.sigmoid((similarity.unsqueeze(1) - similarity.unsqueeze(2)) / tau)  # [q, i, j]: is j above i?
    above = above * (1 - torch.eye(B, dtype=above.dtype))
    same = torch.arange(B) // per_class == (torch.arange(B) // per_class).unsqueeze(1)
    rank, rank_positive = 1 + above.sum(2), 1 + (above * same.unsqueeze(1)).sum(2)
    return 1 - (rank_positive / rank * same).sum() / B / per_class


def test_include_self_is_the_released_value():
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(32, 16, generator=generator, dtype=torch.float64), dim=1)
    labels = torch.arange(32) // 4
    x.requires_grad_()
    similarity = x @ x.t()
    # unit vectors: the query's similarity to itself is 1, with no gradient along the sphere
    fixed = similarity - torch.diag_embed(similarity.diagonal()) + torch.eye(32, dtype=x.dtype)
    expected = released_smooth_ap(fixed, 4, 0.01)
    scores, relevant = off_diagonal(similarity), off_diagonal(labels == labels.unsqueeze(1))
    loss = smooth_ap_loss(scores, relevant, include_self=True)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, x, retain_graph=True), torch.autograd.grad(expected, x))
    assert 0.5 < loss < 0.6  # random embeddings: the query's own place alone is worth a quarter
    assert smooth_ap_loss(scores, relevant) > 0.75


@pytest.mark.parametrize("name", ["smooth_ap", "quantized_ap", "quantized_ap_0_1", "sup_ap_alone"])
def test_include_self_is_one_more_relevant_item(name):
    loss, *_ = LOSSES[name]
    scores, relevant = lists(name)
    one = torch.ones(6, 1, dtype=scores.dtype)
    longer = torch.cat([one, scores], 1), torch.cat([one.bool(), relevant], 1)
    where = torch.arange(11) < 9
    torch.testing.assert_close(loss(scores, relevant, include_self=True), loss(*longer))
    torch.testing.assert_close(
        loss(scores, relevant | ~where, include_self=True, where=where),
        loss(*longer, where=torch.cat([one[0].bool(), where])),
    )
    relevant[0] = False
    assert int(loss(scores, relevant, include_self=True, return_stats=True)[1].defined) == 5


def test_gradient_is_that_of_the_bleeker_supplement():
    """1/|P| sum_i R(i)^-2 [R(i, P) sum_{j in N} sim_ij (v_i - v_j) - (R(i, N) - 1) sum_{j in P} sim_ij (v_i - v_j)].

    With s = <q, v>, d AP / d q is the sum of d AP / d s_j v_j: the coefficients of v_j are compared.
    """
    tau = 0.05
    s, y = lists("smooth_ap", Q=1, seed=7)
    _, grad = value_and_grad(smooth_ap_loss, s, y, tau=tau)
    s, y = s[0], y[0]
    expected = torch.zeros_like(s)
    P, N = y.nonzero()[:, 0].tolist(), (~y).nonzero()[:, 0].tolist()
    for i in P:
        G = torch.sigmoid((s - s[i]) / tau)
        sim = G * (1 - G) / tau
        among, below = 1 + sum(G[j] for j in P if j != i), 1 + sum(G[j] for j in N)
        whole = among + below - 1
        for group, factor in ((N, among), ([j for j in P if j != i], -(below - 1))):
            for j in group:
                expected[i] += factor * sim[j] / whole**2 / len(P)
                expected[j] -= factor * sim[j] / whole**2 / len(P)
    torch.testing.assert_close(-grad[0], expected)


# ---------------------------------------------------------------------------------------------------------------------
# Quantised AP and FastAP


def test_gradient_is_that_of_the_quantised_ap_supplement():
    """Equations 6 to 9 for one query: the derivative of l = 1 - sum_m P_m dr_m by S."""
    M, (S, Y) = 20, lists("quantized_ap", Q=1, N=30, seed=5)
    _, grad = value_and_grad(quantized_ap_loss, S, Y, num_bins=M)
    S, Y = S[0], Y[0].double()
    one, gap = torch.ones_like(Y), 2 / (M - 1)
    xi, by_xi, by_s = torch.zeros_like(S), torch.zeros_like(S), torch.zeros_like(S)
    for m in range(M):
        centre = 1 - m * gap
        delta = (1 - (S - centre).abs() / gap).clamp(min=0)
        by_delta = -(S - centre).sign() / gap * ((S - centre).abs() <= gap)  # (7)
        xi, by_xi = xi + delta, by_xi + by_delta  # (6)
        if xi.sum() == 0:
            continue
        precision, recall = xi @ Y / xi.sum(), delta @ Y / Y.sum()
        by_precision = (xi @ one * Y - xi @ Y * one) / (xi @ one) ** 2  # (8)
        by_s += recall * by_precision * by_xi + precision * Y / Y.sum() * by_delta  # (9)
    torch.testing.assert_close(grad[0], -by_s)


def test_beyond_the_end_bins_there_is_no_gradient():
    scores = torch.tensor([1.7, -0.3, 0.55, -1.2, 0.53], dtype=torch.float64)
    relevant = torch.tensor([True, False, True, True, False])
    value, grad = value_and_grad(quantized_ap_loss, scores, relevant, num_bins=25, low=0, high=1)
    clipped, _ = value_and_grad(quantized_ap_loss, scores.clamp(0, 1), relevant, num_bins=25, low=0, high=1)
    assert value == clipped
    assert ((grad != 0) == torch.tensor([False, False, True, False, True])).all()


def test_scores_at_distinct_centres_are_exact():
    generator = torch.Generator().manual_seed(6)
    scores = 1 - torch.rand(6, 25, generator=generator).argsort(1).double()[:, :11] / 12
    relevant = lists("quantized_ap")[1]
    torch.testing.assert_close(quantized_ap_loss(scores, relevant, num_bins=25).item(), 1 - exact_ap(scores, relevant))


# ---------------------------------------------------------------------------------------------------------------------
# SupAP


def test_sup_ap_is_an_upper_bound():
    for seed in range(50):
        scores, relevant = lists("sup_ap", Q=1, N=12, seed=seed)
        scores = scores / (1 + seed % 10)
        assert sup_ap_loss(scores, relevant, calibration=0) >= 1 - exact_ap(scores, relevant)


def test_sup_ap_rises_with_an_irrelevant_item_unless_as_released():
    gaps = torch.linspace(-0.2, 0.2, 401, dtype=torch.float64)
    scores = torch.stack([torch.zeros_like(gaps), gaps], 1)
    relevant = torch.tensor([True, False])

    def by_gap(**options):
        return torch.stack([sup_ap_loss(s, relevant, calibration=0, **options) for s in scores])

    assert (by_gap().diff() > 0).all()
    assert (by_gap(offset=1.44).diff() < 0).sum() == 1


def test_sup_ap_has_no_gradient_among_relevant_items():
    _, grad = value_and_grad(
        partial(sup_ap_loss, calibration=0), torch.tensor([0.5, 0.495, -0.9]), torch.tensor([True, True, False])
    )
    torch.testing.assert_close(grad, torch.zeros(3), rtol=0, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Recall@k


def test_recall_of_coinciding_relevant_items():
    scores, relevant = torch.tensor([1.0, 1, 1, -1, -1]), torch.tensor([True, True, True, False, False])
    # three items share rank 2: 1 - 3 sigmoid(-1)
    torch.testing.assert_close(recall_at_k_loss(scores, relevant, k=1).item(), 1 - 3 * sigmoid(-1), rtol=0, atol=1e-6)


def test_recall_divides_by_what_can_be_found():
    scores = torch.tensor([5.0, 4, 3, 2, 1, 0, -1, -2, -3, -4])
    relevant = torch.tensor([1, 0, 1, 0, 0, 1, 1, 0, 0, 0]).bool()
    sharp = partial(recall_at_k_loss, scores, tau_rank=1e-3, tau_k=1e-2)
    # the cut is at k exactly, where an item counts one half: here no item is at rank 4 or 5
    torch.testing.assert_close(sharp(relevant, k=5).item(), 1 - 2 / 4)
    torch.testing.assert_close(sharp(relevant, k=2).item(), 1 - 1 / 2)
    torch.testing.assert_close(sharp(relevant, k=(2, 5)).item(), 1 / 2)


# ---------------------------------------------------------------------------------------------------------------------
# ASP


def test_asp_of_the_appendix_example():
    # semantic ranks 1 3 2 5 4, similarity ranks 3 1 4 5 2
    semantic, scores = -torch.tensor([1.0, 3, 2, 5, 4]), -torch.tensor([3.0, 1, 4, 5, 2])
    expected = 1 - (1 / 3 + 1 / 3 + 1 / 2 + 1 + 1 / 2) / 5
    torch.testing.assert_close(asp_loss(scores, semantic, rank_fn=exact_rank).item(), expected)
    torch.testing.assert_close(asp_loss(scores, semantic).item(), expected)
    torch.testing.assert_close(asp_loss(scores, semantic, semantic_rank_fn=exact_rank).item(), expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(300, 31), (3, 600)])
@pytest.mark.parametrize("wide", ["neither", "meaning", "both"])
def test_asp_is_that_of_its_ranks_by_graph(wide, shape, masked):
    """Whether its pairs are looked at once or not: lists that span many tau, long ones, chunks, ties, other dtypes."""
    generator = torch.Generator().manual_seed(0)
    scores, semantic = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    scores, semantic = scores * (100 if wide == "both" else 1), semantic * (1 if wide == "neither" else 100)
    scores[1], semantic[2] = semantic[1], semantic[2].round(decimals=1)
    where = torch.rand(shape, generator=generator) < 0.8
    where[0] = False
    options = {"where": where} if masked else {}
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        x = scores.to(dtype).requires_grad_()
        value = asp_loss(x, semantic, reduction="none", **options)
        by_graph = asp_loss(x, semantic, rank_fn=partial(sigmoid_rank, tau=0.01), reduction="none", **options)
        torch.testing.assert_close(value, by_graph, rtol=0, atol=tolerance, equal_nan=True)
        (grad,), (want,) = (torch.autograd.grad(v.nan_to_num(2.0).square().sum(), x) for v in (value, by_graph))
        torch.testing.assert_close(grad, want, rtol=0, atol=tolerance * float(want.abs().max()))
        if masked:
            assert not grad[~where].any()


def test_asp_compares_a_list_with_itself_only():
    scores, semantic = lists("asp")
    other = scores.clone()
    other[1:] = other[1:].flip(0)
    _, grad = value_and_grad(asp_loss, scores, semantic)
    _, changed = value_and_grad(asp_loss, other, semantic)
    assert torch.equal(grad[0], changed[0])


def test_asp_of_equal_lists_is_at_its_minimum():
    scores, _ = lists("asp")
    value, grad = value_and_grad(asp_loss, scores, scores)
    torch.testing.assert_close(value.item(), 0.0, rtol=0, atol=1e-12)
    torch.testing.assert_close(grad, torch.zeros_like(grad), rtol=0, atol=1e-12)


def test_asp_gives_the_semantic_scores_no_gradient():
    scores, semantic = (x.requires_grad_() for x in lists("asp"))
    asp_loss(scores, semantic).backward()
    assert scores.grad is not None
    assert semantic.grad is None


def test_asp_takes_a_rank_function_without_a_mask():
    scores, semantic = lists("asp")
    where = torch.arange(11) < 8

    def last_place(s):
        return torch.full_like(s, s.shape[-1])

    value = asp_loss(scores, semantic, semantic_rank_fn=exact_rank, rank_fn=last_place, where=where)
    torch.testing.assert_close(value.item(), 1 - sum(r / 8 for r in range(1, 9)) / 8)


# ---------------------------------------------------------------------------------------------------------------------
# Bad input


GOOD = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: smooth_ap_loss(*GOOD, tau=0), ValueError, "`tau` must be a positive number, got 0."),
        (lambda: sup_ap_loss(*GOOD, rho=-1.0), ValueError, "`rho` must be a positive number, got -1.0."),
        (lambda: sup_ap_loss(*GOOD, delta=math.nan), ValueError, "`delta` must be a positive number, got nan."),
        (lambda: sup_ap_loss(*GOOD, tau="a"), ValueError, "`tau` must be a positive number, got 'a'."),
        (lambda: asp_loss(GOOD[0], GOOD[0], tau=-2), ValueError, "`tau` must be a positive number, got -2."),
        (
            lambda: quantized_ap_loss(*GOOD, num_bins=1),
            ValueError,
            "`num_bins` must be a whole number of at least 2, got 1.",
        ),
        (
            lambda: fast_ap_loss(*GOOD, num_bins=0),
            ValueError,
            "`num_bins` must be a whole number of at least 1, got 0.",
        ),
        (
            lambda: quantized_ap_loss(*GOOD, low=1, high=0.5),
            ValueError,
            "`low` must be below `high`, got low=1 and high=0.5.",
        ),
        (lambda: recall_at_k_loss(*GOOD, k=0), ValueError, "`k` must be a whole number of at least 1, got 0."),
        (lambda: recall_at_k_loss(*GOOD, k=[2, 1.5]), ValueError, "`k` must be a whole number of at least 1, got 1.5."),
        (
            lambda: recall_at_k_loss(*GOOD, k=()),
            ValueError,
            "`k` must be a whole number of at least 1, or several, got ().",
        ),
        (
            lambda: recall_at_k_loss(*GOOD, tau_k=0),
            ValueError,
            "`tau_k` must be a positive number, got 0.",
        ),
        (
            lambda: asp_loss(GOOD[0], torch.zeros(2, 4)),
            ValueError,
            "`semantic` must have the shape of `scores` (2, 3), got (2, 4).",
        ),
        (
            lambda: asp_loss(GOOD[0], GOOD[0].to(torch.complex64)),
            TypeError,
            "`semantic` must be real floating point, got dtype complex64. Convert it first: semantic.real.",
        ),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_cuts_are_read_once():
    scores, relevant = torch.tensor([[0.9, 0.2, 0.4]]), torch.tensor([[False, True, False]])
    expected = recall_at_k_loss(scores, relevant, k=[1, 2])
    loss = sodeep.RecallAtKLoss(iter([np.int64(1), 2]))
    for _ in range(2):
        torch.testing.assert_close(loss(scores, relevant), expected, rtol=0, atol=0)
    assert repr(loss) == "RecallAtKLoss(k=(1, 2), tau_rank=0.01, tau_k=1.0)"
    assert sodeep.RecallAtKLoss(np.int64(3)).k == 3


def test_a_module_takes_the_names_of_its_function():
    scores, relevant = torch.tensor([[0.9, 0.2, 0.4]]), torch.tensor([[False, True, False]])
    where = torch.tensor([[True, True, False]])
    loss = sodeep.SmoothAPLoss()
    expected = sodeep.smooth_ap_loss(scores, relevant, tau=0.01, where=where)
    for value in (
        loss(scores, relevant, where),
        loss(scores, relevant, where=where),
        loss(scores=scores, relevant=relevant, where=where),
    ):
        torch.testing.assert_close(value, expected, rtol=0, atol=0)
