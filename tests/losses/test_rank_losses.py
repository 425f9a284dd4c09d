"""Losses on ranks: against plain loops with any rank function, gradients, masks, undefined lists.

What all losses promise is in test_contract.py.
"""

import copy
import pickle
import re
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from sodeep import losses
from sodeep.losses import CrossModalLoss, EmbeddingLoss, nt_xent_loss
from sodeep.losses._base import UndefinedListWarning
from sodeep.losses.rank import MAPLoss, RecallLoss, SpearmanLoss, map_loss, recall_loss, spearman_loss
from sodeep.metrics import average_precision, spearman_corr
from sodeep.ranks import blackbox_rank, exact_rank, laplace_rank, sigmoid_rank, straight_through

F64 = torch.float64


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def exactly(message):
    return f"^{re.escape(message)}$"


def laplace(scores, where=None):
    return laplace_rank(scores, tau=0.5, where=where)


def sigmoid(scores, where=None):
    return sigmoid_rank(scores, tau=0.3, where=where)


def plain(scores):
    """A rank function of a user's, which knows no masks."""
    gaps = scores.unsqueeze(-2) - scores.unsqueeze(-1)
    return 0.5 + (gaps / 0.3).sigmoid().sum(-1)


RANK_FNS = [exact_rank, laplace, sigmoid, plain, straight_through(laplace), blackbox_rank]

LOSSES = {
    "spearman": (spearman_loss, {}),
    "spearman-l1": (spearman_loss, {"value_weight": 0.5}),
    "spearman-mse": (spearman_loss, {"value_weight": 0.5, "value_loss": "mse"}),
    "map-ap": (map_loss, {}),
    "map-rank-sum": (map_loss, {"form": "rank_sum"}),
    "recall": (recall_loss, {}),
    "recall-3": (recall_loss, {"margin": 0.4, "hardest": 3}),
}


def draw(name, lists=5, n=8, seed=0):
    generator = seeded(seed)
    scores = torch.randn(lists, n, dtype=F64, generator=generator)
    if name.startswith("spearman"):
        return scores, torch.randint(5, (lists, n), generator=generator).to(F64)
    relevant = torch.rand(lists, n, generator=generator) < 0.4
    relevant[:, 0], relevant[:, 1] = True, False
    return scores, relevant


# ---- slow and plain, one list at a time ------------------------------------------------------------------------------


def loop_spearman(scores, target, rank_fn, value_weight=0.0, value_loss="l1"):
    n, ranks, wanted = len(scores), rank_fn(scores).tolist(), stats.rankdata([-t for t in target.tolist()])
    rank_term = sum(((r - w) / n) ** 2 for r, w in zip(ranks, wanted, strict=True)) / n
    gaps = [abs(s - t) for s, t in zip(scores.tolist(), target.tolist(), strict=True)]
    return rank_term + value_weight * sum(g if value_loss == "l1" else g**2 for g in gaps) / n


def loop_map(scores, relevant, rank_fn, form="ap"):
    n, ranks = len(scores), rank_fn(scores).tolist()
    positives = [i for i in range(n) if relevant[i]]
    if form == "rank_sum":
        return sum(ranks[i] / n for i in positives) / len(positives)
    among_positives = dict(zip(positives, rank_fn(scores[relevant]).tolist(), strict=True))
    return 1 - sum(among_positives[i] / ranks[i] for i in positives) / len(positives)


def loop_recall(scores, relevant, rank_fn, margin=0.2, hardest=1):
    n, ranks = len(scores), rank_fn(scores).tolist()
    positives = [i for i in range(n) if relevant[i]]
    hardest_ranks = sorted(ranks[i] for i in range(n) if not relevant[i])[:hardest]
    total = sum(max(0, margin + ranks[p] / n - c / n) for p in positives for c in hardest_ranks)
    return total / len(positives) / len(hardest_ranks)


LOOPS = {spearman_loss: loop_spearman, map_loss: loop_map, recall_loss: loop_recall}


@pytest.mark.parametrize("rank_fn", RANK_FNS, ids=lambda f: getattr(f, "__name__", str(f)))
@pytest.mark.parametrize("name", LOSSES)
def test_against_a_loop(name, rank_fn):
    loss, options = LOSSES[name]
    scores, target = draw(name)
    expected = np.mean([LOOPS[loss](s, t, rank_fn, **options) for s, t in zip(scores, target, strict=True)])
    result = loss(scores, target, rank_fn=rank_fn, **options)
    assert result.shape == ()
    assert result.dtype == F64
    np.testing.assert_allclose(result.item(), expected, rtol=1e-12)
    assert result == loss(scores.reshape(5, 1, 8), target.reshape(5, 1, 8), rank_fn=rank_fn, **options)


@pytest.mark.parametrize("name", LOSSES)
def test_masked_is_deleted(name):
    loss, options = LOSSES[name]
    scores, target = draw(name)
    where = torch.rand(5, 8, generator=seeded(3)) < 0.7
    where[:, :3] = True
    target[:, 1] = 0 if target.dtype == torch.bool else 9
    for rank_fn in (laplace, plain):
        rows = zip(scores, target, where, strict=True)
        expected = np.mean([LOOPS[loss](s[w], t[w], rank_fn, **options) for s, t, w in rows])
        gradients = []
        for fill in (0.0, -1.0, 1e9, torch.nan, torch.inf):
            x = scores.masked_fill(~where, fill).requires_grad_()
            y = target if target.dtype == torch.bool else target.masked_fill(~where, fill)
            value = loss(x, y, rank_fn=rank_fn, where=where, **options)
            value.backward()
            np.testing.assert_allclose(value.item(), expected, rtol=1e-12)
            assert (x.grad[~where] == 0).all()
            gradients.append(x.grad)
        assert all(torch.equal(g, gradients[0]) for g in gradients)
        assert gradients[0].isfinite().all()


@pytest.mark.parametrize("rank_fn", [laplace, sigmoid])
@pytest.mark.parametrize("name", LOSSES)
def test_gradient(name, rank_fn):
    loss, options = LOSSES[name]
    scores, target = draw(name, lists=3, n=6)
    where = torch.ones(3, 6, dtype=torch.bool)
    where[0, 4:] = False
    for mask in (None, where):
        assert torch.autograd.gradcheck(
            lambda s, mask=mask: loss(s, target, rank_fn=rank_fn, where=mask, **options), scores.requires_grad_()
        )


# ---- what the values mean --------------------------------------------------------------------------------------------


def test_spearman_loss_is_spearmans_correlation():
    scores, target = torch.randn(2, 6, 11, dtype=F64, generator=seeded())
    loss = spearman_loss(scores, target, rank_fn=exact_rank)
    n = 11
    torch.testing.assert_close(loss, ((1 - spearman_corr(scores, target)) * (n**2 - 1) / (6 * n**2)).mean())
    assert spearman_loss(target, target, rank_fn=exact_rank) == 0


def test_map_loss_is_average_precision():
    scores, relevant = draw("map")
    expected = 1 - average_precision(scores, relevant).mean()
    sharp = lambda s, where=None: sigmoid_rank(s, tau=1e-4, where=where)  # noqa: E731
    for rank_fn in (exact_rank, sharp):
        torch.testing.assert_close(map_loss(scores, relevant, rank_fn=rank_fn), expected)


def test_rank_sum_is_the_papers():
    # <f(y), y*> with f(y) = rank / n, summed over the lists
    scores, relevant = draw("map")
    paper = (exact_rank(scores) / 8 * relevant).sum(-1)
    lists = zip(scores, relevant, strict=True)
    ours = torch.stack([map_loss(s, r, rank_fn=exact_rank, form="rank_sum") for s, r in lists])
    torch.testing.assert_close(ours * relevant.sum(-1), paper)


def test_recall_loss_uses_its_margin():
    scores = torch.tensor([0.9, 0.5, 0.1, -0.3], dtype=F64)
    relevant = torch.tensor([1, 0, 0, 0])
    for margin, expected in [(0, 0), (1 / 4, 0), (0.3, 0.05), (1, 0.75)]:  # the nearest other item is a quarter behind
        value = recall_loss(scores, relevant, rank_fn=exact_rank, margin=margin)
        torch.testing.assert_close(value, torch.tensor(expected, dtype=F64))
    every = recall_loss(scores, relevant, rank_fn=exact_rank, margin=1, hardest=100)  # there are three others
    torch.testing.assert_close(every, torch.tensor((0.75 + 0.5 + 0.25) / 3, dtype=F64))


def test_lists_are_classes_in_multi_label_use():
    generator = seeded()
    scores = torch.randn(20, 4, dtype=F64, generator=generator)  # images x classes
    labels = torch.rand(20, 4, generator=generator) < 0.3
    value = map_loss(scores.T, labels.T, rank_fn=exact_rank)
    per_class = [loop_map(scores[:, c], labels[:, c], exact_rank) for c in range(4)]
    np.testing.assert_allclose(value.item(), np.mean(per_class), rtol=1e-12)


# ---- sorters as rank functions ---------------------------------------------------------------------------------------


class FixedSorter(nn.Module):
    """A stand-in for a learned sorter of one length: `plain` times a trainable 1, plus dropout."""

    def __init__(self, seq_len=8):
        super().__init__()
        self.seq_len = seq_len
        self.weight = nn.Parameter(torch.ones((), dtype=F64))
        self.lengths_seen = []

    def forward(self, scores):
        self.lengths_seen.append(scores.shape[-1])
        if scores.shape[-1] != self.seq_len:
            raise ValueError("another length")
        return self.weight * plain(scores)


@pytest.mark.parametrize("module", [SpearmanLoss, MAPLoss, RecallLoss])
def test_a_sorter_is_a_frozen_submodule(module):
    sorter = FixedSorter()
    model = nn.Linear(4, 1, dtype=F64)
    criterion = module(sorter)
    assert dict(criterion.named_modules())["rank_fn"] is sorter
    for state in (True, False):
        criterion.train(state)
        assert not [p for p in criterion.parameters() if p.requires_grad]
    features = torch.randn(8, 4, dtype=F64, generator=seeded())
    target = torch.tensor([1, 0, 0, 1, 0, 0, 0, 1])
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        criterion(model(features).squeeze(-1), target).backward()
        assert model.weight.grad.isfinite().all()
        assert model.weight.grad.abs().sum() > 0
        optimizer.step()
    assert sorter.weight == 1


@pytest.mark.parametrize("wrap", [lambda f: f, straight_through], ids=["plain", "straight-through"])
def test_a_parameter_in_a_partial_is_one_of_the_loss(wrap):
    tau = nn.Parameter(torch.tensor(0.5, dtype=F64))
    frozen = nn.Parameter(torch.tensor(0.5, dtype=F64), requires_grad=False)
    criterion = SpearmanLoss(wrap(partial(laplace_rank, tau=tau)))
    assert [(name, p is tau) for name, p in criterion.named_parameters()] == [("rank_fn_tau", True)]
    assert [p is frozen for p in SpearmanLoss(wrap(partial(laplace_rank, tau=frozen))).parameters()] == [True]
    assert not frozen.requires_grad
    scores, target = torch.randn(2, 9, dtype=F64, generator=seeded())
    optimizer = torch.optim.SGD(criterion.parameters(), lr=0.1)
    before = criterion(scores, target)
    before.backward()
    optimizer.step()
    assert tau != 0.5
    copies = copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))
    for module in (criterion, *copies):  # saved, loaded and converted, with the partial on the same tensor
        state = {name: torch.full_like(value, 0.5) for name, value in module.state_dict().items()}
        module.load_state_dict(state)
        assert module(scores, target) == before
        torch.testing.assert_close(module.float()(scores, target), before)
        assert module.rank_fn_tau.dtype == torch.float32
        module.double()
        assert module.rank_fn_tau.dtype == F64
        (gradient,) = torch.autograd.grad(module(scores, target), module.rank_fn_tau)
        assert gradient != 0
    assert copies[0].rank_fn_tau is not tau


def test_a_parameter_in_a_partial_of_a_loss_is_one_of_the_loss_on_embeddings():
    temperature = nn.Parameter(torch.tensor(0.5))
    for module in (EmbeddingLoss, CrossModalLoss):
        criterion = module(partial(nt_xent_loss, temperature=temperature))
        assert [(name, p is temperature) for name, p in criterion.named_parameters()] == [("loss_temperature", True)]
        inner = module(SpearmanLoss(partial(laplace_rank, tau=temperature)))
        assert [name for name, _ in inner.named_parameters()] == ["loss.rank_fn_tau"]
    EmbeddingLoss(partial(nt_xent_loss, temperature=temperature))(torch.randn(4, 3), [0, 0, 1, 1]).backward()
    assert temperature.grad is not None


def test_freeze_of_a_sorter_is_called():
    class Freezable(FixedSorter):
        frozen = False

        def freeze(self):
            self.frozen = True

    assert SpearmanLoss(Freezable()).rank_fn.frozen


@pytest.mark.parametrize("wrap", [lambda f: f, straight_through], ids=["plain", "straight-through"])
def test_fixed_length_sorter_ranks_whole_lists_only(wrap):
    sorter = FixedSorter()
    scores, relevant = draw("map")
    scores.requires_grad_()
    value = map_loss(scores, relevant, rank_fn=wrap(sorter))
    value.backward()
    assert set(sorter.lengths_seen) == {8}
    assert scores.grad.abs().sum() > 0
    lists = zip(scores.detach(), relevant, strict=True)
    among_positives = torch.stack([exact_rank(torch.where(r, s, -9.0)) for s, r in lists])
    expected = 1 - ((among_positives / wrap(plain)(scores)) * relevant).sum(-1) / relevant.sum(-1)
    torch.testing.assert_close(value, expected.mean())


# ---- degenerate lists ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank_fn", [laplace_rank, sigmoid_rank, blackbox_rank, laplace, sigmoid])
@pytest.mark.parametrize("name", LOSSES)
def test_constant_predictions(name, rank_fn):
    loss, options = LOSSES[name]
    _, target = draw(name, lists=1, n=6)
    scores = torch.full((1, 6), 0.4, dtype=F64, requires_grad=True)
    value = loss(scores, target, rank_fn=rank_fn, **options)
    value.backward()
    assert value.isfinite()
    assert scores.grad.isfinite().all()


NEEDS = {
    "spearman": "two items with different targets",
    "map": "a relevant item",
    "recall": "a relevant item and another",
}


@pytest.mark.parametrize("rank_fn", [exact_rank, laplace, plain])
@pytest.mark.parametrize("name", LOSSES)
def test_no_defined_list(name, rank_fn):
    loss, options = LOSSES[name]
    scores = torch.randn(3, 4, dtype=F64, generator=seeded()).requires_grad_()
    target = torch.zeros(3, 4)
    message = f"0 of 3 lists have {NEEDS[name.split('-')[0]]}: the loss is a constant 0 for this batch."
    for where in (None, torch.zeros(3, 4, dtype=torch.bool)):
        with pytest.warns(UndefinedListWarning, match=exactly(message)):
            value = loss(scores, target, rank_fn=rank_fn, where=where, **options)
        (gradient,) = torch.autograd.grad(value, scores)
        if where is None and "value_weight" in options:  # the value term needs no order
            gap = scores.detach()
            torch.testing.assert_close(value.detach(), 0.5 * (gap.abs() if name == "spearman-l1" else gap**2).mean())
        else:
            assert value == 0
            assert (gradient == 0).all()


def test_lists_of_one_class_only():
    scores = torch.randn(2, 4, dtype=F64, generator=seeded()).requires_grad_()
    relevant = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 0]])
    torch.testing.assert_close(map_loss(scores[0], relevant[0], rank_fn=laplace), torch.zeros((), dtype=F64))
    value, statistics = recall_loss(scores, relevant, rank_fn=laplace, return_stats=True)
    assert statistics.defined == 1
    torch.testing.assert_close(value, recall_loss(scores[1], relevant[1], rank_fn=laplace))


def test_spearman_values_of_lists_without_an_order_are_their_value_terms():
    scores = torch.tensor([[0.1, 0.5, 0.3], [0.2, 0.9, 0.4], [0.7, 0.8, 0.6]], dtype=torch.float64)
    target = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.5, 0.5], [1.0, 1.0, 2.0]], dtype=torch.float64)
    where = torch.tensor([[True, True, True], [True, True, True], [False, False, False]])
    loss = partial(spearman_loss, rank_fn=laplace, where=where, value_loss="mse")
    ranks = loss(scores, target, reduction="none")
    values, stats = loss(scores, target, value_weight=0.5, reduction="none", return_stats=True)
    mean_squares = (scores - target).square().mean(-1)
    torch.testing.assert_close(values[:2], torch.stack([ranks[0], 0 * ranks[0]]) + 0.5 * mean_squares[:2])
    assert ranks.isnan().tolist() == [False, True, True]
    assert values.isnan().tolist() == [False, False, True]
    assert torch.equal(torch.stack([*stats[2:]]), torch.stack([*loss(scores, target, return_stats=True)[1][2:]]))


def test_spearman_stats():
    scores, target = torch.randn(2, 3, 5, dtype=F64, generator=seeded())
    target[2] = 1.0
    loss, statistics = spearman_loss(scores, target, rank_fn=laplace, value_weight=0.25, return_stats=True)
    assert (statistics.total, statistics.defined) == (3, 2)
    torch.testing.assert_close(statistics.rank, spearman_loss(scores[:2], target[:2], rank_fn=laplace))
    torch.testing.assert_close(statistics.value, (scores - target).abs().mean())
    torch.testing.assert_close(loss, statistics.rank + 0.25 * statistics.value)


def test_whole_number_targets_beyond_float32_stay_different():
    target = torch.tensor([10**12 + 1, 10**12 + 2, 10**12])
    assert spearman_loss(torch.tensor([1.0, 2.0, 0.0]), target, rank_fn=exact_rank) == 0


def test_bad_options():
    scores, target = torch.zeros(4), torch.tensor([0.0, 1, 0, 1])
    for message, call in [
        (
            "`value_weight` must be a finite number of at least 0, got -1.",
            lambda: spearman_loss(scores, target, rank_fn=exact_rank, value_weight=-1),
        ),
        (
            "`value_loss` must be one of l1, mse, got 'l2'.",
            lambda: spearman_loss(scores, target, rank_fn=exact_rank, value_loss="l2"),
        ),
        (
            "`form` must be one of ap, rank_sum, got 'map'.",
            lambda: map_loss(scores, target, rank_fn=exact_rank, form="map"),
        ),
        (
            "`margin` must be a finite number of at least 0, got nan.",
            lambda: recall_loss(scores, target, rank_fn=exact_rank, margin=float("nan")),
        ),
        (
            "`hardest` must be a whole number of at least 1, got 0.",
            lambda: recall_loss(scores, target, rank_fn=exact_rank, hardest=0),
        ),
        (
            "`rank_fn` must return a tensor of the shape of its scores (1, 4), got a tensor of shape (1,) and dtype "
            "float32. The last axis is the list; leading axes are batch.",
            lambda: spearman_loss(scores, target, rank_fn=lambda s: s.sum(-1)),
        ),
        (
            "`target` must be finite, got 1 NaN or infinite of 4 values, the first (nan) at index (0,). Mask such "
            "items out with where=, or find the step that made them (torch.autograd.set_detect_anomaly).",
            lambda: spearman_loss(scores, target.index_fill(0, torch.tensor(0), torch.nan), rank_fn=exact_rank),
        ),
    ]:
        with pytest.raises(ValueError, match=exactly(message)):
            call()


WHOLE = torch.tensor([2**53 + 1, 2**53, -(2**63), 2**63 - 1, 2**53 + 2, 2**53, 2**63 - 2])
"""Beyond what float64 distinguishes, with one pair of equals."""
ORDER = torch.tensor([3.0, 2, 1, 6, 4, 2, 5])


@pytest.mark.parametrize("masked", [False, True])
def test_whole_targets_beyond_float64_have_their_order(generator, masked):
    scores = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    where = torch.rand(4, 7, generator=generator) < 0.7 if masked else None
    loss = partial(spearman_loss, scores, rank_fn=laplace_rank, where=where)
    torch.testing.assert_close(loss(WHOLE.expand(4, 7)), loss(ORDER.expand(4, 7)), rtol=0, atol=0)
    unsigned = (WHOLE ^ -(2**63)).view(torch.uint64)
    torch.testing.assert_close(loss(unsigned.expand(4, 7)), loss(ORDER.expand(4, 7)), rtol=0, atol=0)
    pair, order = torch.tensor([[2**53, 2**53 + 1]]), torch.tensor([[0.0, 1.0]])
    expected = spearman_loss(scores[:1, :2], order, rank_fn=laplace_rank)  # defined: they differ
    torch.testing.assert_close(spearman_loss(scores[:1, :2], pair, rank_fn=laplace_rank), expected, rtol=0, atol=0)
    value = spearman_loss(scores[:1, :2], pair, rank_fn=laplace_rank, value_weight=1.0)
    assert value > 2.0**52  # the value term sees the numbers themselves


@pytest.mark.parametrize("rank_fn", ["laplace", None, torch.nn.Linear])
def test_rank_fn_that_cannot_be_called(rank_fn):
    scores, relevant = torch.tensor([0.1, 0.5]), torch.tensor([True, False])
    for build in (
        partial(SpearmanLoss, rank_fn),
        partial(MAPLoss, rank_fn),
        partial(RecallLoss, rank_fn),
        partial(spearman_loss, scores, scores, rank_fn=rank_fn),
        partial(map_loss, scores, relevant, rank_fn=rank_fn),
        partial(recall_loss, scores, relevant, rank_fn=rank_fn),
    ):
        remedy = {
            "laplace": "Give the function itself: sodeep.laplace_rank.",
            None: "For example sodeep.laplace_rank, or a sorter: sodeep.load_sorter(name).",
            torch.nn.Linear: "Build it first: Linear().",
        }[rank_fn]
        expected = f"`rank_fn` must be a function of scores (..., n) to ranks (..., n), got {rank_fn!r}. {remedy}"
        with pytest.raises(TypeError, match=exactly(expected)):
            build()


def test_ranks_in_place_of_a_rank_function():
    ranks = torch.randn(2)
    expected = (
        "`rank_fn` must be a function of scores (..., n) to ranks (..., n), got a tensor of shape (2,) and dtype "
        "float32. Give the function, not its ranks: sodeep.laplace_rank."
    )
    for given in (straight_through, partial(spearman_loss, ranks, ranks)):
        with pytest.raises(TypeError, match=exactly(expected)):
            given(rank_fn=ranks)


def test_a_constructor_that_is_given_the_tensors_of_a_call():
    expected = (
        "`rank_fn` must be an option of SpearmanLoss, got a tensor of shape (2,) and dtype float32. Build the loss "
        "first, and call it with its tensors: loss_fn = SpearmanLoss(...), then loss_fn(...)."
    )
    with pytest.raises(TypeError, match=exactly(expected)):
        SpearmanLoss(torch.randn(2))


def test_a_column_of_predictions_is_said_to_be_one(generator):
    column = torch.randn(8, 1, generator=generator)
    message = (
        "^0 of 8 lists have two items with different targets \\(lists of one item: did you mean "
        "scores.squeeze\\(-1\\) and target.squeeze\\(-1\\)\\?\\): the loss is a constant 0 for this batch.$"
    )
    with pytest.warns(UserWarning, match=message) as record:
        spearman_loss(column, column, rank_fn=laplace_rank)
    assert record[0].filename == __file__
    message = (
        "0 of 8 lists have a relevant item (lists of one item: did you mean scores.squeeze(-1) and "
        "relevant.squeeze(-1)?): the loss is a constant 0 for this batch."
    )
    with pytest.warns(UserWarning, match=exactly(message)):
        map_loss(column, column > 9, rank_fn=laplace_rank)


def test_samples_by_two_outputs_are_said_to_be_lists_of_two(generator):
    scores, target = torch.randn(60, 2, generator=generator), torch.randn(60, 2, generator=generator)
    message = (
        "spearman_loss got many lists of two items, whose rank correlation is 1 or -1. The last axis is the list: with "
        "scores and target of shape (samples, 2 outputs), did you mean spearman_loss(scores.T, target.T)?"
    )
    with pytest.warns(UserWarning, match=exactly(message)) as record:
        spearman_loss(scores, target, rank_fn=laplace_rank)
    assert len(record) == 1
    assert record[0].filename == __file__
    spearman_loss(scores.T, target.T, rank_fn=laplace_rank)
    spearman_loss(scores[:7], target[:7], rank_fn=laplace_rank)  # a few pairs
    spearman_loss(scores, target, rank_fn=laplace_rank, where=torch.ones(60, 2, dtype=torch.bool))  # padded lists
    map_loss(scores, scores > 0, rank_fn=laplace_rank, where=scores[:, :1] > -9)  # one relevant item and another


def test_a_partials_parameter_is_what_the_module_has():
    """Also where the Module, not the optimiser, has put another tensor in its place."""
    scores, target = torch.randn(3, 9), torch.randn(3, 9)

    def build(tau):
        return SpearmanLoss(partial(laplace_rank, tau=nn.Parameter(torch.tensor(tau))))

    expected = build(2.0)(scores, target)
    loss = build(0.3)
    loss.load_state_dict({"rank_fn_tau": torch.tensor(2.0)}, assign=True)
    torch.testing.assert_close(loss(scores, target), expected)
    loss = build(0.3)
    found = torch.func.functional_call(loss, {"rank_fn_tau": torch.tensor(2.0)}, (scores, target))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(loss(scores, target), build(0.3)(scores, target))
    with torch.device("meta"):
        loss = build(0.3)
    loss.to_empty(device="cpu").load_state_dict({"rank_fn_tau": torch.tensor(2.0)})
    torch.testing.assert_close(loss(scores, target), expected)


def test_a_parameter_of_a_partial_in_a_partial_is_trained():
    tau = nn.Parameter(torch.tensor(0.5))
    loss = EmbeddingLoss(partial(map_loss, rank_fn=partial(laplace_rank, tau=tau)))
    assert [name for name, _ in loss.named_parameters()] == ["loss_rank_fn_tau"]
    loss(torch.randn(8, 4), torch.arange(4).repeat(2)).backward()
    assert tau.grad is not None


@pytest.mark.parametrize("build", [losses.NTXentLoss, SpearmanLoss, EmbeddingLoss, losses.FastAPLoss])
def test_tensors_and_weights_go_with_the_call(build):
    name = build.__name__
    with pytest.raises(TypeError, match=f"must be an option of {name}, got a tensor.*loss_fn = {name}"):
        build(torch.randn(4, 8), torch.zeros(4))
    with pytest.raises(TypeError, match=f"`weight` must not be given where {name} is built"):
        build(weight=torch.tensor(1.0))
