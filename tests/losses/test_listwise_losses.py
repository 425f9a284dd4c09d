"""Losses on lists and on pairs, against loops and rax. What all losses promise is in test_contract.py."""

import itertools
import math
import re

import numpy as np
import pytest
import torch

from sodeep.losses import UndefinedListWarning
from sodeep.losses.listwise import ListMLELoss, SoftmaxLoss, list_mle_loss, list_net_loss, softmax_loss
from sodeep.losses.pair_weights import pair_weights
from sodeep.losses.ranknet import LambdaRankLoss, RankNetLoss, lambda_rank_loss, rank_net_loss
from sodeep.metrics import ndcg
from sodeep.ranks import exact_rank

F64 = torch.float64


def exactly(message):
    return f"^{re.escape(message)}$"


def draw(lists=5, n=8, grades=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(lists, n, dtype=F64, generator=generator)
    relevance = torch.randint(grades, (lists, n), generator=generator)
    relevance[:, :2] = torch.tensor([1, 2])
    weight = torch.rand(lists, n, dtype=F64, generator=generator) + 0.5
    where = torch.rand(lists, n, generator=generator) < 0.7
    where[:, :3] = True
    return scores, relevance, weight, where


# ---- slow and plain, one list at a time ------------------------------------------------------------------------------


def log_sum_exp(values):
    return math.log(sum(math.exp(v) for v in values))


def softplus(x):
    return math.log1p(math.exp(x))


def loop_list_net(s, y, w, temperature=1.0, target_temperature=1.0):
    below, above = log_sum_exp(v / temperature for v in s), log_sum_exp(v / target_temperature for v in y)
    terms = [
        i * math.exp(t / target_temperature - above) * (below - v / temperature)
        for v, t, i in zip(s, y, w, strict=True)
    ]
    return sum(terms)


def loop_softmax(s, y, w, gain="exponential", temperature=1.0):
    gains = [i * (2**t - 1 if gain == "exponential" else t) for t, i in zip(y, w, strict=True)]
    below = log_sum_exp(v / temperature for v in s)
    return sum(g * (below - v / temperature) for g, v in zip(gains, s, strict=True)) / sum(gains)


def loop_list_mle(s, y, w, temperature=1.0, position_aware=False):
    n = len(s)
    ordered = sorted(y, reverse=True)
    total, norm = 0.0, 0.0
    for i in range(n):
        ranks = [r for r, t in enumerate(ordered, 1) if t == y[i]]
        share = np.mean([2 ** (n - r) - 1 for r in ranks]) if position_aware else 1.0
        below = log_sum_exp(v / temperature for v, t in zip(s, y, strict=True) if t <= y[i])
        total, norm = total + w[i] * share * (below - s[i] / temperature), norm + share
    return total / norm


def loop_rank_net(s, y, w, temperature=1.0):
    pairs = [(i, j) for i in range(len(s)) for j in range(len(s)) if y[i] > y[j]]
    return sum(w[i] * softplus((s[j] - s[i]) / temperature) for i, j in pairs) / sum(w[i] for i, _ in pairs)


def discount(rank):
    return 1 / math.log2(1 + rank)


def loop_lambda_rank(s, y, w, form="lambdarank", k=None, gain="exponential", temperature=1.0):
    n, k = len(s), k or len(s)
    gains = [2**t - 1 if gain == "exponential" else t for t in y]
    ideal = sum(g * discount(r) for r, g in enumerate(sorted(gains, reverse=True)[:k], 1))
    ranks = [1 + sum(other > v for other in s) for v in s]  # without ties

    def exchange(i, j):
        worth = [discount(r) if r <= k else 0 for r in ranks]
        return abs(worth[i] - worth[j])

    def bound(i, j):
        apart = abs(ranks[i] - ranks[j])
        return (discount(apart) - discount(apart + 1)) * (min(ranks[i], ranks[j]) <= k)

    importance = {
        "lambdarank": exchange,
        "ndcg2": bound,
        "ndcg2++": lambda i, j: exchange(i, j) + 10 * bound(i, j),
    }[form]
    return sum(
        w[i] * importance(i, j) * (gains[i] - gains[j]) / ideal * softplus((s[j] - s[i]) / temperature) / math.log(2)
        for i in range(n)
        for j in range(n)
        if y[i] > y[j]
    )


CASES = {
    "list-net": (list_net_loss, loop_list_net, {}),
    "list-net-t": (list_net_loss, loop_list_net, {"temperature": 0.3, "target_temperature": 2.0}),
    "softmax": (softmax_loss, loop_softmax, {}),
    "softmax-linear": (softmax_loss, loop_softmax, {"gain": "linear", "temperature": 0.3}),
    "list-mle": (list_mle_loss, loop_list_mle, {}),
    "list-mle-position": (list_mle_loss, loop_list_mle, {"position_aware": True, "temperature": 0.3}),
    "rank-net": (rank_net_loss, loop_rank_net, {}),
    "rank-net-t": (rank_net_loss, loop_rank_net, {"temperature": 0.3}),
    **{
        f"{form}-{k}": (lambda_rank_loss, loop_lambda_rank, {"form": form, "k": k, "temperature": 0.7})
        for form in ("lambdarank", "ndcg2", "ndcg2++")
        for k in (None, 1, 3)
    },
    "lambdarank-linear": (lambda_rank_loss, loop_lambda_rank, {"gain": "linear"}),
}


@pytest.mark.parametrize("n", [8, 70])
@pytest.mark.parametrize("name", CASES)
def test_against_a_loop(name, n):
    loss, loop, options = CASES[name]
    scores, relevance, weight, where = draw(5, n)
    for mask in (None, where):
        for given in (None, weight):
            rows = zip(
                scores,
                relevance,
                torch.ones_like(weight) if given is None else given,
                torch.ones_like(where) if mask is None else mask,
                strict=True,
            )
            expected = [loop(s[m].tolist(), r[m].tolist(), w[m].tolist(), **options) for s, r, w, m in rows]
            result = loss(scores, relevance, where=mask, weight=given, reduction="none", **options)
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-10)


def test_list_mle_is_the_likelihood_of_the_order():
    """Over all orders of four items, the likelihoods add up to 1."""
    scores = torch.randn(4, dtype=F64, generator=torch.Generator().manual_seed(1))
    orders = torch.tensor(list(itertools.permutations(range(4))))
    values = list_mle_loss(scores.expand(24, 4), orders, reduction="none")
    torch.testing.assert_close((-4 * values).exp().sum(), torch.tensor(1.0, dtype=F64))


def test_list_mle_of_a_wide_list_is_that_of_a_narrow_one():
    """Scores that span more than the exponentials of float64 do."""
    scores, relevance, _, where = draw()
    results = []
    for far in (-500.0, -5000.0):  # the last item, which is alone below all others
        apart = torch.cat([scores, torch.full((5, 1), far, dtype=F64)], 1).requires_grad_()
        grades = torch.cat([relevance, torch.full((5, 1), -1)], 1)
        mask = torch.cat([where, torch.ones(5, 1, dtype=torch.bool)], 1)
        value = list_mle_loss(apart, grades, where=mask)
        results.append((value.detach(), torch.autograd.grad(value, apart)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", ["lambdarank", "ndcg2", "ndcg2++"])
def test_lambda_rank_at_ties_is_the_mean_over_their_orders(form):
    """LambdaRank's weights are; those of the bound are taken at the mean distance of tied items."""
    scores = torch.tensor([0.5, 0.2, 0.5, 0.5, 0.9], dtype=F64)
    relevance = torch.tensor([3, 1, 0, 2, 1])
    tied = lambda_rank_loss(scores, relevance, form=form)
    assert tied > 0
    if form == "lambdarank":
        breaks = torch.tensor(list(itertools.permutations([0.0, 1.0, 2.0])), dtype=F64) * 1e-9
        orders = scores.repeat(6, 1)
        orders[:, [0, 2, 3]] += breaks
        torch.testing.assert_close(tied, lambda_rank_loss(orders, relevance.expand(6, 5)), rtol=0, atol=1e-7)
    same = torch.zeros(5, dtype=F64, requires_grad=True)
    lambda_rank_loss(same, relevance, form=form).backward()
    assert same.grad[0] < 0 < same.grad[2]  # a model that starts from equal scores learns


def test_lambda_rank_bounds_the_cost():
    """Wang et al. 2018: sum of g - DCG is the sum over all pairs of delta * g of the lower-ranked one."""
    scores, relevance, _, _ = draw(50, 6)
    cost, rest = [], []
    for s, r in zip(scores, relevance, strict=True):
        gains, ranks = (2.0**r - 1).tolist(), exact_rank(s).tolist()
        ideal = sum(g * discount(k) for k, g in enumerate(sorted(gains, reverse=True), 1))
        pairs = itertools.combinations(range(6), 2)
        delta = {(i, j): discount(abs(ranks[i] - ranks[j])) - discount(abs(ranks[i] - ranks[j]) + 1) for i, j in pairs}
        cost.append(sum(gains) / ideal - ndcg(s, r).item())
        np.testing.assert_allclose(
            cost[-1], sum(d * gains[i if s[i] < s[j] else j] for (i, j), d in delta.items()) / ideal
        )
        rest.append(sum(d * min(gains[i], gains[j]) for (i, j), d in delta.items()) / ideal)
    bound = lambda_rank_loss(scores, relevance, form="ndcg2", reduction="none")
    assert (bound + torch.tensor(rest) >= torch.tensor(cost)).all()
    far = lambda_rank_loss(scores, relevance, form="ndcg2", reduction="none", temperature=1e-4)
    wrong = torch.tensor(cost) - torch.tensor(rest)
    assert ((far > 1) == (wrong > 1e-9)).all()


@pytest.mark.filterwarnings("ignore")
def test_rax_has_the_same_losses():
    rax = pytest.importorskip("rax")
    scores, relevance, _, _ = draw()
    order = torch.rand(5, 8, generator=torch.Generator().manual_seed(2)).argsort(-1)  # ListMLE breaks ties at random
    for s, r, o in zip(scores.float(), relevance.float(), order.float(), strict=True):
        x, y = s.numpy(), r.numpy()
        theirs = rax.softmax_loss(x, y / y.sum())
        np.testing.assert_allclose(softmax_loss(s, r, gain="linear").numpy(), theirs, rtol=1e-5)
        theirs = rax.listmle_loss(x, o.numpy())
        np.testing.assert_allclose(8 * list_mle_loss(s, o).numpy(), theirs, rtol=1e-5)
        theirs = rax.pairwise_logistic_loss(x, y, reduce_fn=np.sum)
        pairs = int((r.unsqueeze(0) > r.unsqueeze(1)).sum())
        np.testing.assert_allclose(pairs * rank_net_loss(s, r).numpy(), theirs, rtol=1e-5)


# ---- degenerate lists ------------------------------------------------------------------------------------------------

LOSSES = [list_net_loss, list_mle_loss, rank_net_loss, lambda_rank_loss, softmax_loss]


@pytest.mark.parametrize("loss", LOSSES)
def test_one_item_and_one_grade(loss):
    for scores in (torch.tensor([[0.3]]), torch.tensor([[0.3, 0.1, 0.5]])):
        leaf = scores.requires_grad_()
        needs = "an item of positive relevance" if loss is softmax_loss else "two items of different relevance"
        message = f"0 of 1 lists have {needs}: the loss is a constant 0 for this batch."
        with pytest.warns(UndefinedListWarning, match=exactly(message)):
            loss(leaf, torch.zeros_like(scores)).backward()
        torch.testing.assert_close(leaf.grad, torch.zeros_like(scores))


@pytest.mark.parametrize("loss", LOSSES)
def test_grades_of_any_size(loss):
    scores = torch.tensor([0.1, 0.9, 0.5])
    for relevance in (torch.tensor([60, 3, 0]), torch.tensor([2**60, 3, 0]), torch.tensor([1e300, 3, 0], dtype=F64)):
        leaf = scores.clone().requires_grad_()
        value = loss(leaf, relevance)
        value.backward()
        assert value.isfinite()
        assert leaf.grad.isfinite().all()
        assert leaf.grad[0] < 0


@pytest.mark.parametrize("loss", LOSSES)
def test_negative_grades(loss):
    scores, grades = torch.zeros(2, 3), torch.tensor([[0, 1, -2], [0, 1, 2]])
    if loss in (softmax_loss, lambda_rank_loss):
        message = (
            "`relevance` must be at least 0, got a smallest value of -2. "
            "Mask such items out with where=, or shift all values up."
        )
        with pytest.raises(ValueError, match=exactly(message)):
            loss(scores, grades)
    else:
        torch.testing.assert_close(loss(scores, grades), loss(scores, grades + 2))


@pytest.mark.parametrize("loss", [ListMLELoss(), SoftmaxLoss(), RankNetLoss(), LambdaRankLoss()])
def test_pair_weights_pull_relevant_items_up(loss):
    scores, relevance, _, _ = draw()
    weights = pair_weights(loss, scores, relevance > 1)
    torch.testing.assert_close(weights.sum(-1), torch.zeros(5, dtype=F64))
    assert (weights.masked_fill(relevance < 2, 0).sum(-1) < 0).all()


def test_rank_net_weights_are_sigmoids():
    scores, relevance, _, _ = draw()
    relevant = relevance > 1
    wrong = torch.sigmoid(scores.unsqueeze(-2) - scores.unsqueeze(-1))  # of item j against item i
    pairs = relevant.unsqueeze(-1) & ~relevant.unsqueeze(-2)
    expected = (wrong * pairs).sum(-2) - (wrong * pairs).sum(-1)
    expected = expected / pairs.sum((-2, -1)).unsqueeze(-1) / 5
    torch.testing.assert_close(pair_weights(RankNetLoss(), scores, relevant), expected)
