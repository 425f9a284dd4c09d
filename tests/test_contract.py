"""One contract, held over every loss and every metric. A new one without an entry in the tables here fails the suite.

What a single loss or metric means is in its own test file; what they all promise is here.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import itertools
import math
import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import sodeep
from sodeep import (
    CrossModalLoss,
    EmbeddingLoss,
    UndefinedListWarning,
    UndefinedMetricWarning,
    losses,
    metrics,
)
from sodeep.ranks import exact_rank, laplace_rank, sigmoid_rank

F64 = torch.float64
BOTH = "both a relevant item and one that is not"


def laplace(scores, where=None):
    return laplace_rank(scores, tau=0.5, where=where)


class Member(NamedTuple):
    """What the suite has to know of a loss."""

    function: Callable[..., Any]
    module: type[losses.ContrastiveLoss] | type
    options: Mapping[str, Any] = MappingProxyType({})
    needs: str = BOTH
    """What a list needs to be defined, in the words of the warning."""
    target: str = "relevant"
    """The name of its second argument."""
    smooth: Mapping[str, Any] = MappingProxyType({})
    """Options under which finite differences see its gradient."""
    lr: float = 1.0
    """For a descent on unit vectors."""

    @property
    def loss(self) -> Callable[..., Any]:
        return partial(self.function, **self.options)


ONE = "a relevant item"
POSITIVE = "an item of positive relevance"
DIFFERENT = "two items of different relevance"
RANKED = {"rank_fn": laplace}
LOSSES = {
    "spearman": Member(sodeep.spearman_loss, sodeep.SpearmanLoss, RANKED, "two items with different targets", "target"),
    "spearman_l1": Member(
        sodeep.spearman_loss,
        sodeep.SpearmanLoss,
        {**RANKED, "value_weight": 0.5},
        "two items with different targets",
        "target",
    ),
    "map": Member(sodeep.map_loss, sodeep.MAPLoss, RANKED, ONE, lr=10),
    "map_rank_sum": Member(sodeep.map_loss, sodeep.MAPLoss, {**RANKED, "form": "rank_sum"}, ONE, lr=10),
    "recall": Member(sodeep.recall_loss, sodeep.RecallLoss, RANKED, "a relevant item and another", lr=10),
    "recall_3": Member(
        sodeep.recall_loss,
        sodeep.RecallLoss,
        {**RANKED, "margin": 0.4, "hardest": 3},
        "a relevant item and another",
        lr=10,
    ),
    "smooth_ap": Member(sodeep.smooth_ap_loss, sodeep.SmoothAPLoss, {}, ONE, smooth={"tau": 0.1}, lr=10),
    "smooth_ap_self": Member(
        sodeep.smooth_ap_loss, sodeep.SmoothAPLoss, {"include_self": True}, ONE, smooth={"tau": 0.1}, lr=10
    ),
    "quantized_ap": Member(
        sodeep.quantized_ap_loss, sodeep.QuantizedAPLoss, {}, ONE, smooth={"num_bins": 7, "low": -1.1}, lr=10
    ),
    "fast_ap": Member(sodeep.fast_ap_loss, sodeep.FastAPLoss, {}, ONE, smooth={"num_bins": 5}, lr=10),
    "sup_ap": Member(
        sodeep.sup_ap_loss, sodeep.SupAPLoss, {}, ONE, smooth={"tau": 0.1, "delta": 0.3, "rho": 2.0}, lr=10
    ),
    "recall_at_k": Member(sodeep.recall_at_k_loss, sodeep.RecallAtKLoss, {}, ONE, smooth={"tau_rank": 0.1}, lr=10),
    "svm_ap": Member(sodeep.svm_ap_loss, sodeep.SVMAPLoss, {"scale": 10.0}, ONE, smooth={"scale": 1.0}, lr=10),
    "asp": Member(sodeep.asp_loss, sodeep.ASPLoss, {}, "a real item", "semantic", smooth={"tau": 0.1}),
    "asp_ranked": Member(
        sodeep.asp_loss, sodeep.ASPLoss, {**RANKED, "semantic_rank_fn": exact_rank}, "a real item", "semantic"
    ),
    "contrastive": Member(sodeep.contrastive_loss, sodeep.ContrastiveLoss, {}, "a real item"),
    "triplet": Member(sodeep.triplet_loss, sodeep.TripletLoss),
    "triplet_semihard": Member(sodeep.triplet_loss, sodeep.TripletLoss, {"mining": "semihard"}),
    "triplet_hard": Member(sodeep.triplet_loss, sodeep.TripletLoss, {"mining": "hard"}),
    "nt_xent": Member(sodeep.nt_xent_loss, sodeep.NTXentLoss),
    "n_pairs": Member(sodeep.n_pairs_loss, sodeep.NPairsLoss),
    "nca": Member(sodeep.nca_loss, sodeep.NCALoss, {"temperature": 0.1}),
    "lifted_structure": Member(sodeep.lifted_structure_loss, sodeep.LiftedStructureLoss),
    "binomial_deviance": Member(sodeep.binomial_deviance_loss, sodeep.BinomialDevianceLoss, {}, "a real item"),
    "bin_lifted": Member(sodeep.bin_lifted_loss, sodeep.BinLiftedLoss),
    "multi_similarity": Member(sodeep.multi_similarity_loss, sodeep.MultiSimilarityLoss),
    "multi_similarity_all": Member(sodeep.multi_similarity_loss, sodeep.MultiSimilarityLoss, {"epsilon": None}),
    "histogram": Member(
        sodeep.histogram_loss, sodeep.HistogramLoss, {}, "a positive and a negative pair between them", lr=10
    ),
    "ndcg": Member(sodeep.ndcg_loss, sodeep.NDCGLoss, RANKED, POSITIVE, "relevance", lr=10),
    "ndcg_3": Member(
        sodeep.ndcg_loss, sodeep.NDCGLoss, {**RANKED, "k": 3, "gain": "linear"}, POSITIVE, "relevance", lr=10
    ),
    "reciprocal_rank": Member(sodeep.reciprocal_rank_loss, sodeep.ReciprocalRankLoss, RANKED, ONE, lr=10),
    "precision_at_3": Member(sodeep.precision_at_k_loss, sodeep.PrecisionAtKLoss, {**RANKED, "k": 3}, ONE, lr=10),
    "kendall": Member(
        sodeep.kendall_loss, sodeep.KendallLoss, RANKED, "two items with different targets", "target", lr=10
    ),
    "list_net": Member(sodeep.list_net_loss, sodeep.ListNetLoss, {}, DIFFERENT, "relevance", lr=10),
    "list_mle": Member(sodeep.list_mle_loss, sodeep.ListMLELoss, {}, DIFFERENT, "relevance", lr=10),
    "list_mle_position": Member(
        sodeep.list_mle_loss, sodeep.ListMLELoss, {"position_aware": True}, DIFFERENT, "relevance", lr=10
    ),
    "softmax": Member(sodeep.softmax_loss, sodeep.SoftmaxLoss, {}, POSITIVE, "relevance", lr=10),
    "rank_net": Member(sodeep.rank_net_loss, sodeep.RankNetLoss, {}, DIFFERENT, "relevance", lr=10),
    "lambda_rank": Member(sodeep.lambda_rank_loss, sodeep.LambdaRankLoss, {}, DIFFERENT, "relevance", lr=10),
    "lambda_rank_2": Member(
        sodeep.lambda_rank_loss, sodeep.LambdaRankLoss, {"form": "ndcg2", "k": 5}, DIFFERENT, "relevance", lr=10
    ),
    "lambda_rank_2_plus": Member(
        sodeep.lambda_rank_loss, sodeep.LambdaRankLoss, {"form": "ndcg2++"}, DIFFERENT, "relevance"
    ),
}
WRAPPERS = {EmbeddingLoss, CrossModalLoss}
"""Make a loss on embeddings of any loss; see `test_embedding.py`."""

every_loss = pytest.mark.parametrize("name", LOSSES)
every_loss_of_lists = pytest.mark.parametrize("name", [name for name in LOSSES if name != "histogram"])
every_loss_of_relevance = pytest.mark.parametrize("name", [n for n, m in LOSSES.items() if m.target == "relevant"])


def exactly(message: str) -> str:
    return f"^{re.escape(message)}$"


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(member: Member, lists: int = 6, n: int = 9, seed: int = 0, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor]:
    """Scores in (-1, 1) without ties, and a target for which every list is defined."""
    generator = seeded(seed)
    scores = 1.98 * torch.rand(lists, n, generator=generator, dtype=F64) - 0.99
    if member.target == "relevant":
        target = torch.rand(lists, n, generator=generator) < 0.35
        target[:, 0], target[:, 1:2] = True, False
        return scores.to(dtype), target
    target = torch.randint(5, (lists, n), generator=generator).to(F64) / 5
    target[:, 0], target[:, 1:2] = 1.1, 1.2
    return scores.to(dtype), target.to(dtype)


def value_and_grad(loss: Callable[..., Any], scores: Tensor, target: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    leaf = scores.detach().clone().requires_grad_()
    value = loss(leaf, target, **options)
    assert value.shape == ()
    assert value.requires_grad
    return value.detach(), torch.autograd.grad(value, leaf)[0]


def values_are_equal(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


# ---- nothing is left out ---------------------------------------------------------------------------------------------


def test_every_loss_is_in_the_table():
    functions = {name for name in losses.__all__ if name.endswith("_loss")}
    assert functions == {member.function.__name__ for member in LOSSES.values()}
    modules = {getattr(losses, name) for name in losses.__all__ if name.endswith("Loss")}
    assert modules - WRAPPERS == {member.module for member in LOSSES.values()}
    for path in Path(losses.__file__).parent.glob("[!_]*.py"):
        module = importlib.import_module(f"sodeep.losses.{path.stem}")
        defined = {name for name, x in vars(module).items() if getattr(x, "__module__", None) == module.__name__}
        public = {name for name in defined if not name.startswith("_") and name.lower().endswith("loss")}
        assert public <= set(losses.__all__)
    assert set(losses.__all__) <= {*sodeep.__all__}


@every_loss
def test_the_package_says_in_which_file_a_loss_is(name):
    function = LOSSES[name].function
    (entry,) = re.findall(rf"^\* `(\w+)`: [^*]*`{function.__name__}`", losses.__doc__, re.MULTILINE)
    assert f"sodeep.losses.{entry}" == function.__module__


@every_loss
def test_a_module_stands_right_under_its_function(name):
    function, module = LOSSES[name].function, LOSSES[name].module
    source = ast.parse(inspect.getsource(inspect.getmodule(function)))
    names = [node.name for node in source.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    assert names[names.index(function.__name__) + 1] == module.__name__


def test_every_metric_is_in_the_table():
    public = {*metrics.__all__} - {"UndefinedMetricWarning"}
    assert public == {getattr(metric, "func", metric).__name__ for metric in METRICS.values()} | {"pmrp"}
    for path in Path(metrics.__file__).parent.glob("[a-z]*.py"):
        module = importlib.import_module(f"sodeep.metrics.{path.stem}")
        own = {name for name, x in vars(module).items() if getattr(x, "__module__", None) == module.__name__}
        (shown,) = re.findall(rf"^\* `{path.stem}`: ([^*]*)", metrics.__doc__, re.MULTILINE)
        assert {name for name in own if not name.startswith("_")} == {*re.findall(r"`(\w+)`", shown)}
    assert public <= {*sodeep.__all__}


# ---- losses: what lists are ------------------------------------------------------------------------------------------


@every_loss
def test_order_of_lists_and_items_changes_nothing(name):
    member = LOSSES[name]
    scores, target = draw(member)
    scores[:, 3] = scores[:, 4]
    rows, columns = torch.randperm(6, generator=seeded(1)), torch.randperm(9, generator=seeded(2))
    value, grad = value_and_grad(member.loss, scores, target)
    moved, moved_grad = value_and_grad(member.loss, scores[rows][:, columns], target[rows][:, columns])
    values_are_equal(moved, value)
    values_are_equal(moved_grad, grad[rows][:, columns])


@every_loss
def test_masked_is_deleted(name):
    member = LOSSES[name]
    scores, target = draw(member)
    value, grad = value_and_grad(member.loss, scores, target)
    for junk in (0.0, -1.0, 1e9, -1e9, math.nan, math.inf, -math.inf):
        pad = torch.full((6, 2), junk, dtype=F64)
        other = pad if member.target != "relevant" else pad > 0
        wide, longer = (
            torch.cat([pad, scores, pad], 1),
            torch.cat([other, target, ~other if other.dtype == torch.bool else other], 1),
        )
        where = torch.tensor([False, False, *[True] * 9, False, False])
        masked, masked_grad = value_and_grad(member.loss, wide, longer, where=where)
        values_are_equal(masked, value)
        values_are_equal(masked_grad[:, where], grad)
        assert (masked_grad[:, ~where] == 0).all()


@every_loss_of_lists
def test_batch_is_the_mean_of_its_lists(name):
    member = LOSSES[name]
    scores, target = draw(member)
    each = torch.stack([member.loss(s, t) for s, t in zip(scores, target, strict=True)])
    values_are_equal(member.loss(scores, target), each.mean())
    values_are_equal(member.loss(scores.view(2, 3, 9), target.view(2, 3, 9)), each.mean())


@every_loss_of_lists
def test_a_list_in_a_batch_is_the_list_alone(name):
    """Lists of unequal lengths, padded with NaN: each counts as it would without the others."""
    member = LOSSES[name]
    scores, target = draw(member)
    where = torch.arange(9) < torch.tensor([9, 7, 5, 3, 2, 8]).unsqueeze(1)
    each = torch.stack([member.loss(s[w], t[w]) for s, t, w in zip(scores, target, where, strict=True)])
    values_are_equal(member.loss(scores.masked_fill(~where, math.nan), target, where=where), each.mean())


@every_loss
def test_undefined_lists_are_left_out_and_counted(name):
    member = LOSSES[name]
    scores, target = draw(member)
    where = torch.ones(6, 9, dtype=torch.bool)
    where[[1, 4]] = False
    keep = torch.tensor([0, 2, 3, 5])
    value, grad = value_and_grad(member.loss, scores, target, where=where)
    values_are_equal(value, member.loss(scores[keep], target[keep]))
    assert (grad[[1, 4]] == 0).all()
    result, stats = member.loss(scores, target, where=where, return_stats=True)
    values_are_equal(result, value)
    assert (stats.total, int(stats.defined)) == (6, 6 if name == "histogram" else 4)
    if member.needs in (ONE, BOTH, "a relevant item and another"):
        target[[1, 4]] = False
        result, stats = member.loss(scores, target, return_stats=True)
        values_are_equal(result, value)
        assert (stats.total, int(stats.defined)) == (6, 4)


def nothing_to_learn(member: Member) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Targets and masks of three lists of four of which none is defined."""
    masked = {"where": torch.zeros(3, 4, dtype=torch.bool)}
    if member.needs == "a real item":
        return [(torch.zeros(3, 4), masked)]
    all_equal = [(torch.zeros(3, 4), {}), (torch.zeros(3, 4), masked)]
    both_sides = member.needs not in (ONE, POSITIVE, "two items with different targets")
    return [*all_equal, (torch.ones(3, 4), {})] if both_sides else all_equal


@every_loss
def test_no_defined_list_is_a_zero_with_a_graph_and_one_warning(name):
    member = LOSSES[name]
    message = f"0 of 3 lists have {member.needs}: the loss is a constant 0 for this batch."
    for target, options in nothing_to_learn(member):
        scores = draw(member, 3, 4)[0].fill_(0.0 if "value_weight" in member.options else 0.3)
        with pytest.warns(UndefinedListWarning, match=exactly(message)) as caught:
            value, grad = value_and_grad(member.loss, scores, target, **options)
        assert len(caught) == 1
        assert value == 0
        assert torch.equal(grad, torch.zeros_like(scores))
        with pytest.warns(UndefinedListWarning, match=exactly(message)):
            assert int(member.loss(scores, target, return_stats=True, **options)[1].defined) == 0


@every_loss
def test_no_lists(name):
    member = LOSSES[name]
    scores, target = draw(member)
    with pytest.warns(UndefinedListWarning, match=f"^0 of 0 lists have {member.needs}: the loss is a constant 0"):
        value, grad = value_and_grad(member.loss, scores[:0], target[:0])
    assert value == 0
    assert grad.shape == (0, 9)


@every_loss
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_whole_numbers_are_targets_too(name, dtype):
    """As what is relevant, and as what the scores should be ordered like."""
    member = LOSSES[name]
    scores = draw(member)[0].float()
    target = torch.randint(2, scores.shape, generator=seeded(4)).to(dtype)
    as_floats = target.double() if member.target != "relevant" else target.bool()
    values_are_equal(member.loss(scores, target), member.loss(scores, as_floats))
    if dtype != torch.bool and member.target != "relevant":
        values_are_equal(member.loss(scores, 3 * target + 40), member.loss(scores, 3 * as_floats + 40))


@every_loss_of_lists
def test_without_reduction_every_list_has_its_value(name):
    """(...), NaN where a list is undefined: the mean of the others is the mean reduction, in value and in gradient."""
    member = LOSSES[name]
    scores, target = draw(member)
    where = torch.rand(6, 9, generator=seeded(3)) < 0.8
    where[:, :2] = True
    where[[1, 4]] = False
    leaf = scores.masked_fill(~where, math.nan).requires_grad_()
    values = member.loss(leaf, target, where=where, reduction="none")
    assert values.isnan().tolist() == [False, True, False, False, True, False]
    (grad,) = torch.autograd.grad(values.nanmean(), leaf)
    values_are_equal((values.nanmean().detach(), grad), value_and_grad(member.loss, leaf, target, where=where))
    for i in (0, 2, 3, 5):
        alone = member.loss(scores[i], target[i], where=where[i], reduction="none")
        assert alone.shape == ()
        values_are_equal(values[i], alone)
    values_are_equal(
        member.module(**member.options, reduction="none")(scores, target), member.loss(scores, target, reduction="none")
    )
    grid = member.loss(scores.view(2, 3, 9), target.view(2, 3, 9), reduction="none")
    values_are_equal(grid, member.loss(scores, target, reduction="none").view(2, 3))
    order = torch.tensor([5, 0, 3, 1, 4, 2])
    values_are_equal(member.loss(scores[order], target[order], reduction="none"), grid.flatten()[order])
    result, stats = member.loss(leaf, target, where=where, reduction="none", return_stats=True)
    torch.testing.assert_close(result, values, rtol=0, atol=0, equal_nan=True)
    assert (stats.total, int(stats.defined)) == (6, 4)


@every_loss_of_lists
def test_without_reduction_no_defined_list_is_nan_with_a_zero_gradient(name):
    member = LOSSES[name]
    scores = draw(member, 3, 4)[0].requires_grad_()
    nowhere = torch.zeros(3, 4, dtype=torch.bool)
    with pytest.warns(UndefinedListWarning, match=exactly(f"0 of 3 lists have {member.needs}: every value is NaN.")):
        values = member.loss(scores, torch.zeros(3, 4), where=nowhere, reduction="none")
    assert values.isnan().tolist() == [True] * 3
    values.nansum().backward()
    assert torch.equal(scores.grad, torch.zeros(3, 4, dtype=F64))


def test_a_statistic_of_the_batch_has_no_value_for_each_list():
    message = "`reduction` must be 'mean' for a statistic of the whole batch, got 'none'."
    with pytest.raises(ValueError, match=exactly(message)):
        sodeep.histogram_loss(*draw(LOSSES["histogram"]), reduction="none")
    with pytest.raises(ValueError, match=exactly(message)):
        sodeep.HistogramLoss(reduction="none")


WEIGHED = (
    "kendall_loss, lambda_rank_loss, list_mle_loss, list_net_loss, ndcg_loss, precision_at_k_loss, rank_net_loss, "
    "softmax_loss"
)


@pytest.mark.parametrize("given", ["weight", "weights", "sample_weight"])
@every_loss
def test_weights_that_it_does_not_take(name, given):
    member = LOSSES[name]
    loss, scores = member.function.__name__, draw(member)
    weights = {given: torch.ones_like(scores[0])}
    if "weight" in inspect.signature(member.function).parameters:
        assert loss in WEIGHED.split(", ")
        if given == "weight":
            member.loss(*scores, **weights)
            return
        message = f"`{given}` must be given to {loss} as weight=, a number for each item."
    else:
        lists = f' Lists are weighed by their values: (weights * {loss}(..., reduction="none")).nansum().'
        message = (
            f"`{given}` must not be given to {loss}, in which all items count the same."
            f"{lists * (name != 'histogram')} A weight for each item is taken by {WEIGHED}."
        )
    for call in (member.loss, member.module(**member.options), EmbeddingLoss(member.module(**member.options))):
        first = scores if not isinstance(call, EmbeddingLoss) else (torch.randn(4, 3), [0, 0, 1, 1])
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            call(*first, **weights)


# ---- losses: numbers -------------------------------------------------------------------------------------------------


@every_loss
def test_gradient_by_finite_differences(name):
    member = LOSSES[name]
    scores, target = draw(member, 3, 7, seed=3)
    where = torch.ones(3, 7, dtype=torch.bool)
    where[0, 5:] = False
    loss = partial(member.loss, **member.smooth)
    reductions = ("mean",) if name == "histogram" else ("mean", "none")
    for mask, reduction in itertools.product((None, where), reductions):
        options = {member.target: target, "where": mask, "reduction": reduction}
        assert torch.autograd.gradcheck(partial(loss, **options), scores.requires_grad_())


@every_loss
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_precision(name, dtype):
    """float32 or wider inside and out, whatever autocast says; the gradient in the dtype of the scores."""
    member = LOSSES[name]
    scores, target = draw(member, 4, 300)
    scores, wide = scores.to(dtype), torch.promote_types(dtype, torch.float32)
    expected, expected_grad = value_and_grad(member.loss, scores.to(wide), target)
    assert expected.dtype == wide
    for low in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=low):
            value, grad = value_and_grad(member.loss, scores, target)
        assert (value.dtype, grad.dtype) == (wide, dtype)
        torch.testing.assert_close(value, expected, rtol=0, atol=0)
        torch.testing.assert_close(grad, expected_grad.to(dtype), rtol=0, atol=0)
    with torch.autocast("cpu", enabled=False):
        torch.testing.assert_close(value_and_grad(member.loss, scores, target), (value, grad), rtol=0, atol=0)


EXTREMES = {
    "constant": lambda s, t: torch.full_like(s, 0.4),
    "zero": lambda s, t: torch.zeros_like(s),
    "ones": lambda s, t: torch.ones_like(s),
    "tied": lambda s, t: (s * 2).round() / 2,
    "far": lambda s, t: s + 1e6,
    "huge": lambda s, t: s * 1e30,
    "vast": lambda s, t: s.sign() * 1e36,
    "tiny": lambda s, t: s * 1e-30,
    "subnormal": lambda s, t: s.sign() * 3e-45,
    "apart": lambda s, t: torch.where(t > 0.5, -1e4, 1e4).to(s),
    "solved": lambda s, t: torch.where(t > 0.5, 1e4, -1e4).to(s),
    "edges": lambda s, t: s.sign() * (1 + torch.finfo(s.dtype).eps),
}


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_on_extreme_scores(name, dtype):
    member = LOSSES[name]
    for lists, n in [(6, 9), (6, 1), (1, 2)]:
        scores, target = draw(member, lists, n, dtype=dtype)
        target[2:3], target[3:4] = 0, 1  # without positives, all positive
        for kind, make in EXTREMES.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UndefinedListWarning)
                value, grad = value_and_grad(member.loss, make(scores, target.to(dtype)), target)
            assert value.isfinite(), kind
            assert grad.isfinite().all(), kind
            assert grad.dtype == dtype


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_is_finite_at_the_end_of_the_range(name, dtype):
    """There the loss itself may be infinite, as may the exponents that it is made of."""
    member = LOSSES[name]
    scores, target = draw(member, dtype=dtype)
    end = torch.finfo(dtype).max
    for share in (1e-2, 0.3, 1.0):
        for made in (scores.sign(), scores / scores.abs().amax(), (torch.arange(9) == 3).to(dtype).expand_as(scores)):
            grad = value_and_grad(member.loss, share * end * made, target)[1]
            assert grad.isfinite().all()


def rows_of_embeddings() -> dict[str, Tensor]:
    x = torch.randn(8, 3, generator=seeded(), dtype=torch.float32)
    duplicates = x.clone()
    duplicates[1::2] = duplicates[::2]
    with_zeros = x.clone()
    with_zeros[[0, 3]] = 0
    return {
        "duplicates": duplicates,
        "all equal": x[:1].expand(8, 3),
        "zero rows": with_zeros,
        "all zero": torch.zeros(8, 3),
        "huge": x * 1e30,
        "tiny": x * 1e-30,
    }


@every_loss
def test_finite_on_degenerate_embeddings(name):
    member = LOSSES[name]
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 2, 3])  # the last two have no positive
    for kind, x in rows_of_embeddings().items():
        for similarity in ("cosine", "euclidean"):
            if similarity == "euclidean" and kind == "huge":
                continue  # distances of 1e30 are fine, but this asks for their fourth power in a gradient of float32
            leaf = x.clone().requires_grad_()
            if member.target == "relevant":
                value = EmbeddingLoss(member.loss, similarity)(leaf, labels)
            else:
                meaning = torch.rand(8, 8, generator=seeded(1))
                value = CrossModalLoss(member.loss, similarity)(leaf, leaf.flip(0), meaning)
            value.backward()
            assert value.isfinite(), (kind, similarity)
            assert leaf.grad.isfinite().all(), (kind, similarity)


@every_loss_of_relevance
def test_masked_rows_of_embeddings_are_deleted(name):
    member = LOSSES[name]
    x, labels = torch.randn(9, 4, generator=seeded(), dtype=F64), torch.tensor([0, 0, 1, 1, 2, 2, 0, 1, 2])
    where = torch.arange(9) % 4 != 2
    padded = x.masked_fill(~where.unsqueeze(1), math.nan)
    criterion = EmbeddingLoss(member.module(**member.options), scale=2)
    values_are_equal(
        value_and_grad(partial(criterion, where=where), padded, labels)[0], criterion(x[where], labels[where])
    )
    criterion = CrossModalLoss(member.module(**member.options))
    values_are_equal(criterion(padded, padded.flip(1), where=where), criterion(x[where], x[where].flip(1)))


@every_loss
def test_layout_of_the_input(name):
    member = LOSSES[name]
    scores, target = draw(member)
    value, grad = value_and_grad(member.loss, scores, target)
    turned = target.t().contiguous().t()
    for strided in (scores.t().contiguous().t(), torch.stack([scores, scores], -1)[..., 0], scores.flip(1).flip(1)):
        leaf = strided.detach().requires_grad_()
        result = member.loss(leaf, turned)
        values_are_equal(result.detach(), value)
        values_are_equal(torch.autograd.grad(result, leaf)[0], grad)
    # one list of scores against many targets: the gradient is the sum
    one = scores[:1].clone().requires_grad_()
    result = member.loss(one.expand(6, 9), target)
    whole, whole_grad = value_and_grad(member.loss, scores[:1].repeat(6, 1), target)
    values_are_equal(result.detach(), whole)
    values_are_equal(torch.autograd.grad(result, one)[0], whole_grad.sum(0, keepdim=True))
    values_are_equal(member.loss(scores, target[:1].expand(6, 9)), member.loss(scores, target[:1].repeat(6, 1)))


@every_loss
def test_inputs_stay_as_they_are(name):
    member = LOSSES[name]
    scores, target = draw(member)
    where = torch.rand(6, 9, generator=seeded(3)) < 0.8
    scores = scores.masked_fill(~where, math.nan).requires_grad_()
    before = [x.detach().clone() for x in (scores, target, where)]
    version = [x._version for x in (scores, target, where)]
    member.loss(scores, target, where=where).backward()
    torch.testing.assert_close([scores.detach(), target, where], before, rtol=0, atol=0, equal_nan=True)
    assert [x._version for x in (scores, target, where)] == version


@every_loss_of_relevance
def test_relevance_as_numbers(name):
    member = LOSSES[name]
    scores, relevant = draw(member)
    for dtype in (torch.int64, torch.uint8, torch.float32, torch.float64, torch.bfloat16):
        assert torch.equal(member.loss(scores, relevant.to(dtype)), member.loss(scores, relevant))


# ---- losses: ways to call --------------------------------------------------------------------------------------------


@every_loss
def test_functional_transforms(name):
    member = LOSSES[name]
    scores, target = draw(member)
    _, grad = value_and_grad(member.loss, scores, target)
    values_are_equal(torch.func.grad(member.loss)(scores, target), grad)
    alone = [value_and_grad(member.loss, s, t) for s, t in zip(scores, target, strict=True)]
    values, grads = (torch.stack(x) for x in zip(*alone, strict=True))
    values_are_equal(torch.func.vmap(member.loss)(scores, target), values)
    if name != "histogram":
        values_are_equal(torch.func.vmap(partial(member.loss, reduction="none"))(scores, target), values)
    values_are_equal(torch.func.vmap(torch.func.grad(member.loss))(scores, target), grads)
    values_are_equal(torch.func.vmap(member.loss, in_dims=(1, None))(scores.t().contiguous(), target[0])[0], values[0])
    values_are_equal(torch.func.vmap(member.loss, in_dims=(None, 0))(scores[0], target)[0], values[0])
    where = torch.arange(9) < torch.tensor([9, 7, 5, 3, 2, 8]).unsqueeze(1)
    padded = scores.masked_fill(~where, math.nan)
    each = torch.stack([member.loss(s[w], t[w]) for s, t, w in zip(scores, target, where, strict=True)])
    values_are_equal(torch.func.vmap(lambda s, t, w: member.loss(s, t, where=w))(padded, target, where), each)
    one = torch.func.vmap(lambda t, w: member.loss(padded[1], t, where=w))(target[[1, 1]], where[[1, 4]])
    values_are_equal(one[0], each[1])


@every_loss
def test_nan_in_gives_nan_out_where_values_cannot_be_read(name):
    member = LOSSES[name]
    scores, target = draw(member)
    scores[2, 5] = math.nan
    values = torch.func.vmap(member.loss)(scores, target)
    assert values.isnan().tolist() == [False, False, True, False, False, False]


@every_loss
def test_module_is_the_function(name):
    member = LOSSES[name]
    scores, target = draw(member)
    where = torch.rand(6, 9, generator=seeded(3)) < 0.8
    where[:, :2] = True
    module = member.module(**member.options)
    assert torch.equal(module(scores, target), member.loss(scores, target))
    value = member.loss(scores, target, where=where)
    assert torch.equal(module(scores, target, where), value)
    assert module(scores, target, where=where, return_stats=True)[1].total == 6
    assert list(module.parameters()) == []
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copied(scores, target, where), value)
        assert repr(copied) == repr(module)
    wrapped = copy.deepcopy(EmbeddingLoss(module))
    if member.target == "relevant":
        rows = torch.randn(6, 4, generator=seeded())
        assert torch.equal(wrapped(rows, [0, 0, 1, 1, 2, 2]), EmbeddingLoss(member.loss)(rows, [0, 0, 1, 1, 2, 2]))


@every_loss
def test_repr_shows_the_options(name):
    member = LOSSES[name]
    text = repr(member.module(**member.options))
    assert text.startswith(f"{member.module.__name__}(")
    for option, value in member.options.items():
        assert getattr(value, "__name__", f"{option}={value!r}") in text
    assert " at 0x" not in text
    parameters = inspect.signature(member.module).parameters
    shared = set(inspect.signature(member.function).parameters) & set(parameters)
    assert set(parameters) == shared
    for option in shared - {"rank_fn"}:
        assert parameters[option].default == inspect.signature(member.function).parameters[option].default


@every_loss
def test_a_hundred_steps_of_descent_raise_the_exact_metric(name):
    member = LOSSES[name]
    x = torch.randn(24, 16, generator=seeded(4), dtype=F64).requires_grad_()
    others = ~torch.eye(24, dtype=torch.bool)
    labels = torch.arange(24) // 4
    target = (labels.unsqueeze(1) == labels)[others].view(24, 23)
    metric = sodeep.average_precision
    if member.target != "relevant":
        meaning = torch.randn(24, 16, generator=seeded(5), dtype=F64)  # similarities that can be reached
        target = torch.nn.functional.cosine_similarity(meaning.unsqueeze(1), meaning, dim=-1)[others].view(24, 23)
        metric = sodeep.spearman_corr if member.target == "target" else sodeep.asp
    if member.target == "relevance":
        target, metric = 3 * target.clamp(min=0), partial(sodeep.ndcg, k=3)

    def scores() -> Tensor:
        unit = torch.nn.functional.normalize(x)
        return (unit @ unit.t())[others].view(24, 23)

    before = metric(scores().detach(), target).mean()
    optimizer = torch.optim.SGD([x], lr=member.lr, momentum=0.9)
    for _ in range(100):
        optimizer.zero_grad()
        member.loss(scores(), target).backward()
        optimizer.step()
    assert metric(scores().detach(), target).mean() > before + 0.15


# ---- losses: bad input -----------------------------------------------------------------------------------------------

FINITE = "Mask such items out with where=, or find the step that made them (torch.autograd.set_detect_anomaly)."


def bad_input(target: str) -> list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]]:
    """What every function of ``(scores, target, where=...)`` refuses, and in which words."""
    scores, good = torch.zeros(2, 3), torch.tensor([[0.0, 1, 0], [1, 0, 1]])
    nan = scores.clone()
    nan[1, 2] = math.nan
    kind = "a boolean tensor of the shape of `scores`" if target == "relevant" else "a torch.Tensor"
    convert = "" if target == "relevant" else f" Convert it first: torch.as_tensor({target})."
    cases: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (
            TypeError,
            "`scores` must be a torch.Tensor, got list. Convert it first: torch.as_tensor(scores).",
            ([0.1, 0.2], good),
            {},
        ),
        (
            TypeError,
            "`scores` must be real floating point, got dtype int64. Convert it first: scores.float().",
            (scores.long(), good),
            {},
        ),
        (
            TypeError,
            "`scores` must be real floating point, got dtype complex64. Convert it first: scores.real.",
            (scores + 0j, good),
            {},
        ),
        (
            ValueError,
            "`scores` must have a last axis of at least one item, got shape (). "
            "The last axis is the list; leading axes are batch.",
            (scores[0, 0], good[0, 0]),
            {},
        ),
        (
            ValueError,
            "`scores` must have a last axis of at least one item, got shape (2, 0). "
            "The last axis is the list; leading axes are batch.",
            (scores[:, :0], good[:, :0]),
            {},
        ),
        (
            ValueError,
            f"`scores` must be finite, got 1 NaN or infinite of 6 values, the first (nan) at index (1, 2). {FINITE}",
            (nan, good),
            {},
        ),
        (
            ValueError,
            f"`scores` must be finite, got 6 NaN or infinite of 6 values, the first (-inf) at index (0, 0). {FINITE}",
            (scores - math.inf, good),
            {},
        ),
        (TypeError, f"`{target}` must be {kind}, got list.{convert}", (scores, [0, 1]), {}),
        (
            ValueError,
            f"`{target}` must have the shape of `scores` (2, 3), got (3,).",
            (scores, good[0]),
            {},
        ),
        (
            ValueError,
            f"`{target}` must have the shape of `scores` (3, 1), got (3,). Drop the extra axis: scores.squeeze(-1).",
            (scores[0, :, None], good[0]),
            {},
        ),
        (
            ValueError,
            f"`{target}` must have the shape of `scores` (3,), got (3, 1). Drop the extra axis: {target}.squeeze(-1).",
            (scores[0], good[0, :, None]),
            {},
        ),
        (
            ValueError,
            f"`{target}` must be on the device of `scores` (cpu), got meta. Move it: {target}.to(scores.device).",
            (scores, good.to("meta")),
            {},
        ),
        (
            TypeError,
            "`where` must be a boolean tensor (True = a real item), got dtype int64. Convert it: where.bool().",
            (scores, good),
            {"where": good.long()},
        ),
        (
            TypeError,
            "`where` must be a boolean tensor (True = a real item), got list. Convert it: where.bool().",
            (scores, good),
            {"where": [True, False, True]},
        ),
        (
            ValueError,
            "`where` must have the shape of `scores` (2, 3), got (2, 4).",
            (scores, good),
            {"where": torch.ones(2, 4).bool()},
        ),
        (
            ValueError,
            "`where` must be on the device of `scores` (cpu), got meta. Move it: where.to(scores.device).",
            (scores, good),
            {"where": (good > 2).to("meta")},
        ),
    ]
    if target == "relevant":
        for dtype, other in (("float32", good / 2), ("int64", (good - 2).long()), ("float32", good * math.nan)):
            message = (
                f"`relevant` must be boolean (or all 0 and 1), got dtype {dtype} with other values. "
                "Say what counts as relevant, for example relevant > 0."
            )
            cases.append((ValueError, message, (scores, other), {}))
    else:
        message = (
            f"`{target}` must be finite, got 1 NaN or infinite of 6 values, the first (nan) at index (1, 2). {FINITE}"
        )
        cases.append((ValueError, message, (scores, nan), {}))
    return cases


def refuses(function: Callable[..., Any], target: str) -> None:
    for error, message, arguments, options in bad_input(target):
        with pytest.raises(error, match=exactly(message)):
            function(*arguments, **options)


@every_loss
def test_bad_input(name):
    refuses(LOSSES[name].loss, LOSSES[name].target)


def options_of(member: Member) -> dict[str, Any]:
    """The options of a loss and their defaults, without switches and rank functions."""
    parameters = inspect.signature(member.module).parameters.items()
    return {name: p.default for name, p in parameters if not name.endswith("rank_fn") and name != "include_self"}


@every_loss
def test_bad_option_is_refused_where_it_is_given(name):
    """By the function, and by the Module when it is built, in the same words."""
    member = LOSSES[name]
    scores, target = draw(member)
    for option in options_of(member):
        for bad in ("nonsense", math.nan, [1.5, "x"]):
            with pytest.raises(ValueError, match=f"^`{option}` must be .*, got .*") as said:
                member.loss(scores, target, **{option: bad})
            with pytest.raises(ValueError, match=exactly(str(said.value))):
                member.module(**{**member.options, option: bad})
    if member.module in (sodeep.QuantizedAPLoss, sodeep.HistogramLoss):
        with pytest.raises(ValueError, match=exactly("`low` must be below `high`, got low=1 and high=1.0.")):
            member.module(low=1)
    if member.module is sodeep.ASPLoss:
        for option in ("rank_fn", "semantic_rank_fn"):
            with pytest.raises(TypeError, match=f"^`{option}` must be a function of scores"):
                member.module(**{option: "lstm"})


@every_loss
def test_options_may_be_numpys_numbers(name):
    member = LOSSES[name]
    scores, target = draw(member)
    numbers = {option: value for option, value in options_of(member).items() if type(value) in (int, float)}
    numpys = {option: np.int64(x) if type(x) is int else np.float64(x) for option, x in numbers.items()}
    assert torch.equal(member.loss(scores, target, **numpys), member.loss(scores, target, **numbers))
    assert repr(member.module(**{**member.options, **numpys})) == repr(member.module(**{**member.options, **numbers}))
    halves = {option: (np.float32(0.5), 0.5) for option, value in numbers.items() if type(value) is float}
    for option, (numpys_half, half) in halves.items():
        assert torch.equal(
            member.loss(scores, target, **{option: numpys_half}), member.loss(scores, target, **{option: half})
        )


# ---- metrics ---------------------------------------------------------------------------------------------------------

METRICS = {
    "spearman_corr": sodeep.spearman_corr,
    "asp": sodeep.asp,
    "average_precision": sodeep.average_precision,
    "average_precision_at_3": partial(sodeep.average_precision, k=3),
    "average_precision_of_all": partial(sodeep.average_precision, k=3, divisor="relevant"),
    "trapezoidal_ap": sodeep.trapezoidal_ap,
    "map_at_r": sodeep.map_at_r,
    "r_precision": sodeep.r_precision,
    "recall_at_3": partial(sodeep.recall_at_k, k=3),
    "hit_rate_at_3": partial(sodeep.hit_rate_at_k, k=3),
    "median_rank": sodeep.median_rank,
    "reciprocal_rank": sodeep.reciprocal_rank,
    "reciprocal_rank_3": partial(sodeep.reciprocal_rank, k=3),
    "precision_at_3": partial(sodeep.precision_at_k, k=3),
    "dcg": sodeep.dcg,
    "ndcg": sodeep.ndcg,
    "ndcg_3": partial(sodeep.ndcg, k=3, gain="linear"),
    "expected_reciprocal_rank": partial(sodeep.expected_reciprocal_rank, max_grade=3),
    "expected_reciprocal_rank_3": partial(sodeep.expected_reciprocal_rank, max_grade=3, k=3),
    "kendall_tau": sodeep.kendall_tau,
    "weighted_tau": sodeep.weighted_tau,
    "pairwise_accuracy": sodeep.pairwise_accuracy,
    "rbo": sodeep.rbo,
}
"""All but `pmrp`, which has codes in place of relevance."""
ORDERS = {
    "spearman_corr": "target",
    "asp": "semantic",
    "kendall_tau": "target",
    "weighted_tau": "target",
    "pairwise_accuracy": "target",
    "rbo": "target",
    "dcg": "relevance",
    "ndcg": "relevance",
    "ndcg_3": "relevance",
    "expected_reciprocal_rank": "relevance",
    "expected_reciprocal_rank_3": "relevance",
}
"""The name of the second argument of metrics that take no relevance of 0 and 1."""
TWO_ORDERS = "two items with different scores and different targets"
METRIC_NEEDS = {
    "spearman_corr": TWO_ORDERS,
    "kendall_tau": TWO_ORDERS,
    "weighted_tau": TWO_ORDERS,
    "pairwise_accuracy": "two items with different targets",
    "ndcg": "an item of positive relevance",
    **dict.fromkeys(["asp", "dcg", "precision_at_k", "expected_reciprocal_rank", "rbo"], "an item"),
}

every_metric = pytest.mark.parametrize("name", METRICS)
few_values_or_many = pytest.mark.parametrize("values", [None, 3])


def draw_for(name: str, lists: int, n: int, seed: int = 0, values: int | None = None) -> tuple[Tensor, Tensor]:
    """Scores (lists, n), float64, and a second argument for which every list is defined; `values` = distinct scores."""
    generator = seeded(seed)
    scores = torch.randn(lists, n, dtype=F64, generator=generator)
    if values is not None:
        scores = torch.randint(values, (lists, n), generator=generator).to(F64) - values / 2
    if name in ORDERS:
        other = torch.randint(4, (lists, n), generator=generator).to(F64)
        other[:, :2] = torch.tensor([0.0, 1.0])  # never constant
        scores[:, :2] += torch.tensor([0.0, 0.5])
        return scores, other
    relevant = torch.rand(lists, n, generator=generator) < 0.3
    relevant[:, 0] = True
    return scores, relevant


@every_metric
@few_values_or_many
def test_metric_of_a_batch_is_that_of_its_lists(name, values):
    metric = METRICS[name]
    scores, other = draw_for(name, 12, 9, values=values)
    expected = torch.stack([metric(s, o) for s, o in zip(scores, other, strict=True)])
    assert expected.dtype == F64
    for shape in [(12,), (3, 4), (2, 1, 6)]:
        result = metric(scores.reshape(*shape, 9), other.reshape(*shape, 9))
        torch.testing.assert_close(result, expected.reshape(shape), rtol=0, atol=1e-15)
    for chunk_size in (1, 5, 100):
        assert torch.equal(metric(scores, other, chunk_size=chunk_size), metric(scores, other))
    strided = scores.T.contiguous().T, other.T.contiguous().T
    assert torch.equal(metric(*strided), metric(scores, other))
    one = scores[:1].expand(12, 9), other[:1].expand(12, 9)
    assert torch.equal(metric(*one), metric(scores[:1], other[:1]).expand(12))


@every_metric
@few_values_or_many
def test_metric_is_blind_to_the_order_of_items(name, values):
    metric = METRICS[name]
    scores, other = draw_for(name, 12, 9, values=values)
    for seed in range(3):
        order = torch.randperm(9, generator=seeded(seed))
        torch.testing.assert_close(metric(scores[:, order], other[:, order]), metric(scores, other), rtol=0, atol=1e-14)


@every_metric
@few_values_or_many
def test_metric_of_masked_is_that_of_deleted(name, values):
    metric = METRICS[name]
    scores, other = draw_for(name, 10, 9, values=values)
    where = torch.rand(10, 9, generator=seeded(5)) < 0.6
    where[:, :2] = True
    expected = torch.stack([metric(s[w], o[w]) for s, o, w in zip(scores, other, where, strict=True)])
    for fill in (0.0, -1.0, 1e9, -1e9, math.nan, math.inf, -math.inf):
        masked_other = other if other.dtype == torch.bool else other.masked_fill(~where, fill)
        result = metric(scores.masked_fill(~where, fill), masked_other, where=where)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-14)


@every_metric
def test_metric_sees_the_order_of_scores_only(name):
    metric = METRICS[name]
    scores, other = draw_for(name, 10, 9)
    expected = metric(scores, other)
    for moved in (scores - 100, scores * 1e-20, scores * 1e20, scores.exp()):  # all below zero, tiny, huge, all above
        assert torch.equal(metric(moved, other), expected)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        exact = scores.argsort().argsort().to(dtype)
        assert metric(exact, other).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(metric(exact, other), expected.float(), rtol=0, atol=0)


@every_metric
def test_metric_is_nan_with_one_warning_where_undefined(name):
    metric = METRICS[name]
    scores, other = draw_for(name, 12, 9)
    expected = metric(scores, other)
    where = torch.ones(12, 9, dtype=torch.bool)
    where[[2, 7, 8]] = False
    shown = getattr(metric, "func", metric).__name__
    message = f"{shown} is NaN for 3 of 12 lists: a list needs {METRIC_NEEDS.get(shown, 'a relevant item')}."
    with pytest.warns(UndefinedMetricWarning, match=exactly(message)) as caught:
        result = metric(scores.view(3, 4, 9), other.view(3, 4, 9), where=where.view(3, 4, 9), chunk_size=5)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    expected[[2, 7, 8]] = math.nan
    assert result.shape == (3, 4)
    torch.testing.assert_close(result.flatten(), expected, rtol=0, atol=1e-15, equal_nan=True)


@every_metric
def test_metric_has_no_gradient_and_leaves_its_inputs(name):
    metric = METRICS[name]
    scores, other = draw_for(name, 4, 6)
    scores.requires_grad_()
    before, version = (scores.detach().clone(), other.clone()), (scores._version, other._version)
    assert not metric(scores, other).requires_grad
    assert torch.equal(scores.detach(), before[0])
    assert torch.equal(other, before[1])
    assert (scores._version, other._version) == version


@every_metric
def test_metric_of_no_lists(name):
    assert METRICS[name](torch.zeros(0, 5), torch.zeros(0, 5)).shape == (0,)
    assert METRICS[name](torch.zeros(0, 2, 5), torch.zeros(0, 2, 5)).shape == (0, 2)


@every_metric
def test_metric_refuses_bad_input(name):
    refuses(METRICS[name], ORDERS.get(name, "relevant"))


def test_pmrp_keeps_the_contract():
    """The same for the metric that takes class codes."""
    generator = seeded()
    scores = torch.randint(4, (5, 9), generator=generator).to(F64)
    queries, gallery = ((torch.rand(rows, 6, generator=generator) < 0.3).long() for rows in (5, 9))
    gallery[:5] = queries
    expected = sodeep.pmrp(scores, queries, gallery)
    assert (expected.dtype, expected.shape) == (F64, (5,))
    order, lists = torch.randperm(9, generator=generator), torch.randperm(5, generator=generator)
    values_are_equal(sodeep.pmrp(scores[:, order], queries, gallery[order]), expected)
    values_are_equal(sodeep.pmrp(scores[lists], queries[lists], gallery), expected[lists])
    for chunk_size in (1, 2, 100):
        assert torch.equal(sodeep.pmrp(scores, queries, gallery, chunk_size=chunk_size), expected)
    for junk in (0.0, 1e9, math.nan, math.inf):
        pad = torch.cat([scores, torch.full((5, 2), junk, dtype=F64)], 1)
        longer, where = torch.cat([gallery, queries[:2]]), torch.arange(11) < 9
        values_are_equal(sodeep.pmrp(pad, queries, longer, where=where), expected)
    assert torch.equal(sodeep.pmrp(scores.half(), queries.bool(), gallery.bool()), expected.float())
    assert not sodeep.pmrp(scores.requires_grad_(), queries, gallery).requires_grad
    nan = torch.where(torch.arange(9) == 8, math.nan, scores.detach())
    message = f"`scores` must be finite, got 5 NaN or infinite of 45 values, the first (nan) at index (0, 8). {FINITE}"
    with pytest.raises(ValueError, match=exactly(message)):
        sodeep.pmrp(nan, queries, gallery)


# ---- losses, metrics and rank functions: lists of many lengths under torch.compile -----------------------------------

RANK_FUNCTIONS = {
    "exact_rank": exact_rank,
    "sigmoid_rank": sigmoid_rank,
    "laplace_rank": laplace_rank,
    "blackbox_rank": sodeep.blackbox_rank,
    "straight_through": sodeep.straight_through(laplace_rank),
    "with_width": sodeep.with_width(laplace_rank, 0.5),
    "set": sodeep.build_sorter("set", frequencies=[4]).double().freeze(),
}


def calls_of(name: str) -> tuple[Callable[..., Any], Callable[[int], tuple[Tensor, ...]]]:
    """A function of lists, and the tensors to call it with for lists of `n`."""
    if name in RANK_FUNCTIONS:
        return RANK_FUNCTIONS[name], lambda n: (draw(LOSSES["map"], 4, n)[0],)
    if name.startswith("metric "):
        name = name.removeprefix("metric ")
        return METRICS[name], lambda n: draw_for(name, 4, n)
    if name == "pmrp":
        codes = torch.rand(40, 6, generator=seeded()) < 0.3
        return sodeep.pmrp, lambda n: (draw(LOSSES["map"], 4, n)[0], codes[:4], codes[:n])
    if name == "EmbeddingLoss":
        return EmbeddingLoss(losses.SmoothAPLoss()), lambda n: (draw(LOSSES["map"], n, 4)[0], torch.arange(n) // 2)
    if name == "CrossModalLoss":
        return CrossModalLoss(losses.SmoothAPLoss()), lambda n: (draw(LOSSES["map"], n, 4)[0],) * 2
    member = LOSSES[name]
    if "rank_fn" not in member.options:
        return member.loss, lambda n: draw(member, 4, n)
    return partial(member.function, **{**member.options, "rank_fn": laplace_rank}), lambda n: draw(member, 4, n)


every_function = pytest.mark.parametrize(
    "name",
    [*RANK_FUNCTIONS, *LOSSES, *(f"metric {name}" for name in METRICS), "pmrp", "EmbeddingLoss", "CrossModalLoss"],
)


@every_function
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, from tracing
def test_lists_of_twenty_lengths_take_two_compilations(name):
    """One for the first length, one for all others, in one graph each; for a loss also one without a gradient.

    At the first length a loss is compiled backward too.
    """
    function, arguments = calls_of(name)
    of_loss = name in LOSSES
    aot = torch._dynamo.lookup_backend("aot_eager")
    compilations = 0

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        nonlocal compilations
        compilations += 1
        return aot(graph, inputs) if of_loss and compilations <= 2 else graph.forward

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    masked = "Loss" not in name
    for n in range(5, 25):
        real = [n, n - 2, 0, 2] if of_loss else [n, n, n - 1, 2]
        options = {"where": torch.arange(n) < torch.tensor(real).unsqueeze(1)} if masked else {}
        scores, *rest = arguments(n)
        if of_loss and n == 5:
            values_are_equal(compiled(scores, *rest, **options), function(scores, *rest, **options))
            assert compilations == 1
        if of_loss and n in (5, 7):
            values_are_equal(*(value_and_grad(loss, scores, *rest, **options) for loss in (compiled, function)))
            continue
        result = compiled(scores.requires_grad_(), *rest, **options)
        if n % 7 == 0:
            values_are_equal(result.detach(), function(scores, *rest, **options).detach())
    assert compilations <= 2 + of_loss


# ---- losses, metrics and rank functions: forward mode, and tensors of inference mode ---------------------------------


def forward_derivatives(function: Callable[[Tensor], Tensor], scores: Tensor, along: Tensor) -> list[Tensor]:
    """By `torch.func.jvp`, by `torch.func.jacfwd` and by dual numbers."""
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(scores, along)
        tangent = torch.autograd.forward_ad.unpack_dual(function(dual)).tangent
    by_jvp = torch.func.jvp(function, (scores,), (along,))[1]
    by_jacobian = (torch.func.jacfwd(function)(scores) * along).sum((-2, -1))
    return [by_jvp, by_jacobian, torch.zeros_like(by_jvp) if tangent is None else tangent]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # of torch's jvp itself
@every_function
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_forward_mode_is_reverse_mode(name, dtype):
    function, arguments = calls_of(name)
    scores, *rest = arguments(8)
    if name in ("set", "CrossModalLoss"):
        dtype = F64  # that of its weights, of its other argument
    scores, weights = scores.to(dtype), torch.randn(4, 8, generator=seeded(7), dtype=F64).to(dtype)
    for where in (None, torch.arange(8) < 6):
        options = {} if where is None or name in ("EmbeddingLoss", "CrossModalLoss") else {"where": where}

        def value(s: Tensor, options: Mapping[str, Any] = options) -> Tensor:
            result = function(s, *rest, **options)
            return (result * weights).sum() if name in RANK_FUNCTIONS else result.sum()

        along = torch.randn(scores.shape, generator=seeded(8), dtype=F64).to(dtype)
        if name == "blackbox_rank":
            message = (
                "`blackbox_rank` has no forward-mode derivative: its gradient depends on the incoming one. "
                "Use reverse mode (backward, torch.func.grad), or another rank function."
            )
            with pytest.raises(NotImplementedError, match=exactly(message)):
                forward_derivatives(value, scores, along)
            continue
        leaf = scores.clone().requires_grad_()
        result = value(leaf)
        by_reverse = torch.autograd.grad(result, leaf)[0] if result.requires_grad else torch.zeros_like(leaf)
        tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
        for tangent in forward_derivatives(value, scores, along):
            torch.testing.assert_close(tangent, (by_reverse * along).sum(), **tolerance)


@every_function
def test_tensors_made_in_inference_mode_are_as_good_as_others(name):
    function, arguments = calls_of(name)
    scores, *rest = arguments(8)
    options = {} if name in ("EmbeddingLoss", "CrossModalLoss") else {"where": torch.arange(8) < 6}
    with torch.inference_mode():
        given = [x.clone() for x in rest]
        masked = {option: mask.expand(4, 8).clone() for option, mask in options.items()}
        within = function(scores, *rest, **options)
    leaves = [scores.clone().requires_grad_() for _ in range(2)]
    results = [function(leaves[0], *rest, **options), function(leaves[1], *given, **masked)]
    values_are_equal(results[1].detach(), results[0].detach())
    values_are_equal(within.clone(), results[0].detach())
    if results[0].requires_grad:
        values_are_equal(*(torch.autograd.grad(r.sum(), x)[0] for r, x in zip(results, leaves, strict=True)))


# ---- losses and rank functions: lists without a real item ------------------------------------------------------------

EMPTY = {
    "one": torch.tensor([[True], [False], [True], [True]]),
    "all": torch.zeros(4, 1, dtype=torch.bool),
    "all but one item": torch.tensor([[True], [False], [False], [False]]),
}


@pytest.mark.parametrize("name", [*RANK_FUNCTIONS, *LOSSES])
@pytest.mark.parametrize("n", [1, 2, 6])
@pytest.mark.filterwarnings("ignore::sodeep.UndefinedListWarning")
def test_a_list_without_a_real_item_has_a_finite_gradient(name, n):
    """Step by step: `set_detect_anomaly` stops at a NaN that a mask would hide."""
    function, arguments = calls_of(name)
    scores, *rest = (x[:, :n] for x in arguments(6))
    for kind, rows in EMPTY.items():
        where = rows.expand(4, n).clone()
        if kind == "all but one item":
            where[:, 1:] = False
        masked = scores.masked_fill(~where, math.nan).requires_grad_()
        with torch.autograd.set_detect_anomaly(True):
            result = function(masked, *rest, where=where)
            if result.requires_grad:
                (grad,) = torch.autograd.grad(result.sum(), masked)
                torch.testing.assert_close(grad[~where], torch.zeros_like(grad[~where]), rtol=0, atol=0)
                assert grad.isfinite().all(), kind
        assert result.isfinite().all(), kind
