"""A refreshed sorter: it is fine-tuned on the lists it ranks, by `refresh` only, and the original does not change."""

import copy
import re

import pytest
import torch

from sodeep.checkpoint.format import load_sorter
from sodeep.losses.rank import MAPLoss, SpearmanLoss, map_loss
from sodeep.ranks import exact_rank
from sodeep.sorters import build_sorter
from sodeep.training.config import TrainConfig
from sodeep.training.refresh import RefreshedSorter


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def exactly(message):
    return f"^{re.escape(message)}$"


def small_set():
    torch.manual_seed(0)
    return build_sorter("set", frequencies=[4, 8], condition=8)


def small_mlp(n=30):
    torch.manual_seed(0)
    return build_sorter("mlp", seq_len=n, hidden=64)


def own_scores(lists=64, n=30, seed=0):
    """Lists that no default distribution has: two tight clusters, far apart."""
    generator = seeded(seed)
    cluster = torch.rand(lists, n, generator=generator) < 0.5
    return torch.where(cluster, 5.0, -5.0) + 0.3 * torch.randn(lists, n, generator=generator)


def weights(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def rank_error(rank_fn, scores):
    with torch.no_grad():
        return ((rank_fn(scores) - exact_rank(scores)).abs().mean() / scores.shape[-1]).item()


def test_it_is_the_sorter_until_refreshed():
    sorter = small_set()
    ranker = RefreshedSorter(sorter)
    scores = own_scores(3, 7)
    where = torch.rand(3, 7, generator=seeded(1)) < 0.7
    assert torch.equal(ranker(scores), sorter(scores))
    assert torch.equal(ranker(scores, where=where), sorter(scores, where=where))


def test_refresh_learns_the_lists_and_leaves_the_original_alone():
    sorter = small_mlp()
    before = weights(sorter)
    ranker = RefreshedSorter(sorter, steps=50, lr=3e-3)
    error = rank_error(sorter, own_scores(seed=9))
    ranker(own_scores())
    result = ranker.refresh()
    assert result.kept
    assert result.lists == 64
    assert result.after < 0.5 * result.before
    assert abs(result.before - rank_error(sorter, own_scores())) < 1e-6
    assert abs(result.after - rank_error(ranker, own_scores())) < 1e-6
    assert rank_error(ranker, own_scores(seed=9)) < 0.6 * error  # lists it has not seen
    assert same(weights(sorter), before)
    assert all(p.requires_grad for p in sorter.parameters())


def test_a_worse_copy_is_dropped():
    ranker = RefreshedSorter(small_set(), steps=3, lr=100.0)
    before = weights(ranker)
    ranker(own_scores())
    result = ranker.refresh()
    assert not result.kept
    assert result.after >= result.before
    assert same(weights(ranker), before)


@pytest.mark.parametrize("name", ["set", "mlp", "cnn", "lstm"])
def test_gradient_weight_and_gentle_rate_are_those_of_the_recipe(name):
    sorter, usual = build_sorter(name, seq_len=40), TrainConfig(sorter=name).resolve()
    assert RefreshedSorter(sorter).gradient_weight == usual.gradient_weight
    assert (usual.gradient_weight > 0) == (name != "set")
    assert RefreshedSorter(sorter).lr == min(3e-4, usual.lr / 5)
    assert RefreshedSorter(sorter, gradient_weight=0.5).gradient_weight == 0.5


def test_batch_statistics_are_not_those_of_the_few_remembered_lists():
    ranker = RefreshedSorter(build_sorter("cnn", seq_len=40), steps=3, lr=1e-12)
    ranker(torch.randn(2, 40, generator=torch.Generator().manual_seed(0)))
    result = ranker.refresh()
    assert result.after == pytest.approx(result.before, abs=1e-6)


def test_same_lists_and_seed_same_weights_whatever_the_global_seed():
    results = []
    for global_seed, seed in [(0, 0), (1, 0), (0, 1)]:
        ranker = RefreshedSorter(small_mlp(), steps=4, lr=1e-3, seed=seed)
        torch.manual_seed(global_seed)
        state = torch.get_rng_state()
        for _ in range(2):
            ranker(own_scores())
            ranker.refresh()
        assert torch.equal(torch.get_rng_state(), state)
        results.append(weights(ranker))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


@pytest.mark.parametrize("loss", [SpearmanLoss, MAPLoss])
def test_frozen_inside_a_loss_and_gradients_pass(loss):
    ranker = RefreshedSorter(small_set(), steps=2, lr=1e-3)
    criterion = loss(ranker)
    scores = own_scores(4, 12).requires_grad_()
    target = torch.rand(4, 12, generator=seeded(2)) < 0.3
    for _ in range(2):
        assert not [p for p in criterion.parameters() if p.requires_grad]
        before = weights(ranker)
        optimizer = torch.optim.SGD([scores, *criterion.parameters()], lr=0.1, weight_decay=0.1)
        optimizer.zero_grad()
        criterion(scores, target).backward()
        optimizer.step()
        assert scores.grad.isfinite().all()
        assert scores.grad.abs().sum() > 0
        assert same(weights(ranker), before)
        assert ranker.refresh().lists >= 4
        criterion.train()


def test_remembers_the_most_recent_lists_in_training_mode_only():
    ranker = RefreshedSorter(small_set(), capacity=10)
    ranker.eval()
    ranker(own_scores(5))
    ranker.train()
    for seed in range(4):
        ranker(own_scores(4, seed=seed).reshape(2, 2, 30))
    (remembered,) = ranker._remembered()
    assert torch.equal(remembered, torch.cat([own_scores(4, seed=2), own_scores(4, seed=3)]))
    ranker(own_scores(35, seed=9))
    (remembered,) = ranker._remembered()
    assert torch.equal(remembered, own_scores(35, seed=9)[::4])


def test_remembers_copies_without_masked_items():
    ranker = RefreshedSorter(small_set(), steps=1)
    nan = torch.nan
    scores = torch.tensor([[0.1, nan, 0.3, 0.2], [5.0, 6.0, nan, 8.0], [nan, nan, nan, 4.0], [nan, nan, nan, nan]])
    where = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]]).bool()
    ranker(scores, where=where)
    ranker(torch.zeros(3, 1))
    ranker(torch.arange(2.0))
    scores.zero_()
    two, three = ranker._remembered()
    assert torch.equal(two, torch.tensor([[0.0, 1.0]]))
    assert torch.equal(three, torch.tensor([[0.1, 0.3, 0.2], [5.0, 6.0, 8.0]]))
    assert ranker.refresh().lists == 3


def test_sorter_of_one_length():
    sorter = build_sorter("mlp", seq_len=8, hidden=16)
    ranker = RefreshedSorter(sorter, steps=3)
    assert ranker.seq_len == 8
    scores, relevant = own_scores(6, 8), torch.rand(6, 8, generator=seeded()) < 0.4
    relevant[:, 0] = True
    map_loss(scores, relevant, rank_fn=ranker)  # does not ask it to rank the relevant ones alone
    assert ranker.refresh().lists == 6


def test_half_precision_scores():
    ranker = RefreshedSorter(small_set(), steps=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ranker(own_scores(4).bfloat16())
    with torch.no_grad():
        assert ranker.refresh().lists == 4


def test_copies_and_state():
    ranker = RefreshedSorter(small_mlp(), steps=2, lr=1e-3)
    ranker(own_scores(4))
    clone = copy.deepcopy(ranker)
    ranker.refresh()
    clone.refresh()
    assert same(weights(ranker), weights(clone))
    fresh = RefreshedSorter(small_mlp())
    fresh.load_state_dict(ranker.state_dict())
    assert torch.equal(fresh(own_scores(2)), ranker(own_scores(2)))


def test_bad_use():
    ranker = RefreshedSorter(small_set())
    message = (
        "`refresh` must come after lists of two or more items were ranked in training mode, got none. "
        "Call it at the end of an epoch, and check that the loss is not in evaluation mode."
    )
    with pytest.raises(RuntimeError, match=exactly(message)):
        ranker.refresh()
    message = "`sorter` must be a sodeep.Sorter, got function. Load one: load_sorter('set')."
    with pytest.raises(TypeError, match=exactly(message)):
        RefreshedSorter(exact_rank)
    for name in ("capacity", "steps", "batch_size"):
        with pytest.raises(ValueError, match=exactly(f"`{name}` must be a whole number of at least 1, got 0.")):
            RefreshedSorter(small_set(), **{name: 0})
    with pytest.raises(ValueError, match=exactly("`lr` must be a positive number, got -1.")):
        RefreshedSorter(small_set(), lr=-1)
    with pytest.raises(ValueError, match=exactly("`gradient_weight` must be a finite number of at least 0, got -1.")):
        RefreshedSorter(small_set(), gradient_weight=-1)
    with pytest.raises(ValueError, match=exactly("`seed` must be a whole number of at least 0, got -1.")):
        RefreshedSorter(small_set(), seed=-1)
    with pytest.raises(ValueError, match=exactly("`weights` must hold finite numbers of at least 0, got uniform=-1.")):
        RefreshedSorter(small_set(), distributions={"uniform": -1})


def test_empty_batch_is_nothing_to_remember():
    ranker = RefreshedSorter(build_sorter("set"), steps=2)
    ranker(torch.zeros(0, 5))
    with pytest.raises(RuntimeError, match="`refresh` must come after lists of two or more items were ranked"):
        ranker.refresh()


def test_a_refresh_keeps_the_gradient_and_the_width_of_a_set_sorter():
    shipped = load_sorter("set").with_width(0.5)
    ranker = RefreshedSorter(shipped, steps=60, batch_size=8)
    scores = torch.randn(16, 50, generator=torch.Generator().manual_seed(0)).exp()
    ranker(scores)
    assert ranker.refresh().kept
    gradients = []
    for sorter in (shipped, ranker):
        leaf = scores.clone().requires_grad_()
        sorter(leaf)[:, 0].sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)
