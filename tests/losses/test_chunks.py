"""Losses of many lists, taken some at a time, are those of all lists at once."""

import functools
import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

import sodeep
from sodeep import UndefinedListWarning, losses
from sodeep._core.live_tensors import LiveTensors
from sodeep.losses import _chunks
from sodeep.ranks import laplace_rank, sigmoid_rank, straight_through

F64 = torch.float64
RANKED = {"rank_fn": functools.partial(laplace_rank, tau=0.5)}
LOSSES = {
    "map": (losses.map_loss, RANKED),
    "recall": (losses.recall_loss, {**RANKED, "hardest": 3}),
    "ndcg": (losses.ndcg_loss, RANKED),
    "reciprocal_rank": (losses.reciprocal_rank_loss, RANKED),
    "precision_at_k": (losses.precision_at_k_loss, {**RANKED, "k": 3}),
    "kendall": (losses.kendall_loss, RANKED),
    "asp": (losses.asp_loss, {"tau": 0.1}),
    "triplet": (losses.triplet_loss, {"mining": "hard"}),
    "contrastive": (losses.contrastive_loss, {}),
    "nt_xent": (losses.nt_xent_loss, {}),
    "multi_similarity": (losses.multi_similarity_loss, {}),
    "lifted_structure": (losses.lifted_structure_loss, {}),
    "softmax": (losses.softmax_loss, {}),
    "lambda_rank": (losses.lambda_rank_loss, {}),
    "spearman": (losses.spearman_loss, RANKED),
    "straight_through": (losses.map_loss, {"rank_fn": straight_through(sigmoid_rank)}),
}


def lists(q=7, n=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(q, n, generator=generator, dtype=F64)
    relevant = torch.rand(q, n, generator=generator) < 0.4
    where = torch.rand(q, n, generator=generator) < 0.8
    relevant[3] = False  # mostly undefined
    return scores, relevant, where


@pytest.fixture
def chunks(monkeypatch):
    """Two lists at a time; how many chunks there were."""
    seen = []
    inside = _chunks.in_chunks

    def watched(run, given):
        def counted(**options):
            seen.append(len(options["scores"]))
            return run(**options)

        return inside(counted, given)

    monkeypatch.setattr(_chunks, "SMALL", 0)
    monkeypatch.setattr(_chunks, "SMALL_RANKED", 0)
    monkeypatch.setattr(_chunks, "chunk_elements", lambda device: 18)
    monkeypatch.setattr(losses._base, "in_chunks", watched)
    monkeypatch.setattr(_chunks, "in_chunks", watched)
    return seen


def outcome(loss, scores, *target, **options):
    leaf = scores.clone().requires_grad_()
    value, stats = loss(leaf, *target, return_stats=True, **options)
    (grad,) = torch.autograd.grad(value.nan_to_num(2.0).square().sum(), leaf)
    return value.detach(), grad, stats.total, stats.defined


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_values_gradients_and_stats_are_those_of_the_whole(name, masked, reduction, chunks):
    function, options = LOSSES[name]
    scores, relevant, where = lists()
    given = {**options, "reduction": reduction, **({"where": where} if masked else {})}
    found = outcome(function, scores, relevant, **given)
    assert chunks[:4] == [2, 2, 2, 1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_chunks, "SMALL", 2**40)
        patch.setattr(_chunks, "SMALL_RANKED", 2**40)
        expected = outcome(function, scores, relevant, **given)
    torch.testing.assert_close(found, expected, equal_nan=True)
    with torch.no_grad():
        torch.testing.assert_close(function(scores, relevant, **given), expected[0], equal_nan=True)


def test_they_are_taken_by_name_and_from_a_module_too(chunks):
    scores, relevant, where = lists()
    expected = losses.nt_xent_loss(scores[:1], relevant[:1], where=where[:1])
    assert chunks == []
    for call in (
        lambda: losses.nt_xent_loss(scores=scores, relevant=relevant, where=where, reduction="none"),
        lambda: sodeep.NTXentLoss(reduction="none")(scores, relevant, where),
        lambda: functools.partial(losses.nt_xent_loss, reduction="none")(scores, relevant, where=where),
    ):
        torch.testing.assert_close(call()[0], expected)
        assert len(chunks) == 4
        chunks.clear()


def test_second_derivatives(chunks):
    scores, relevant, _ = lists()
    leaf = scores.clone().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: losses.nt_xent_loss(x, relevant, temperature=0.5), leaf)
    assert chunks


def test_a_graph_may_be_used_twice(chunks):
    scores, relevant, _ = lists()
    leaf = scores.clone().requires_grad_()
    value = losses.nt_xent_loss(leaf, relevant)
    first, again = (torch.autograd.grad(value, leaf, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.skipif(not hasattr(torch._C._autograd, "_get_current_graph_task_keep_graph"), reason="torch before 2.6")
@pytest.mark.parametrize("name", ["map", "asp", "nt_xent", "multi_similarity", "lifted_structure"])
@pytest.mark.parametrize("in_parts", [True, False])
def test_a_graph_that_was_used_lets_go_of_the_target(name, in_parts, request):
    if in_parts:
        request.getfixturevalue("chunks")
    function, options = LOSSES[name]
    scores, relevant, _ = lists()
    target = relevant.double() if name == "asp" else relevant
    del relevant
    alive = weakref.ref(target)
    value = function(scores.requires_grad_(), target, **options)
    del target
    first, again = (torch.autograd.grad(value, scores, retain_graph=keep)[0] for keep in (True, False))
    assert torch.equal(first, again)
    gc.collect()
    assert alive() is None


class Learned(nn.Module):
    """A rank function with a weight that is trained."""

    def __init__(self):
        super().__init__()
        self.width = nn.Parameter(torch.tensor(0.5, dtype=F64))

    def forward(self, scores):
        return laplace_rank(scores / self.width, tau=1.0)


def test_what_is_trained_keeps_its_gradient(chunks):
    scores, relevant, _ = lists()
    learned = Learned()

    def in_a_closure(x):
        return learned(x)

    for rank_fn in (learned, in_a_closure, functools.partial(in_a_closure), straight_through(learned)):
        for loss in (losses.map_loss, losses.spearman_loss):
            learned.width.grad = None
            loss(scores, relevant, rank_fn=rank_fn).backward()
            assert learned.width.grad.abs() > 0
    assert chunks == []


def test_no_defined_list_warns_as_ever(chunks):
    scores, relevant, _ = lists()
    with pytest.warns(UndefinedListWarning, match="^0 of 7 lists have both a relevant item and one that is not: the"):
        value = losses.nt_xent_loss(scores, torch.zeros_like(relevant))
    assert value == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses.nt_xent_loss(scores, relevant.new_zeros(7, 9).index_fill_(0, torch.tensor([5]), False) | relevant[:1])


def test_errors_are_those_of_the_loss(chunks):
    scores, relevant, _ = lists()
    scores[5, 2] = torch.nan
    message = r"^`scores` must be finite, got 1 NaN or infinite of 63 values, the first \(nan\) at index \(5, 2\)\."
    with pytest.raises(ValueError, match=message):
        losses.nt_xent_loss(scores, relevant)


@pytest.mark.parametrize("value_weight", [0.0, 0.3])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_spearman(value_weight, whole, reduction, chunks):
    """Both terms: lists of equal targets have a value alone, and those without a real item nothing."""
    scores, target, where = lists()[0], lists(seed=1)[0], lists()[2]
    target = target.mul(2).round()
    target[3], where[5] = 1.0, False
    target = target.long() if whole else target
    given = {**RANKED, "value_weight": value_weight, "where": where, "reduction": reduction}
    leaf = scores.clone().requires_grad_()

    def found():
        value, stats = losses.spearman_loss(leaf, target, return_stats=True, **given)
        (grad,) = torch.autograd.grad(value.nan_to_num(2.0).square().sum(), leaf)
        return value.detach(), grad, *stats

    in_parts = found()
    assert chunks == [2, 2, 2, 1] * 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_chunks, "SMALL", 2**40)
        patch.setattr(_chunks, "SMALL_RANKED", 2**40)
        torch.testing.assert_close(in_parts, found(), rtol=1e-12, atol=1e-14, equal_nan=True)
    assert len(chunks) == 8


def test_spearman_has_second_derivatives(chunks):
    leaf, (target, _, where) = lists()[0].requires_grad_(), lists(seed=1)
    given = {"rank_fn": functools.partial(sigmoid_rank, tau=0.5), "value_weight": 0.1, "value_loss": "mse"}
    assert torch.autograd.gradgradcheck(lambda x: losses.spearman_loss(x, target, where=where, **given), leaf)
    assert chunks


def test_half_precision_rounds_the_gradient_once(chunks):
    """A scaled loss, as under a GradScaler, of scores whose gradients float16 cannot hold unscaled."""
    scores, target = (lists(seed=seed)[0].half() for seed in (0, 1))
    leaf, wide = scores.clone().requires_grad_(), scores.float().requires_grad_()
    for x in (leaf, wide):
        (losses.spearman_loss(x, target, rank_fn=functools.partial(laplace_rank, tau=1e4)) * 2**20).backward()
    assert chunks[-1] == 1
    torch.testing.assert_close(leaf.grad, wide.grad.half())


@pytest.mark.parametrize("name", ["map", "nt_xent", "multi_similarity", "triplet"])
def test_memory_is_twice_that_of_the_scores(name, monkeypatch):
    """The gradient and what it is computed from; and a chunk."""
    monkeypatch.setattr(_chunks, "SMALL", 2**18)
    monkeypatch.setattr(_chunks, "chunk_elements", lambda device: 2**13)
    function, options = LOSSES[name]
    n = 600
    scores = torch.randn(n, n, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.arange(n) % 100
    relevant = labels.unsqueeze(1) == labels
    with LiveTensors() as live:
        function(scores, relevant, **options).backward()
    assert live.peak < 2.8 * scores.numel() * 4


BOUNDS = {  # how many times the memory of the scores a step may take, the incoming gradient of the scores included
    "histogram": (losses.histogram_loss, {}, 2.5),
    "triplet": (losses.triplet_loss, {}, 2.5),
    "map": (losses.map_loss, {"rank_fn": laplace_rank}, 2.5),
    "recall": (losses.recall_loss, {"rank_fn": laplace_rank, "hardest": 64}, 2.5),
    "spearman": (losses.spearman_loss, {"rank_fn": laplace_rank}, 2.5),
    "spearman and values": (losses.spearman_loss, {"rank_fn": laplace_rank, "value_weight": 0.1}, 4.5),
    "asp": (losses.asp_loss, {}, 2.5),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_memory_is_a_small_multiple_of_the_scores(name):
    function, options, times = BOUNDS[name]
    generator = torch.Generator().manual_seed(0)
    shape, chunk = ((400, 1500), 25e6) if name == "asp" else ((1500, 1500), 0)  # which takes long, and a large chunk
    scores = torch.randn(shape, generator=generator).requires_grad_()
    relevant = torch.rand(scores.shape, generator=generator) < 0.05
    with LiveTensors() as live:
        function(scores, relevant, **options).backward()
    assert live.peak < times * scores.nbytes + chunk


def test_memory_of_one_long_list_does_not_depend_on_how_many_are_hardest():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(100_000, generator=generator).requires_grad_()
    relevant = torch.rand(scores.shape, generator=generator) < 0.05
    peaks = []
    for hardest in (2, 64):
        with LiveTensors() as live:
            losses.recall_loss(scores, relevant, rank_fn=laplace_rank, hardest=hardest).backward()
        peaks.append(live.peak)
    assert peaks[1] < 1.1 * peaks[0] < 25 * scores.nbytes


@pytest.mark.parametrize("queries", [6, 2100], ids=["whole", "in chunks"])
def test_a_graph_that_is_kept_gives_the_same_gradient_again(queries):
    """Where it is not, the gradient takes the place of what was saved."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(queries, 1000, generator=generator, requires_grad=True)
    relevant = torch.rand(queries, 1000, generator=generator) < 0.2
    loss = losses.nt_xent_loss(scores, relevant)
    first, second, last = (torch.autograd.grad(loss, scores, retain_graph=keep)[0] for keep in (True, True, False))
    for other in (second, last):
        torch.testing.assert_close(other, first, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(loss, scores)
