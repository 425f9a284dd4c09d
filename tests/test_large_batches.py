"""The gradient of the full batch by chunks, and the rows of all processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from scipy import stats
from torch import Tensor, nn

from sodeep import retrieval_metrics, spearman_corr
from sodeep.dataset_metric import DatasetMetric
from sodeep.distributed import drop_repeats, gather
from sodeep.losses.contrastive import triplet_loss
from sodeep.losses.cross_modal import CrossModalLoss
from sodeep.losses.embedding import EmbeddingLoss
from sodeep.losses.histogram import histogram_loss
from sodeep.losses.memory import EmbeddingMemory
from sodeep.losses.multi_similarity import multi_similarity_loss
from sodeep.losses.nt_xent import NTXentLoss
from sodeep.losses.rank import MAPLoss
from sodeep.losses.smooth_ap import smooth_ap_loss
from sodeep.multistage import multistage_backward
from sodeep.ranks import laplace_rank


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def listwise(scores: Tensor, relevant: Tensor) -> Tensor:
    """A loss that does not split over a batch: a log of sums over the whole list."""
    scores = scores / 0.2
    return (scores.logsumexp(-1) - scores.masked_fill(~relevant, -1e4).logsumexp(-1)).mean()


def encoder(*extra: nn.Module, seed: int = 0) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 8), *extra, nn.Tanh(), nn.Linear(8, 4)).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
    return model


def grads(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters()]


def refuses(error: type[Exception], message: str):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


# multistage_backward

X = randn(7, 6)
LABELS = torch.tensor([0, 1, 0, 2, 1, 2, 0])


def loss(embeddings: Tensor) -> Tensor:
    return EmbeddingLoss(listwise)(embeddings, LABELS)


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 6, 7, 100])
def test_gradient_is_the_one_of_plain_backward(chunk_size):
    plain, chunked = encoder(), encoder()
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    expected = loss(plain(x))
    expected.backward()
    value = multistage_backward(chunked, y, loss, chunk_size=chunk_size)
    torch.testing.assert_close(value, expected.detach())
    assert not value.requires_grad
    torch.testing.assert_close(grads(chunked), grads(plain))
    torch.testing.assert_close(y.grad, x.grad)
    # again: gradients accumulate
    multistage_backward(chunked, X, loss, chunk_size=chunk_size)
    torch.testing.assert_close(grads(chunked), [2 * grad for grad in grads(plain)])


def test_parameters_of_the_loss_get_their_gradient():
    model, scale = encoder(), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    multistage_backward(model, X, lambda z: loss(z) * scale, chunk_size=3)
    torch.testing.assert_close(scale.grad, loss(model(X)).detach())


def test_memory_is_that_of_a_chunk():
    alive = peak = 0

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            nonlocal alive, peak
            alive += len(x)
            peak = max(peak, alive)
            ctx.rows = len(x)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            nonlocal alive
            alive -= ctx.rows
            return grad

    class Layer(nn.Module):
        def forward(self, x):
            return Counted.apply(x) if torch.is_grad_enabled() else x

    multistage_backward(encoder(Layer()), X, loss, chunk_size=2)
    assert (alive, peak) == (0, 2)


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
)
def test_dropout_draws_the_same_masks_twice(device):
    plain, chunked = encoder(nn.Dropout(0.5)).to(device), encoder(nn.Dropout(0.5)).to(device)
    x = X.to(device)
    torch.manual_seed(3)
    expected = loss(torch.cat([plain(chunk) for chunk in x.split(2)]))
    expected.backward()
    after = torch.rand(3, device=device)
    torch.manual_seed(3)
    value = multistage_backward(chunked, x, loss, chunk_size=2)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(grads(chunked), grads(plain))
    # and what is drawn next is what a single forward pass would have left
    assert torch.equal(torch.rand(3, device=device), after)


def test_a_loss_that_draws_does_not_disturb_the_masks():
    def noisy(z: Tensor) -> Tensor:
        return loss(z + 0.1 * torch.randn_like(z))

    plain, chunked = encoder(nn.Dropout(0.5)), encoder(nn.Dropout(0.5))
    torch.manual_seed(3)
    noisy(torch.cat([plain(chunk) for chunk in X.split(2)])).backward()
    after = torch.rand(3)
    torch.manual_seed(3)
    multistage_backward(chunked, X, noisy, chunk_size=2)
    torch.testing.assert_close(grads(chunked), grads(plain))
    assert torch.equal(torch.rand(3), after)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_updates_its_statistics_once(momentum):
    plain, chunked = (encoder(nn.BatchNorm1d(8, momentum=momentum)) for _ in range(2))
    x = randn(8, 6)
    labels = torch.arange(8) % 3
    criterion = EmbeddingLoss(listwise)
    criterion(torch.cat([plain(chunk) for chunk in x.split(4)]), labels).backward()
    multistage_backward(chunked, x, lambda z: criterion(z, labels), chunk_size=4)
    torch.testing.assert_close(grads(chunked), grads(plain))
    torch.testing.assert_close(dict(chunked.named_buffers()), dict(plain.named_buffers()))
    assert int(chunked[1].num_batches_tracked) == 2


def test_layers_whose_buffers_steer_the_forward_pass():
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)).double()

    plain, chunked = model(), model()
    loss(torch.cat([plain(chunk) for chunk in X.split(3)])).backward()
    multistage_backward(chunked, X, loss, chunk_size=3)
    torch.testing.assert_close(grads(chunked), grads(plain))
    torch.testing.assert_close(dict(chunked.named_buffers()), dict(plain.named_buffers()))


def test_autocast():
    plain, chunked = encoder().float(), encoder().float()
    x = X.float()
    with torch.autocast("cpu", torch.bfloat16):
        expected = loss(torch.cat([plain(chunk) for chunk in x.split(3)]))
        expected.backward()
        value = multistage_backward(chunked, x, loss, chunk_size=3)
    torch.testing.assert_close(value, expected.detach())
    for got, right in zip(grads(chunked), grads(plain), strict=True):
        assert right.abs().max() > 0
        torch.testing.assert_close(got, right, rtol=0.02, atol=0.02 * float(right.abs().max()))


def test_scaled_loss():
    plain, chunked = encoder(), encoder()
    (1024 * loss(plain(X))).backward()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    value = multistage_backward(chunked, X, lambda z: scaler.scale(loss(z)), chunk_size=2)
    torch.testing.assert_close(value, 1024 * loss(plain(X)).detach())
    torch.testing.assert_close(grads(chunked), grads(plain))


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = encoder(seed=1), encoder(seed=2)

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        return self.image(image), self.text(text)


@pytest.mark.parametrize("kind", ["tuple", "list", "dict", "nested"])
def test_inputs_and_embeddings_of_several_parts(kind):
    image, text = randn(5, 6, seed=1), randn(5, 6, seed=2)
    criterion = CrossModalLoss(listwise)
    plain, chunked = TwoTowers(), TwoTowers()
    expected = criterion(*plain(image, text))
    expected.backward()
    inputs = {
        "tuple": (image, text),
        "list": [image, text],
        "dict": {"text": text, "image": image},
        "nested": ({"both": (image, text)},),
    }[kind]
    call = (lambda parts: chunked(*parts["both"])) if kind == "nested" else chunked
    value = multistage_backward(call, inputs, criterion, chunk_size=2)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(grads(chunked), grads(plain))


def test_an_embedding_that_the_loss_does_not_use():
    model = TwoTowers()
    multistage_backward(model, (X, X), lambda image, _: loss(image), chunk_size=3)
    plain = TwoTowers()
    loss(plain.image(X)).backward()
    torch.testing.assert_close(grads(model.image), grads(plain.image))
    for grad in grads(model.text):
        assert torch.equal(grad, torch.zeros_like(grad))


def test_several_embeddings_a_row():
    plain, chunked = encoder(), encoder()
    labels = torch.arange(7).repeat_interleave(2)

    def criterion(z: Tensor) -> Tensor:
        return EmbeddingLoss(listwise)(z.reshape(-1, 2), labels)

    criterion(plain(X).reshape(-1, 2)).backward()
    multistage_backward(lambda x: chunked(x).reshape(-1, 2), X, criterion, chunk_size=3)
    torch.testing.assert_close(grads(chunked), grads(plain))


ERRORS = {
    "chunk_size": (ValueError, (X, loss, 0), "`chunk_size` must be a whole number of at least 1, got 0."),
    "not a tensor": (
        TypeError,
        (("a", "b"), loss, 2),
        "`inputs` must be a tensor, or a tuple, list or mapping of tensors, got 'a' in it. "
        "Put what is not cut into chunks into the encoder: functools.partial.",
    ),
    "rows": (
        ValueError,
        ((X, X[:3]), loss, 2),
        "`inputs` must be tensors with one and the same number of rows, got shapes [(7, 6), (3, 6)].",
    ),
    "no rows": (
        ValueError,
        (X[:0], loss, 2),
        "`inputs` must be tensors with one and the same number of rows, got shapes [(0, 6)].",
    ),
    "no tensors": (
        ValueError,
        ({}, loss, 2),
        "`inputs` must be tensors with one and the same number of rows, got shapes [].",
    ),
    "scalar inputs": (
        ValueError,
        (torch.tensor(1.0), loss, 2),
        "`inputs` must be tensors with one and the same number of rows, got shapes [()].",
    ),
    "not a scalar": (
        ValueError,
        (X, lambda z: z, 2),
        "`loss` must return a scalar tensor, got a tensor of shape (7, 4) and dtype float64. Reduce it: value.mean().",
    ),
    "a number": (
        ValueError,
        (X, lambda z: 1.0, 10),
        "`loss` must return a scalar tensor, got 1.0. Reduce it: value.mean().",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
    error, (inputs, criterion, chunk_size), message = ERRORS[case]
    with refuses(error, message):
        multistage_backward(encoder(), inputs, criterion, chunk_size=chunk_size)


def test_an_encoder_that_returns_no_tensor():
    with refuses(TypeError, "`encoder` must return a tensor or a tuple of tensors, got ('z',)."):
        multistage_backward(lambda x: ("z",), X, loss, chunk_size=2)


# gather


def test_one_process_gets_its_rows_back():
    x = torch.ones(3, 2, requires_grad=True)
    assert gather(x) is x


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize(("items", "processes"), [(7, 3), (8, 4), (1, 2), (5, 1)])
def test_what_a_distributed_sampler_repeats_is_dropped(items, processes, dtype):
    x, labels = randn(items, 3), torch.arange(items) % 2
    samplers = [torch.utils.data.DistributedSampler(range(items), processes, rank) for rank in range(processes)]
    indices = torch.tensor([index for sampler in samplers for index in sampler]).to(dtype)
    assert len(indices) == -(-items // processes) * processes
    rows = drop_repeats(indices, x[indices.long()], labels[indices.long()])
    assert len(rows) == 2
    torch.testing.assert_close(rows, (x, labels), rtol=0, atol=0)
    sixteen = drop_repeats(indices + 16, x[indices.long()])  # indices need not begin at 0
    torch.testing.assert_close(sixteen, (x,), rtol=0, atol=0)


def test_the_first_row_of_an_index_is_kept_with_its_gradient():
    rows = randn(4, 2).requires_grad_()
    (kept,) = drop_repeats(torch.tensor([3, 1, 3, 1]), rows)
    torch.testing.assert_close(kept, rows[[1, 0]], rtol=0, atol=0)
    kept.sum().backward()
    torch.testing.assert_close(rows.grad, torch.tensor([[1.0, 1], [1, 1], [0, 0], [0, 0]], dtype=torch.float64))


def test_no_rows_at_all_have_no_repeats():
    (kept,) = drop_repeats(torch.empty(0, dtype=torch.int64), randn(0, 2))
    assert kept.shape == (0, 2)


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [
        (
            TypeError,
            (torch.zeros(7).bool(), X),
            "`indices` must be a tensor of whole numbers, got a tensor of shape (7,) and dtype bool.",
        ),
        (TypeError, ([0, 1], X), "`indices` must be a tensor of whole numbers, got [0, 1]."),
        (
            TypeError,
            (torch.zeros(7), X),
            "`indices` must be a tensor of whole numbers, got a tensor of shape (7,) and dtype float32.",
        ),
        (
            ValueError,
            (torch.zeros(7, 1).long(), X),
            "`indices` must have shape (n,), one number a row, got shape (7, 1).",
        ),
        (ValueError, (LABELS,), "`rows` must be one tensor or more, got none. Give what belongs to the indices."),
        (TypeError, (LABELS, X.tolist()), "`rows` must be tensors, got list."),
        (ValueError, (LABELS, X[:3]), "`rows` must have 7 rows, one for each index, got shape (3, 6)."),
    ],
)
def test_drop_repeats_errors(error, arguments, message):
    with refuses(error, message):
        drop_repeats(*arguments)


def test_gather_errors():
    with refuses(TypeError, "`embeddings` must be a torch.Tensor, got list."):
        gather([1.0])
    with refuses(
        ValueError, "`embeddings` must have an axis of rows, got shape (). Give it one: embeddings.unsqueeze(0)."
    ):
        gather(torch.tensor(1.0))


CUTS = {0: slice(0, 5), 1: slice(5, 7)}
"""The rows of X on each process: unequal on purpose."""


def _spearman(pred: Tensor, target: Tensor) -> float:
    return float(stats.spearmanr(pred.numpy(), target.numpy()).statistic)


def _by_chunks(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return multistage_backward(model, x, lambda z: EmbeddingLoss(listwise)(gather(z), gather(labels)), chunk_size=2)


def _cross_modal(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    z = model(x)
    return CrossModalLoss(listwise, gather=True)(z, z.flip(1))


def _masked(model: nn.Module, x: Tensor, labels: Tensor, gather: bool = True) -> Tensor:
    """Keys, a memory, ids and masked rows: all come from all processes."""
    z = model(x)
    criterion = EmbeddingLoss(smooth_ap_loss, memory=EmbeddingMemory(4, z.shape[1]).double(), gather=gather)
    ids, real = (x[:, 0] > 0).long() + 2 * labels, x[:, 1] > -0.5
    criterion.memory.update(X[:3, : z.shape[1]], LABELS[:3], ids=[0, 2, 4])
    value = criterion(z, labels, keys=z.detach().flip(1), where=real, ids=ids)
    stored = criterion.memory.get()
    return value + stored[0].sum() + stored[1].sum()


STEPS = {
    "by hand": lambda model, x, labels: EmbeddingLoss(listwise)(gather(model(x)), gather(labels)),
    "option": lambda model, x, labels: EmbeddingLoss(listwise, gather=True)(model(x), labels),
    "strings": lambda model, x, labels: EmbeddingLoss(listwise, gather=True)(model(x), [f"class {y}" for y in labels]),
    "multistage": _by_chunks,
    "cross-modal": _cross_modal,
    "masked": _masked,
}
"""A training step on the rows of one process that is to equal the step of one process on all rows."""


class SharedOut:
    """A loss of one's own that processes may share out; counts the lists that it is given."""

    mean_over_lists = True

    def __init__(self) -> None:
        self.lists = 0

    def __call__(self, scores: Tensor, relevant: Tensor, reduction: str = "mean", return_stats: bool = False) -> Tensor:
        self.lists += len(scores)
        values = scores.exp().cumsum(1)[:, -1] / (1 + relevant.sum(1))
        return values if reduction == "none" else values.mean()


RELEVANT = torch.rand(7, 7, generator=torch.Generator().manual_seed(5)) < 0.3
REAL = torch.rand(7, 7, generator=torch.Generator().manual_seed(6)) < 0.8
SHARED = {
    "smooth_ap": smooth_ap_loss,
    "map": MAPLoss(partial(laplace_rank, tau=0.5)),
    "nt_xent": NTXentLoss(0.3),
    "triplet": partial(triplet_loss, margin=0.3, mining="hard"),
    "multi_similarity": multi_similarity_loss,
    "histogram": histogram_loss,
    "own": SharedOut(),
}
"""Losses of all processes: each takes the lists of its rows, but of the histogram loss and a loss that says nothing."""
ROWS = {"unequal": CUTS, "empty": {0: slice(0, 7), 1: slice(7, 7)}}


def _shared(name: str, z: Tensor, labels: Tensor, kind: str, gather: bool) -> Tensor:
    """A loss of `SHARED` on the rows of this process, or of all."""
    criterion: nn.Module
    if kind == "cross-modal":
        criterion, both = CrossModalLoss(SHARED[name], gather=gather), (z, z.flip(1) + 0.1)
        return criterion(*both, RELEVANT) if name == "own" else criterion(*both, RELEVANT, where=REAL)
    criterion = EmbeddingLoss(SHARED[name], gather=gather)
    if kind == "none" and name != "histogram":
        return criterion(z, labels, reduction="none").nan_to_num(0.5).square().sum()
    if kind == "stats" and name != "own":
        value, stats = criterion(z, labels, return_stats=True)
        return value * (stats.total + 10 * stats.defined)
    return criterion(z, labels)


def _worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.save(_results(rank), f"{folder}/{rank}.pt")
    dist.barrier()
    # not through the end of the interpreter, where the threads of gloo sometimes abort the process
    os._exit(0)


def _results(rank: int) -> dict[str, object]:
    """What process `rank` of two sees."""
    mine = CUTS[rank]
    results: dict[str, object] = {}

    # H10
    pred = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[rank]
    target = torch.tensor([[3.0, 4.0], [1.0, 2.0]])[rank]
    results["pred"], results["target"] = gather(pred), gather(target)
    results["rho"] = _spearman(gather(pred), gather(target))

    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.bfloat16):
        rows = (LABELS % 2)[mine].to(dtype)
        results[str(dtype)] = torch.equal(gather(rows), (LABELS % 2).to(dtype))
    results["transposed"] = torch.equal(gather(X.T.contiguous().T[mine]), X)
    results["empty"] = gather(X[:3] if rank == 0 else X[:0])
    results["all empty"] = gather(X[:0]).shape

    # a leaf: backward adds up the two processes
    leaf = X[mine].clone().requires_grad_()
    (gather(leaf).square().sum() * (rank + 1)).backward()
    results["leaf"] = leaf.grad

    for name, step in STEPS.items():
        model = nn.parallel.DistributedDataParallel(encoder())
        value = step(model, X[mine], LABELS[mine])
        if value.requires_grad:
            value.backward()
        results[name] = value.detach(), grads(model)

    for rows, cuts in ROWS.items():
        for name in SHARED:
            for kind in ("plain", "none", "stats", "cross-modal"):
                model = nn.parallel.DistributedDataParallel(encoder())
                value = _shared(name, model(X[cuts[rank]]), LABELS[cuts[rank]], kind, gather=True)
                value.backward()
                results[f"{rows} {name} {kind}"] = value.detach(), grads(model)
    SHARED["own"].lists = 0
    EmbeddingLoss(SHARED["own"], gather=True)(X[mine], LABELS[mine])
    results["lists"] = SHARED["own"].lists
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        EmbeddingLoss(smooth_ap_loss, gather=True)(X[mine], LABELS[mine] + 10 * (rank > 0))  # process 1: no relevant
        results["none here"] = [str(warning.message) for warning in caught]
        EmbeddingLoss(smooth_ap_loss, gather=True)(X[mine], torch.arange(7)[mine])
        results["none anywhere"] = [str(warning.message) for warning in caught]

    # items 0 and 2 are given twice, as by a DistributedSampler
    given = {0: [0, 1, 2, 3], 1: [4, 5, 6, 2, 0]}[rank]
    rho = DatasetMetric(spearman_corr)
    found = DatasetMetric(retrieval_metrics, metrics=("mAP", "R@1", "nDCG"))
    for part in (given[:2], given[2:]):
        rho.update(X[part, 0], X[part, 1], index=torch.tensor(part))
        found.update(X[part], [f"class {y}" for y in LABELS[part].tolist()], index=torch.tensor(part))
    results["dataset metric"] = rho.compute(), found.compute()
    results["gallery"] = retrieval_metrics(
        X[mine], LABELS[mine], X.flip(0)[mine], LABELS.flip(0)[mine], gather=True, reduction="none"
    )
    cameras = (X[:, 2] > 0).long()
    results["cameras"] = retrieval_metrics(X[mine], LABELS[mine], cameras=cameras[mine], gather=True, reduction="none")

    for name, bad in (("shape", X[mine, : 3 + rank]), ("axes", X[mine][..., None] if rank else X[mine])):
        try:
            gather(bad)
        except ValueError as error:
            results[name] = str(error)
    try:
        gather(X[mine].float() if rank else X[mine])
    except ValueError as error:
        results["dtype"] = str(error)

    for name, criterion in (
        ("nan", lambda z: EmbeddingLoss(listwise, gather=True)(z, LABELS[mine])),
        ("cross-modal nan", lambda z: CrossModalLoss(listwise, gather=True)(z, X[mine])),
    ):
        try:
            criterion(X[mine] / 0 if rank else X[mine])
        except ValueError as error:
            results[name] = str(error)

    return results


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, processes) -> list[dict]:
    folder: Path = tmp_path_factory.mktemp("gloo")
    mp.start_processes(_worker, args=(str(folder),), nprocs=2, start_method=processes.get_start_method())
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_h10_the_gathered_rho_is_the_global_one(two_processes):
    for results in two_processes:
        assert results["pred"].tolist() == [1, 2, 3, 4]
        assert results["target"].tolist() == [3, 4, 1, 2]
        np.testing.assert_allclose(results["rho"], -0.6, atol=1e-12)


def test_rows_come_in_process_order_in_every_dtype_and_layout(two_processes):
    for results in two_processes:
        for dtype in ("int64", "int32", "uint8", "bool", "float32", "bfloat16"):
            assert results[f"torch.{dtype}"]
        assert results["transposed"]
        assert torch.equal(results["empty"], X[:3])
        assert results["all empty"] == (0, 6)


def test_the_gradient_of_a_leaf_is_the_sum_over_processes(two_processes):
    for rank, results in enumerate(two_processes):
        torch.testing.assert_close(results["leaf"], (1 + 2) * 2 * X[CUTS[rank]])


@pytest.mark.parametrize("name", STEPS)
def test_value_and_gradient_under_ddp_are_those_of_one_process(two_processes, name):
    model = encoder()
    z = model(X)
    if name == "masked":
        value = _masked(model, X, LABELS, gather=False)
    else:
        value = CrossModalLoss(listwise)(z, z.flip(1)) if name == "cross-modal" else loss(z)
    value.backward()
    for results in two_processes:
        torch.testing.assert_close(results[name], (value.detach(), grads(model)))


def test_metrics_of_several_processes_are_those_of_one(two_processes):
    expected = retrieval_metrics(X, LABELS, metrics=("mAP", "R@1", "nDCG"))
    searched = retrieval_metrics(X, LABELS, X.flip(0), LABELS.flip(0), reduction="none")
    apart = retrieval_metrics(X, LABELS, cameras=(X[:, 2] > 0).long(), reduction="none")
    for results in two_processes:
        rho, found = results["dataset metric"]
        torch.testing.assert_close(rho, spearman_corr(X[:, 0], X[:, 1]))
        assert found == pytest.approx(expected, abs=1e-12)
        torch.testing.assert_close(results["gallery"], searched)
        torch.testing.assert_close(results["cameras"], apart, equal_nan=True)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", ["plain", "none", "stats", "cross-modal"])
@pytest.mark.parametrize("name", SHARED)
def test_shared_out_value_and_gradient_are_those_of_one_process(two_processes, rows, name, kind):
    model = encoder()
    value = _shared(name, model(X), LABELS, kind, gather=False)
    value.backward()
    for results in two_processes:
        torch.testing.assert_close(
            results[f"{rows} {name} {kind}"], (value.detach(), grads(model)), rtol=1e-12, atol=1e-12
        )


def test_each_process_takes_the_lists_of_its_own_rows(two_processes):
    assert [results["lists"] for results in two_processes] == [5, 2]


def test_a_process_that_raises_ends_the_job_with_its_error(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from sodeep import EmbeddingLoss, SmoothAPLoss\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.randn(4, 3, requires_grad=True)\n"
        "EmbeddingLoss(SmoothAPLoss(), gather=True)(x, torch.arange(4 - dist.get_rank()) % 2).backward()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "ValueError: `labels` must have shape (4,) or multi-hot (4, c), one label for each row" in done.stderr


def test_a_warning_is_of_the_lists_of_all_processes(two_processes):
    for results in two_processes:
        assert results["none here"] == []
        assert results["none anywhere"] == [
            "0 of 7 lists have what the loss needs, of all processes: the loss is a constant 0 for this batch."
        ]


def test_what_is_not_finite_on_one_process_is_refused_on_every_process(two_processes):
    for results in two_processes:
        assert results["nan"].startswith(
            "`embeddings` must be finite, got 12 NaN or infinite of 42 values, the first ("
        )
        assert results["cross-modal nan"].startswith("`queries` must be finite, got 12 NaN or infinite of 42 values, ")


def test_what_does_not_fit_is_refused_on_every_process(two_processes):
    start = "`embeddings` must have one dtype and the same axes after the rows on every process, got shapes "
    for results in two_processes:
        assert results["shape"] == start + "[(5, 3), (2, 4)] and [64, 64] bits, process 0 first."
        assert results["axes"] == start + "[(5, 6), (2, 6, 1)] and [64, 64] bits, process 0 first."
        assert results["dtype"] == start + "[(5, 6), (2, 6)] and [64, 32] bits, process 0 first."
