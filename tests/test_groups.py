"""Groups of unequal length in flat tensors: padding, the group= of every loss and metric, and batches of groups."""

import inspect
import math
import re
import warnings
from functools import partial
from itertools import cycle, islice

import numpy as np
import pytest
import torch
from test_contract import LOSSES, METRICS, draw as draw_lists, draw_for

import sodeep
from sodeep import GroupBatchSampler, Groups, UndefinedListWarning, UndefinedMetricWarning, pad_groups, unpad_groups

F64 = torch.float64
IDS = torch.tensor([7, 7, 3, 3, 3, 9, 3, 7, 1, 1])
"""Not sorted, 3 and 7 in two places; 9 of one item."""
ROWS = [[0, 1, 7], [2, 3, 4, 6], [5], [8, 9]]


def exactly(message):
    return f"^{re.escape(message)}$"


FORMS = {
    "int64": IDS,
    "int32": IDS.int(),
    "uint8": IDS.to(torch.uint8),
    "float": IDS / 2,
    "array": IDS.numpy(),
    "list": IDS.tolist(),
    "large": IDS * 10**17 - 5 * 10**17,
    "negative": -IDS,
    "strings": [f"query {i}" for i in IDS.tolist()],
    "array of strings": np.array([f"query {i}" for i in IDS.tolist()]),
    "tuple of bytes": tuple(str(i).encode() for i in IDS.tolist()),
    "Groups": Groups(IDS),
}


@pytest.mark.parametrize("form", FORMS)
def test_padding_and_back(form):
    values = torch.arange(10.0)
    padded, where = pad_groups(values, FORMS[form])
    assert [row[mask].tolist() for row, mask in zip(padded, where, strict=True)] == ROWS
    assert padded.shape == where.shape == (4, 4)
    assert (padded[~where] == 0).all()
    assert torch.equal(unpad_groups(padded, FORMS[form]), values)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, F64])
def test_padding_keeps_what_an_item_holds(dtype):
    values = torch.arange(60).view(10, 3, 2).to(dtype)
    padded, where = pad_groups(values, IDS)
    assert padded.dtype == dtype
    assert padded.shape == (4, 4, 3, 2)
    assert torch.equal(padded[1, where[1]], values[ROWS[1]])
    assert torch.equal(unpad_groups(padded, IDS), values)


def test_groups_know_their_ids_and_lengths():
    groups = Groups(IDS)
    assert len(groups) == 4
    assert IDS[groups.first].tolist() == [7, 3, 9, 1]
    assert groups.lengths.tolist() == [3, 4, 1, 2]


def test_padding_has_a_gradient():
    values = torch.arange(10.0, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: pad_groups(v, IDS)[0], values)
    assert torch.autograd.gradcheck(lambda v: unpad_groups(pad_groups(v, IDS)[0] ** 2, IDS), values)


@pytest.mark.parametrize("seed", range(3))
def test_many_groups_against_a_loop(seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, [5, 300, 10**15][seed], size=1000)
    rows = {}
    for item, key in enumerate(ids.tolist()):
        rows.setdefault(key, []).append(item)
    padded, where = pad_groups(torch.arange(1000), ids)
    assert [row[mask].tolist() for row, mask in zip(padded, where, strict=True)] == list(rows.values())


def test_no_items():
    padded, where = pad_groups(torch.zeros(0), [])
    assert padded.shape == where.shape == (0, 1)
    with pytest.warns(UndefinedListWarning):
        assert sodeep.softmax_loss(torch.zeros(0), torch.zeros(0), group=[]) == 0
    assert sodeep.ndcg(torch.zeros(0), torch.zeros(0), group=[]).shape == (0,)


# ---- losses and metrics ----------------------------------------------------------------------------------------------


def flat_of(lists):
    """Lists of 9 with 9, 7, 5, 3, 2 and 8 real items, as flat tensors in a shuffled order with their ids."""
    where = torch.arange(9) < torch.tensor([9, 7, 5, 3, 2, 8]).unsqueeze(1)
    ids = torch.tensor([40, 7, -3, 12, 5, 6]).unsqueeze(1).expand(6, 9)[where]
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))
    first = [int((ids[order] == i).nonzero()[0]) for i in (40, 7, -3, 12, 5, 6)]
    return [x[where][order] for x in lists], ids[order], where, np.argsort(first)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "histogram"])
def test_a_loss_of_groups_is_that_of_one_call_a_group(name):
    member = LOSSES[name]
    lists = draw_lists(member)
    (scores, target), ids, where, rows = flat_of(lists)
    scores.requires_grad_()
    each = [member.loss(s[w], t[w]) for s, t, w in zip(*lists, where, strict=True)]
    values = member.loss(scores, target, group=ids, reduction="none")
    torch.testing.assert_close(values.detach(), torch.stack(each)[rows], rtol=1e-12, atol=1e-12)
    value = member.loss(scores, target, group=[f"q{i}" for i in ids.tolist()])
    torch.testing.assert_close(value.detach(), torch.stack(each).mean(), rtol=1e-12, atol=1e-12)
    padded = lists[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(member.loss(padded, lists[1], where=where), padded)
    order = flat_of([torch.arange(54).view(6, 9)])[0][0]
    (gradient,) = torch.autograd.grad(value, scores)
    torch.testing.assert_close(gradient, expected.flatten()[order], rtol=1e-12, atol=1e-12)
    module = member.module(**member.options)
    torch.testing.assert_close(module(scores, target, group=Groups(ids)), value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_of_groups_is_that_of_one_call_a_group(name):
    metric = METRICS[name]
    lists = draw_for(name, 6, 9, values=3)
    (scores, other), ids, where, rows = flat_of(lists)
    each = torch.stack([metric(s[w], o[w]) for s, o, w in zip(*lists, where, strict=True)])
    torch.testing.assert_close(metric(scores, other, group=ids), each[rows], rtol=0, atol=1e-14)


def test_every_loss_and_metric_says_that_it_takes_groups():
    functions = [*(member.function for member in LOSSES.values()), *(getattr(m, "func", m) for m in METRICS.values())]
    for function in functions:
        assert inspect.signature(function).parameters["group"].kind is inspect.Parameter.KEYWORD_ONLY


def test_a_mask_and_weights_are_flat_as_well():
    generator = torch.Generator().manual_seed(0)
    scores, relevance = torch.randn(10, generator=generator), torch.tensor([1, 2, 0, 3, 1, 2, 0, 0, 0, 1])
    weight = torch.rand(10, generator=generator)
    where = torch.arange(10) != 3
    scores[3] = math.nan
    kept = [[i for i in row if i != 3] for row in ROWS]
    each = torch.stack([sodeep.softmax_loss(scores[i], relevance[i], weight=weight[i]) for i in kept])
    value = sodeep.softmax_loss(scores, relevance, weight=weight, where=where, group=IDS)
    torch.testing.assert_close(value, each.mean())
    each = torch.stack([sodeep.ndcg(scores[i], relevance[i], 2) for i in kept])
    torch.testing.assert_close(sodeep.ndcg(scores, relevance, 2, where, group=IDS), each)
    torch.testing.assert_close(sodeep.ndcg(scores, relevance, where=where, k=2, group=IDS), each)


def test_undefined_groups_are_said_once_where_the_call_is():
    scores, relevance = torch.arange(10.0), torch.zeros(10)
    message = "0 of 4 lists have an item of positive relevance: the loss is a constant 0 for this batch."
    with pytest.warns(UndefinedListWarning, match=exactly(message)) as caught:
        sodeep.softmax_loss(scores, relevance, group=IDS)
    assert [w.filename for w in caught] == [__file__]
    relevance[0] = 1
    message = "ndcg is NaN for 3 of 4 lists: a list needs an item of positive relevance."
    with pytest.warns(UndefinedMetricWarning, match=exactly(message)) as caught:
        assert sodeep.ndcg(scores, relevance, group=IDS).isnan().tolist() == [False, True, True, True]
    assert [w.filename for w in caught] == [__file__]


def test_groups_of_two_are_no_two_outputs():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = partial(sodeep.spearman_loss, rank_fn=sodeep.exact_rank, group=torch.arange(20) // 2)
        loss(torch.arange(20.0), torch.arange(20.0) % 7)


def test_groups_of_one_length_need_no_mask():
    masks = []

    def rank_fn(scores, where=None):
        masks.append(where)
        return sodeep.laplace_rank(scores)

    scores, relevance = torch.randn(12, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 4
    value = sodeep.ndcg_loss(scores, relevance, rank_fn=rank_fn, group=torch.arange(12) // 3)
    assert masks == [None]
    assert value == sodeep.ndcg_loss(scores.view(4, 3), relevance.view(4, 3), rank_fn=rank_fn)


def test_groups_in_transforms_and_under_compile():
    scores, relevance = torch.randn(10, dtype=F64, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 3
    loss = partial(sodeep.softmax_loss, group=Groups(IDS))
    expected = torch.autograd.grad(loss(scores.requires_grad_(), relevance), scores)[0]
    torch.testing.assert_close(torch.func.grad(loss)(scores, relevance), expected)
    batch = torch.func.vmap(loss)(torch.stack([scores, -scores]), torch.stack([relevance, relevance]))
    torch.testing.assert_close(batch[0], loss(scores, relevance))
    message = (
        "`group` must be ids that can be read, got some under torch.compile or torch.func. "
        "Read them outside: group=sodeep.Groups(ids)."
    )
    with pytest.raises(ValueError, match=exactly(message)):
        torch.func.vmap(lambda g: sodeep.softmax_loss(scores, relevance, group=g))(IDS.expand(2, 10))
    with pytest.raises(ValueError, match=exactly(message)):
        torch.func.grad(partial(sodeep.softmax_loss, group=IDS))(scores, relevance)
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(scores, relevance), loss(scores, relevance))


BAD = [
    (
        ValueError,
        "`group` must have shape (n,), an id for each item, got a tensor of shape (10, 1) and dtype int64.",
        (torch.zeros(10), torch.zeros(10), IDS.unsqueeze(1)),
    ),
    (ValueError, "`scores` must have 10 items, one for each id of `group`, got shape (9,).", (torch.zeros(9),) * 2),
    (ValueError, "`relevance` must have 10 items, one for each id of `group`, got shape (9,).", (10, 9)),
    (ValueError, "`scores` must have shape (n,) where `group` is given, got (5, 2).", (torch.zeros(5, 2),) * 2),
    (
        TypeError,
        "`group` must be numbers or strings, got None at index 1. Drop such rows, or give them a label of their own.",
        (10, 10, [1, None, *range(8)]),
    ),
    (
        TypeError,
        "`group` must be all numbers or all strings, got 1 at index 0 and 'a' at index 1. "
        "Make them of one kind, for example with str().",
        (10, 10, [1, "a", *range(8)]),
    ),
    (
        ValueError,
        "`group` must not be NaN, got 1 NaN of 10 labels, the first at index 0. NaN equals nothing, not even itself: "
        "drop those rows.",
        (10, 10, [math.nan, *range(9)]),
    ),
    (TypeError, "`scores` must be a torch.Tensor, got list. Convert it first: torch.as_tensor(scores).", ([0.0] * 10,)),
]


@pytest.mark.parametrize(("error", "message", "arguments"), BAD)
def test_bad_groups(error, message, arguments):
    scores, relevance, group = (*arguments, *[torch.zeros(10), torch.zeros(10), IDS][len(arguments) :])
    scores, relevance = (torch.zeros(x) if isinstance(x, int) else x for x in (scores, relevance))
    for function in (sodeep.softmax_loss, sodeep.SoftmaxLoss(), sodeep.ndcg):
        with pytest.raises(error, match=exactly(message)):
            function(scores, relevance, group=group)


def test_bad_padding():
    message = "`padded` must start with the shape of the padded groups (4, 4), got shape (4, 3)."
    with pytest.raises(ValueError, match=exactly(message)):
        unpad_groups(torch.zeros(4, 3), IDS)
    message = "`values` must have 10 items, one for each id of `group`, got shape (3, 10)."
    with pytest.raises(ValueError, match=exactly(message)):
        pad_groups(torch.zeros(3, 10), IDS)


# ---- batches of groups -----------------------------------------------------------------------------------------------


def test_batches_hold_whole_groups_of_like_length():
    rng = np.random.default_rng(0)
    ids = rng.permutation(np.repeat(np.arange(60), rng.integers(1, 40, size=60)))
    members = {i: np.flatnonzero(ids == i).tolist() for i in range(60)}
    sampler = GroupBatchSampler(ids, max_items=100, seed=3)
    epochs = [list(sampler), list(sampler)]
    assert epochs[0] != epochs[1]
    for batches in epochs:
        assert len(batches) == len(sampler)
        assert sorted(i for batch in batches for i in batch) == list(range(len(ids)))
        padding = 0
        for batch in batches:
            groups = list(dict.fromkeys(ids[batch].tolist()))
            assert batch == [i for g in groups for i in members[g]]
            longest = max(len(members[g]) for g in groups)
            assert len(groups) == 1 or len(groups) * longest <= 100
            padding += len(groups) * longest - len(batch)
        assert padding < 0.15 * len(ids)
    again = GroupBatchSampler(Groups(ids), max_items=100, seed=3)
    again.set_epoch(1)
    assert list(again) == epochs[1]


def test_a_loader_takes_them():
    sampler = GroupBatchSampler(IDS, max_items=4, shuffle=False)
    assert list(sampler) == [[5, 8, 9], [0, 1, 7], [2, 3, 4, 6]]
    loader = torch.utils.data.DataLoader(IDS, batch_sampler=sampler)
    assert [batch.tolist() for batch in loader] == [[9, 1, 1], [7, 7, 7], [3, 3, 3, 3]]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("processes", [1, 2, 3, 40])
def test_processes_share_the_batches_of_an_epoch_out(processes, shuffle):
    ids = np.repeat(np.arange(25), np.arange(25) % 6 + 1)
    single = GroupBatchSampler(ids, max_items=12, shuffle=shuffle, seed=3)
    samplers = [
        GroupBatchSampler(ids, max_items=12, shuffle=shuffle, seed=3, num_replicas=processes, rank=rank)
        for rank in range(processes)
    ]
    steps = -(-len(single) // processes)
    assert [len(sampler) for sampler in samplers] == [steps] * processes
    for _ in range(2):
        dealt = [batch for step in zip(*samplers, strict=True) for batch in step]
        assert dealt == list(islice(cycle(list(single)), steps * processes))


def test_a_sampler_of_nothing_has_no_batches():
    sampler = GroupBatchSampler(torch.zeros(0, dtype=torch.long), max_items=4, num_replicas=2)
    assert (len(sampler), list(sampler)) == (0, [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_items": 1, "num_replicas": 2, "rank": 2}, "`rank` must be a whole number from 0 to 1, got 2."),
        ({"max_items": 1, "num_replicas": 0}, "`num_replicas` must be a whole number of at least 1, got 0."),
        ({"max_items": 0}, "`max_items` must be a whole number of at least 1, got 0."),
        ({"max_items": 1, "seed": -1}, "`seed` must be a whole number of at least 0, got -1."),
        ({"max_items": 1, "shuffle": "yes"}, "`shuffle` must be True or False, got 'yes'."),
    ],
)
def test_bad_options_of_the_sampler(options, message):
    with pytest.raises(ValueError, match=exactly(message)):
        GroupBatchSampler(IDS, **options)
