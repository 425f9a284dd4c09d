"""Scores, relevance and losses from embeddings, against plain loops."""

from __future__ import annotations

import collections
import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from sodeep.losses._common import UndefinedListWarning
from sodeep.losses.embedding import CrossModalLoss, EmbeddingLoss, EmbeddingMemory, pairwise_scores
from sodeep.losses.pair import NTXentLoss
from sodeep.losses.rank import map_loss
from sodeep.ranks import laplace_rank


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def smooth_ap(tau: float):
    """Smooth-AP from its formula, one comparison at a time; the list of a query does not hold the query."""

    def loss(scores: Tensor, relevant: Tensor) -> Tensor:
        precisions = []
        for row, is_positive in zip(scores, relevant.tolist(), strict=True):
            positives = [i for i, p in enumerate(is_positive) if p]
            if not positives:
                continue
            ap = 0
            for i in positives:
                above = {j: torch.sigmoid((row[j] - row[i]) / tau) for j in range(len(row)) if j != i}
                among_positives = 1 + sum(above[j] for j in positives if j != i)
                ap = ap + among_positives / (1 + sum(above.values()))
            precisions.append(ap / len(positives))
        return 1 - sum(precisions) / len(precisions)

    return loss


def hinge(scores: Tensor, relevant: Tensor) -> Tensor:
    """A loss that sees the order of rows and columns only through `relevant`."""
    weight = torch.where(relevant, -1.0, 0.5).to(scores.dtype)
    return (scores * weight + 0.3).relu().square().mean()


def refuses(error: type[Exception], message: str):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


# similarity and relevance


def plain_similarity(a: np.ndarray, b: np.ndarray, similarity: str) -> float:
    if similarity == "euclidean":
        return -math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot if similarity == "dot" else dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_and_relevance_are_those_of_a_plain_loop(similarity, dtype):
    x, y = randn(6, 5, dtype=dtype), randn(4, 5, seed=1, dtype=dtype)
    labels, ref_labels = [3, 1, 3, 2, 1, 3], [1, 3, 7, 3]
    scores, relevant = pairwise_scores(x, labels, similarity=similarity)
    others = [[j for j in range(6) if j != i] for i in range(6)]
    expected = [[plain_similarity(x[i].tolist(), x[j].tolist(), similarity) for j in others[i]] for i in range(6)]
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=dtype))
    assert relevant.tolist() == [[labels[i] == labels[j] for j in others[i]] for i in range(6)]

    scores, relevant = pairwise_scores(x, labels, y, ref_labels, similarity)
    expected = [[plain_similarity(a, b, similarity) for b in y.tolist()] for a in x.tolist()]
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=dtype))
    assert relevant.tolist() == [[a == b for b in ref_labels] for a in labels]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_gradient(similarity):
    x, y = randn(4, 3).requires_grad_(), randn(3, 3, seed=1).requires_grad_()
    labels, ref_labels = [0, 1, 0, 1], [0, 1, 0]
    assert torch.autograd.gradcheck(lambda x: pairwise_scores(x, labels, similarity=similarity)[0], x)
    assert torch.autograd.gradcheck(lambda x, y: pairwise_scores(x, labels, y, ref_labels, similarity)[0], (x, y))
    assert torch.autograd.gradgradcheck(lambda x: pairwise_scores(x, labels, similarity=similarity)[0], x)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_and_equal_rows_stay_and_are_finite(similarity, dtype):
    x = torch.cat([torch.zeros(2, 700, dtype=dtype), randn(1, 700, dtype=dtype).expand(3, 700)]).requires_grad_()
    scores, relevant = pairwise_scores(x, [0, 0, 1, 1, 1], similarity=similarity)
    assert scores.shape == (5, 4)
    assert relevant.sum(1).tolist() == [1, 1, 2, 2, 2]
    at_zero = {"cosine": 0.0, "dot": 0.0, "euclidean": 0.0}[similarity]
    assert scores[0, 0].item() == at_zero
    equal = {"cosine": 1.0, "dot": x[2].square().sum().item(), "euclidean": 0.0}[similarity]
    torch.testing.assert_close(scores[2:, 2:], torch.full((3, 2), equal, dtype=dtype), atol=0, rtol=1e-5)
    scores.square().sum().backward()
    assert x.grad.isfinite().all()
    x.grad = None
    pairwise_scores(x, [0, 0, 1, 1, 1], similarity=similarity)[0].sum().backward()
    assert x.grad.isfinite().all()
    # at distance 0 the gradient is 0: what rows 0 and 1 get comes from the three others, at distance |x|
    if similarity == "euclidean":
        torch.testing.assert_close(x.grad[0], 6 * (x[2] / x[2].norm()).detach())


def test_euclidean_resolves_small_distances_of_long_float32_rows():
    x = randn(1, 64, dtype=torch.float32) * 100
    y = x.clone()
    y[0, 0] += 0.01
    scores, _ = pairwise_scores(x, [0], y, [0], similarity="euclidean")
    torch.testing.assert_close(scores[0, 0], -(y[0, 0] - x[0, 0]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("scale", [1e-36, 1e-20, 1.0, 1e20, 1e37])
def test_cosine_does_not_depend_on_the_scale(scale):
    x = randn(4, 3, dtype=torch.float32)
    torch.testing.assert_close(pairwise_scores(x * scale, [0, 0, 1, 1])[0], pairwise_scores(x, [0, 0, 1, 1])[0])
    scaled = (x * scale).requires_grad_()
    pairwise_scores(scaled, [0, 0, 1, 1])[0][0, 1].backward()
    x.requires_grad_()
    pairwise_scores(x, [0, 0, 1, 1])[0][0, 1].backward()
    torch.testing.assert_close(scaled.grad.double() * scale, x.grad.double(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_half_precision_is_computed_in_float32(dtype, similarity):
    x = randn(6, 5).to(dtype).requires_grad_()
    labels = torch.arange(6) % 3
    with torch.autocast("cpu", torch.bfloat16):
        scores, relevant = pairwise_scores(x, labels, similarity=similarity)
    expected, expected_relevant = pairwise_scores(x.detach().float(), labels, similarity=similarity)
    torch.testing.assert_close(scores, expected, rtol=0, atol=0)
    assert torch.equal(relevant, expected_relevant)
    scores.sum().backward()
    assert x.grad.dtype == dtype


def test_the_same_tensor_as_reference_leaves_self_pairs_out():
    x = randn(4, 3)
    for ref_labels in ([0, 0, 1, 1], torch.tensor([0, 0, 1, 1])):
        scores, relevant = pairwise_scores(x, [0, 0, 1, 1], x, ref_labels)
        expected = pairwise_scores(x, [0, 0, 1, 1])
        assert torch.equal(scores, expected[0])
        assert torch.equal(relevant, expected[1])
    assert pairwise_scores(x, [0, 0, 1, 1], x.clone(), [0, 0, 1, 1])[0].shape == (4, 4)


def test_noncontiguous_embeddings():
    x = randn(3, 5).T
    assert torch.equal(pairwise_scores(x, [0] * 5)[0], pairwise_scores(x.contiguous(), [0] * 5)[0])


# labels

FORMS = {
    "int": torch.tensor([1, 2, 1, 2]),
    "int32": torch.tensor([1, 2, 1, 2], dtype=torch.int32),
    "uint8": torch.tensor([1, 2, 1, 2], dtype=torch.uint8),
    "float": torch.tensor([1.0, 2.0, 1.0, 2.0]),
    "half": torch.tensor([1.0, 2.0, 1.0, 2.0], dtype=torch.float16),
    "column": torch.tensor([[1], [2], [1], [2]]),
    "float column": torch.tensor([[1.0], [2.0], [1.0], [2.0]]),
    "bool column": torch.tensor([[True], [False], [True], [False]]),
    "bool": torch.tensor([True, False, True, False]),
    "strings": ["a", "b", "a", "b"],
    "tuple of strings": ("a", "b", "a", "b"),
    "numpy": np.array([1, 2, 1, 2]),
    "numpy float": np.array([1.0, 2.0, 1.0, 2.0]),
    "numpy big endian": np.array([1, 2, 1, 2], dtype=">i4"),
    "numpy strings": np.array(["a", "b", "a", "b"]),
    "numpy objects": np.array(["a", "b", "a", "b"], dtype=object),
    "list": [1, 2, 1, 2],
    "list of bools": [True, False, True, False],
    "list of tensors": [torch.tensor(1), torch.tensor(2), torch.tensor(1), torch.tensor(2)],
    "large": torch.tensor([10**12 + 1, 10**12 + 2, 10**12 + 1, 10**12 + 2]),
    "large list": [10**12 + 1, 10**12 + 2, 10**12 + 1, 10**12 + 2],
    "large floats": [2.0**24, 2.0**24 + 1, 2.0**24, 2.0**24 + 1],
    "negative": [-1, -2, -1, -2],
    "multi-hot": torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]]),
    "multi-hot float": torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]]),
    "multi-hot bool": torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]]).bool(),
    "multi-hot square": torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]]),
    "matrix": torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]).bool(),
    "matrix without diagonal": torch.tensor([[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]]).bool(),
    "list matrix": [[i % 2 == j % 2 for j in range(4)] for i in range(4)],
}


@pytest.mark.parametrize("form", FORMS)
def test_h7_every_form_of_labels_gives_the_same(form):
    x = randn(4, 3)
    _, relevant = pairwise_scores(x, FORMS[form])
    assert int(relevant.sum()) == 4
    assert int((~relevant).sum()) == 8
    expected = pairwise_scores(x, FORMS["int"])
    assert torch.equal(relevant, expected[1])
    criterion = EmbeddingLoss(hinge)
    assert criterion(x, FORMS[form]).item() == criterion(x, FORMS["int"]).item()


@pytest.mark.parametrize("form", [form for form in FORMS if "matrix" not in form])
def test_reference_labels_take_every_form(form):
    x, y = randn(4, 3), randn(4, 3, seed=1)
    _, relevant = pairwise_scores(x, FORMS[form], y, FORMS[form])
    assert relevant.tolist() == [[i % 2 == j % 2 for j in range(4)] for i in range(4)]


def test_labels_mix_containers_but_not_meanings():
    x = randn(2, 3)
    _, relevant = pairwise_scores(x, torch.tensor([7, 8]), randn(3, 3), np.array([8, 7, 9], dtype=np.int16))
    assert relevant.tolist() == [[False, True, False], [True, False, False]]


def test_multi_hot_rows_are_relevant_when_they_share_a_label():
    labels = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0]])
    _, relevant = pairwise_scores(randn(4, 2), labels, randn(4, 2), labels)
    assert relevant.int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]


def test_relevance_matrix_to_a_reference_set():
    matrix = torch.tensor([[True, False, False], [False, True, True]])
    assert torch.equal(pairwise_scores(randn(2, 4), matrix, randn(3, 4))[1], matrix)
    asymmetric = torch.tensor([[True, True], [False, True]])
    x = randn(2, 4)
    assert pairwise_scores(x, asymmetric, x)[1].tolist() == [[True], [False]]


X = torch.eye(4)
ERRORS = {
    "list": (TypeError, ([[1.0, 0.0]], [0]), "`embeddings` must be a torch.Tensor of shape (n, d), got list."),
    "ints": (
        TypeError,
        (X.long(), [0, 0, 1, 1]),
        "`embeddings` must be real floating point, got a tensor of shape (4, 4) and dtype int64.",
    ),
    "one axis": (
        ValueError,
        (X[0], [0, 0, 1, 1]),
        "`embeddings` must have shape (n, d), one row an item, got shape (4,).",
    ),
    "nan": (
        ValueError,
        (X / X, [0, 0, 1, 1]),
        "`embeddings` must be finite, got 12 NaN or infinite of 16 values, the first (nan) at index (0, 1). "
        "Drop those rows, or find the step that made them (torch.autograd.set_detect_anomaly).",
    ),
    "length": (
        ValueError,
        (X, [0, 0, 1]),
        "`labels` must have shape (4,) or multi-hot (4, c), one label for each row of `embeddings`, "
        "got shape (3,) and dtype int64.",
    ),
    "row": (
        ValueError,
        (X, torch.zeros(1, 4)),
        "`labels` must have shape (4,) or multi-hot (4, c), one label for each row of `embeddings`, "
        "got shape (1, 4) and dtype float32.",
    ),
    "scalar": (
        ValueError,
        (X, 3),
        "`labels` must have shape (4,) or multi-hot (4, c), one label for each row of `embeddings`, "
        "got shape () and dtype int64.",
    ),
    "mixed": (
        TypeError,
        (X, ["a", 1, "a", 1]),
        "`labels` must be numbers or strings, of one kind (a tensor, an array or a list), got ['a', 1, 'a', 1].",
    ),
    "none": (
        TypeError,
        (X, None),
        "`labels` must be numbers or strings, of one kind (a tensor, an array or a list), got None.",
    ),
    "ragged": (
        TypeError,
        (X, [[1], [1, 2], [1], [2]]),
        "`labels` must be numbers or strings, of one kind (a tensor, an array or a list), got [[1], [1, 2], [1], [2]].",
    ),
    "complex": (
        TypeError,
        (X, torch.zeros(4, dtype=torch.complex64)),
        "`labels` must be numbers or strings, got a tensor of shape (4,) and dtype complex64.",
    ),
    "nan label": (
        ValueError,
        (X, [0.0, math.nan, 1.0, math.nan]),
        "`labels` must not be NaN, got 2 NaN of 4 labels, the first at index 1. "
        "NaN equals nothing, not even itself: drop those rows.",
    ),
    "not multi-hot": (
        ValueError,
        (X, torch.tensor([[0, 2]] * 4)),
        "`labels` with two axes must be multi-hot (0 and 1 only), got a tensor of shape (4, 2) and dtype int64 "
        "with other values. One label a row goes in shape (n,).",
    ),
    "not symmetric": (
        ValueError,
        (X, torch.ones(4, 4).triu().bool()),
        "`labels` as a boolean matrix of shape (4, 4) must be symmetric: which rows are relevant to each other. "
        "Multi-hot labels of as many classes as rows go in as numbers: labels.int(). A relevance that is not "
        "symmetric goes in with ref_embeddings=embeddings.",
    ),
    "no ref_labels": (
        ValueError,
        (X, [0, 0, 1, 1], X[:2]),
        "`ref_labels` must be given with `ref_embeddings`, got None. Or give `labels` as a boolean relevance "
        "matrix of shape (4, 2); it is a tensor of shape (4,) and dtype int64.",
    ),
    "no ref_embeddings": (
        ValueError,
        (X, [0, 0, 1, 1], None, [0, 1]),
        "`ref_embeddings` must be given with `ref_labels`, got None.",
    ),
    "ref length": (
        ValueError,
        (X, [0, 0, 1, 1], X[:2], [0]),
        "`ref_labels` must have shape (2,) or multi-hot (2, c), one label for each row of `ref_embeddings`, "
        "got shape (1,) and dtype int64.",
    ),
    "ref kind": (
        ValueError,
        (X, [0, 0, 1, 1], X[:2], [0.0, 1.0]),
        "`ref_labels` must be of the form of `labels` (axes, classes and dtype), "
        "got a tensor of shape (2,) and dtype float64 against a tensor of shape (4,) and dtype int64.",
    ),
    "ref width": (
        ValueError,
        (X, [0, 0, 1, 1], X[:, :2], [0, 0, 1, 1]),
        "`ref_embeddings` must have the width of `embeddings` (4), got shape (4, 2).",
    ),
    "ref device": (
        ValueError,
        (X, [0, 0, 1, 1], X.to("meta"), [0, 0, 1, 1]),
        "`ref_embeddings` must be on the device of `embeddings` (cpu), got meta. "
        "Move it: ref_embeddings.to(embeddings.device).",
    ),
    "similarity": (
        ValueError,
        (X, [0, 0, 1, 1], None, None, "cos"),
        "`similarity` must be one of cosine, dot, euclidean, got 'cos'.",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
    error, arguments, message = ERRORS[case]
    with refuses(error, message):
        pairwise_scores(*arguments)


# EmbeddingLoss


def test_h6_rows_in_any_order():
    angles = torch.tensor([0, 20, 70, 30, 80, 100], dtype=torch.float64).deg2rad()
    x = torch.stack([angles.cos(), angles.sin()], 1)
    labels = ["A", "A", "A", "B", "B", "B"]
    order = [0, 3, 1, 4, 2, 5]
    for tau, expected in ((0.01, 0.4190945), (0.1, 0.4465857)):
        criterion = EmbeddingLoss(smooth_ap(tau))
        first, second = x.clone().requires_grad_(), x[order].clone().requires_grad_()
        value, permuted = criterion(first, labels), criterion(second, [labels[i] for i in order])
        torch.testing.assert_close(value.item(), expected, rtol=0, atol=5e-8)
        torch.testing.assert_close(permuted, value)
        value.backward()
        permuted.backward()
        torch.testing.assert_close(second.grad, first.grad[order])
        assert criterion(x, [-5 if label == "A" else 10**15 for label in labels]).item() == value.item()


def test_reference_set_under_both_names():
    x, y = randn(3, 4), randn(5, 4, seed=1)
    labels, ref_labels = [0, 1, 2], [2, 1, 0, 0, 1]
    criterion = EmbeddingLoss(hinge, "dot")
    expected = hinge(x @ y.T, torch.tensor([[a == b for b in ref_labels] for a in labels]))
    torch.testing.assert_close(criterion(x, labels, y, ref_labels), expected)
    torch.testing.assert_close(criterion(x, labels, ref_embeddings=y, ref_labels=ref_labels), expected)
    torch.testing.assert_close(criterion(x, labels, ref_emb=y, ref_labels=ref_labels), expected)
    with refuses(ValueError, "`ref_emb` must not be given together with `ref_embeddings`: they are the same."):
        criterion(x, labels, y, ref_labels, ref_emb=y)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("memory", [None, 4])
def test_a_batch_without_pairs_is_a_zero_with_graph(rows, memory):
    criterion = EmbeddingLoss(hinge, memory=memory and EmbeddingMemory(memory, 3))
    x = torch.ones(rows, 3, requires_grad=True)
    message = f"0 of {rows} lists have a pair: the loss is a constant 0 for this batch."
    with pytest.warns(UndefinedListWarning, match=f"^{message}$"):
        value = criterion(x, [0] * rows)
    value.backward()
    assert value.item() == 0
    assert torch.equal(x.grad, torch.zeros(rows, 3))


def test_loss_modules_are_registered_and_shown():
    inner = torch.nn.Linear(1, 1)
    criterion = EmbeddingLoss(inner, "dot", memory=EmbeddingMemory(2, 3, warmup=1))
    assert set(criterion.state_dict()) == {
        "loss.weight", "loss.bias", "memory.embeddings", "memory.labels", "memory.seen", "memory.seal",
    }  # fmt: skip
    assert "similarity='dot', gather=False" in repr(criterion)
    assert "size=2, dim=3, num_classes=None, warmup=1" in repr(criterion)
    assert "similarity='cosine', gather=False" in repr(CrossModalLoss(inner))


@pytest.mark.parametrize("wrapper", [EmbeddingLoss, CrossModalLoss])
def test_what_is_no_loss_is_refused(wrapper):
    with refuses(TypeError, "`loss` must be a loss, got the class Linear. Build it first: Linear()."):
        wrapper(torch.nn.Linear)
    with refuses(TypeError, "`loss` must be callable as loss(scores, relevant), got 'smooth-ap'."):
        wrapper("smooth-ap")
    with refuses(ValueError, "`similarity` must be one of cosine, dot, euclidean, got 'l2'."):
        wrapper(hinge, "l2")


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_compiles_to_one_graph(similarity):
    torch._dynamo.reset()
    x = randn(6, 4, dtype=torch.float32)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    multi_hot = torch.eye(3)[labels]
    for given in (labels, multi_hot, labels.float(), labels[:, None] == labels):
        criterion = EmbeddingLoss(hinge, similarity)
        compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(a, given).backward()
        criterion(b, given).backward()
        torch.testing.assert_close(a.grad, b.grad)


def test_functional_gradient_and_vmap():
    x = randn(3, 6, 4)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    criterion = EmbeddingLoss(hinge, "euclidean")
    leaf = x.clone().requires_grad_()
    sum(criterion(one, labels) for one in leaf).backward()
    grads = torch.func.vmap(torch.func.grad(lambda one: criterion(one, labels)))(x)
    torch.testing.assert_close(grads, leaf.grad)


# EmbeddingMemory


def test_memory_is_a_queue():
    memory = EmbeddingMemory(5, 2)
    queue: collections.deque[tuple[list[float], int]] = collections.deque(maxlen=5)
    assert [t.shape for t in memory.get()] == [(0, 2), (0,)]
    for step, rows in enumerate([2, 2, 3, 1, 0, 5, 12, 4]):
        batch, labels = randn(rows, 2, seed=step, dtype=torch.float32), torch.arange(rows) + 100 * step
        memory.update(batch.requires_grad_(), labels)
        queue.extend(zip(batch.tolist(), labels.tolist(), strict=True))
        embeddings, kept = memory.get()
        assert embeddings.tolist() == [row for row, _ in queue]
        assert kept.tolist() == [label for _, label in queue]
        assert not embeddings.requires_grad


def test_memory_is_saved_and_keeps_its_order():
    memory = EmbeddingMemory(3, 1)
    memory.update(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), [10**12 + 1, 10**12 + 2, 10**12 + 3, 10**12 + 4])
    copy = EmbeddingMemory(3, 1)
    copy.load_state_dict(memory.state_dict())
    for each in (memory, copy):
        each.update(torch.tensor([[5.0]]), [0])
        assert each.get()[0].flatten().tolist() == [3, 4, 5]
        assert each.get()[1].tolist() == [10**12 + 3, 10**12 + 4, 0]
    memory.double()
    memory.update(torch.tensor([[0.1]], dtype=torch.float64), [0])
    assert memory.get()[0][-1].item() == 0.1
    assert memory.get()[1].tolist() == [10**12 + 4, 0, 0]


def test_memory_gives_nothing_before_its_warmup():
    memory = EmbeddingMemory(4, 1, warmup=3)
    memory.update(torch.ones(2, 1), [0, 1])
    assert len(memory.get()[0]) == 0
    memory.update(torch.ones(1, 1), [2])
    assert memory.get()[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("labels", ["ints", "strings", "multi-hot"])
def test_the_memory_adds_past_batches_and_never_the_batch_itself(labels):
    forms = {
        "ints": lambda ids: ids,
        "strings": lambda ids: [f"class {int(i)}" for i in ids],
        "multi-hot": lambda ids: torch.eye(4, dtype=torch.int64)[ids],
    }
    seen = []

    def loss(scores, relevant):
        seen.append((scores, relevant))
        return hinge(scores, relevant)

    criterion = EmbeddingLoss(
        loss, "dot", memory=EmbeddingMemory(5, 3, num_classes=4 if labels == "multi-hot" else None)
    )
    past, past_ids = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    for step in range(4):
        x, ids = randn(4, 3, seed=step, dtype=torch.float32).requires_grad_(), torch.tensor([0, 1, 0, step])
        value = criterion(x, forms[labels](ids))
        value.backward()  # after the update: the graph must not have changed
        scores, relevant = seen.pop()
        others = [[j for j in range(4) if j != i] for i in range(4)]
        expected = torch.stack([torch.cat([x[i] @ x[others[i]].T, x[i] @ past.T]) for i in range(4)])
        torch.testing.assert_close(scores, expected)
        same = [[bool(ids[i] == ids[j]) for j in others[i]] + (past_ids == ids[i]).tolist() for i in range(4)]
        assert relevant.tolist() == same
        grad = x.grad.clone()
        x.grad = None
        hinge(expected, relevant).backward()
        torch.testing.assert_close(grad, x.grad)
        past, past_ids = torch.cat([past, x.detach()])[-5:], torch.cat([past_ids, ids])[-5:]

    state = {name: buffer.clone() for name, buffer in criterion.memory.named_buffers()}
    criterion.eval()
    criterion(x, forms[labels](ids))
    assert seen.pop()[0].shape == (4, 3)
    for name, buffer in criterion.memory.named_buffers():
        assert torch.equal(buffer, state[name])


MEMORY_ERRORS = {
    "size": (
        lambda: EmbeddingMemory(0, 2),
        "`size` must be a whole number of at least 1, got 0.",
    ),
    "dim": (lambda: EmbeddingMemory(2, 2.0), "`dim` must be a whole number of at least 1, got 2.0."),
    "warmup": (lambda: EmbeddingMemory(2, 2, warmup=-1), "`warmup` must be a whole number of at least 0, got -1."),
    "classes": (
        lambda: EmbeddingMemory(2, 2, num_classes=1),
        "`num_classes` must be a whole number of at least 2, got 1.",
    ),
    "width": (
        lambda: EmbeddingMemory(2, 2).update(torch.ones(1, 3), [0]),
        "`embeddings` must have shape (n, 2), got shape (1, 3).",
    ),
    "float labels": (
        lambda: EmbeddingMemory(2, 2).update(torch.ones(2, 2), [0.0, 1.0]),
        "`labels` must be whole numbers or strings (n,) for this memory, got [0.0, 1.0].",
    ),
    "no multi-hot": (
        lambda: EmbeddingMemory(2, 2, num_classes=3).update(torch.ones(2, 2), [0, 1]),
        "`labels` must be multi-hot (n, 3) for this memory, got [0, 1].",
    ),
    "length": (
        lambda: EmbeddingMemory(2, 2).update(torch.ones(2, 2), [0]),
        "`labels` must have shape (2,) or multi-hot (2, c), one label for each row of `embeddings`, "
        "got shape (1,) and dtype int64.",
    ),
    "references": (
        lambda: EmbeddingLoss(hinge, memory=EmbeddingMemory(2, 4))(X, [0, 0, 1, 1], X, [0, 0, 1, 1]),
        "`ref_embeddings` must not be given to a loss with a memory, which has its own.",
    ),
    "references and gather": (
        lambda: EmbeddingLoss(hinge, gather=True)(X, [0, 0, 1, 1], X, [0, 0, 1, 1]),
        "`ref_embeddings` must not be given to a loss with gather=True, which has its own.",
    ),
    "matrix": (
        lambda: EmbeddingLoss(hinge, gather=True)(X, X.bool()),
        "`labels` must be labels for a loss with gather=True, got a relevance matrix of shape (4, 4). "
        "Multi-hot labels of as many classes as rows go in as numbers: labels.int().",
    ),
}


@pytest.mark.parametrize("case", MEMORY_ERRORS)
def test_memory_errors(case):
    call, message = MEMORY_ERRORS[case]
    with refuses(ValueError, message):
        call()


def test_nothing_bad_enters_the_memory():
    memory = EmbeddingMemory(2, 4)
    with pytest.raises(ValueError, match=r"^`embeddings` must be finite"):
        EmbeddingLoss(hinge, memory=memory)(X / X, [0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"^`embeddings` must be finite"):
        memory.update(X / X, [0, 0, 1, 1])
    assert len(memory.get()[0]) == 0


def test_gather_with_one_process_changes_nothing():
    x = randn(4, 3)
    for labels in ([0, 0, 1, 1], ["a", "a", "b", "b"], torch.tensor([[1, 0], [1, 0], [0, 1], [0, 1]])):
        assert EmbeddingLoss(hinge, gather=True)(x, labels).item() == EmbeddingLoss(hinge)(x, labels).item()
    assert CrossModalLoss(hinge, gather=True)(x, x + 1).item() == CrossModalLoss(hinge)(x, x + 1).item()


# CrossModalLoss


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_both_directions_of_pairs(similarity):
    x, y = randn(4, 3), randn(4, 3, seed=1)
    s = torch.tensor([[plain_similarity(a, b, similarity) for b in y.tolist()] for a in x.tolist()], dtype=x.dtype)
    there, back = smooth_ap(0.1)(s, torch.eye(4).bool()), smooth_ap(0.1)(s.T, torch.eye(4).bool())
    criterion = CrossModalLoss(smooth_ap(0.1), similarity)
    torch.testing.assert_close(criterion(x, y), (there + back) / 2)
    torch.testing.assert_close(criterion(y, x), (there + back) / 2)


def test_an_image_with_five_captions():
    images, captions = randn(3, 4), randn(15, 4, seed=1)
    relevant = torch.arange(3)[:, None] == torch.arange(15) // 5
    s = torch.tensor([[plain_similarity(a, b, "cosine") for b in captions.tolist()] for a in images.tolist()]).double()
    expected = (smooth_ap(0.1)(s, relevant) + smooth_ap(0.1)(s.T, relevant.T)) / 2
    criterion = CrossModalLoss(smooth_ap(0.1))
    for given in (relevant, relevant.numpy(), relevant.tolist()):
        torch.testing.assert_close(criterion(images, captions, given), expected, rtol=1e-6, atol=0)
    shuffled = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    value = criterion(images, captions[shuffled], relevant[:, shuffled])
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)


def test_semantic_scores_go_through_as_they_are():
    seen = []

    def loss(scores, target):
        seen.append(target)
        return (scores * target).mean()

    semantic = randn(3, 5).float()
    CrossModalLoss(loss)(randn(3, 2), randn(5, 2, seed=1), semantic)
    assert torch.equal(seen[0], semantic)
    assert torch.equal(seen[1], semantic.T)


def test_cross_modal_leaves_autocast():
    x, y = randn(4, 3, dtype=torch.float32), randn(4, 3, seed=1, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        value = CrossModalLoss(hinge, "dot")(x, y)
    assert torch.equal(value, CrossModalLoss(hinge, "dot")(x, y))


CROSS_MODAL_ERRORS = {
    "number": (
        (X, X[:3]),
        "`relevant` must be given when queries (4) and gallery (3) differ in number, got None. "
        "Say which belong together in a boolean tensor of shape (4, 3).",
    ),
    "shape": (
        (X, X[:3], torch.ones(3, 4).bool()),
        "`relevant` must have shape (4, 3), queries by gallery, got a tensor of shape (3, 4) and dtype bool.",
    ),
    "width": ((X, X[:, :3]), "`gallery` must have the width of `queries` (4), got shape (4, 3)."),
    "device": (
        (X, X.to("meta")),
        "`gallery` must be on the device of `queries` (cpu), got meta. Move it: gallery.to(queries.device).",
    ),
    "axes": ((X[None], X), "`queries` must have shape (n, d), one row an item, got shape (1, 4, 4)."),
}


@pytest.mark.parametrize("case", CROSS_MODAL_ERRORS)
def test_cross_modal_errors(case):
    arguments, message = CROSS_MODAL_ERRORS[case]
    with refuses(ValueError, message):
        CrossModalLoss(hinge)(*arguments)


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 3), (3, 0)])
def test_cross_modal_batch_without_a_pair(n, m):
    queries, gallery = torch.randn(n, 4, requires_grad=True), torch.randn(m, 4, requires_grad=True)
    with pytest.warns(UndefinedListWarning, match="a pair"):
        loss = CrossModalLoss(NTXentLoss())(queries, gallery, torch.zeros(n, m, dtype=torch.bool))
    loss.backward()
    assert loss == 0
    assert queries.grad.shape == (n, 4)
    assert not gallery.grad.any()


def test_cross_modal_loss_that_gives_more_than_a_tensor():
    loss = CrossModalLoss(partial(map_loss, rank_fn=laplace_rank, return_stats=True))
    with pytest.raises(TypeError, match=r"^`loss` must give a tensor, got tuple\. Leave return_stats off\.$"):
        loss(torch.randn(3, 4), torch.randn(3, 4))
