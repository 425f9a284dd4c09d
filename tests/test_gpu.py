"""What the losses ask of a GPU, seen without one: fake tensors of another device, which have shapes and no values.

They take the code paths of a GPU. The host reads nothing from them but what a test answers and counts.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_contract import LOSSES, draw, every_loss, every_loss_of_relevance, exactly, value_and_grad
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import sodeep
from sodeep import UndefinedListWarning
from sodeep._core import checks

if torch.torch_version.TorchVersion(torch.__version__) < "2.6":
    pytest.skip("older fake tensors fail where no pair is relevant", allow_module_level=True)

DEVICE = "lazy"  # any that a build without CUDA can differentiate on
GUIDE = Path(__file__).parent.parent / "docs" / "gpu.md"


class Reads(TorchDispatchMode):
    """Notes what makes the host wait, and answers that all is well: True, 1, no pair of a kind."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name.removeprefix("aten::"), kwargs or {}
        if name in ("_local_scalar_dense", "equal"):
            self.reads.append(name)
            return True if name == "equal" or args[0].dtype == torch.bool else 1
        if name == "nonzero":
            self.reads.append(name)
            return args[0].new_zeros((0, args[0].ndim), dtype=torch.int64)
        if name.startswith("index") and any(i is not None and i.dtype == torch.bool for i in _indices(name, args)):
            self.reads.append(name)
            return args[0].new_zeros((0, *args[0].shape[1:]))
        if {"cpu", DEVICE} <= {str(x) for x in _devices(name, args, kwargs)}:
            self.reads.append(name)
        return func(*args, **kwargs)


def _indices(name: str, args: Any) -> Any:
    return args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()


def _devices(name: str, args: Any, kwargs: Any) -> Iterator[torch.device]:
    """Of a copy: from where and to where."""
    if name in ("_to_copy", "copy_"):
        yield from (x.device for x in args if isinstance(x, Tensor) and (x.ndim or name == "_to_copy"))
        if kwargs.get("device") is not None:
            yield torch.device(kwargs["device"])


@contextmanager
def counted(fakes: FakeTensorMode | None = None) -> Iterator[list[str]]:
    """What the host waits for inside."""
    with fakes or FakeTensorMode(), Reads() as mode, pytest.MonkeyPatch.context() as patch:
        # one read of a real tensor, and one for each number of a fake one
        patch.setattr(FakeTensor, "tolist", lambda x: mode.reads.append("tolist") or [1] * len(x))
        yield mode.reads


@pytest.fixture
def captured(monkeypatch):
    """As while a CUDA graph is captured."""
    function = checks.capturing
    for name, module in list(sys.modules.items()):
        if name.startswith("sodeep") and vars(module).get("capturing") is function:
            monkeypatch.setattr(module, "capturing", lambda x: True)


class Away(Tensor):
    """Has values, and says that it is not on the CPU: checks of it wait for the one read."""

    is_cpu = False


def lists(target: str, n: int = 9, masked: bool = False) -> dict[str, Tensor]:
    """Fake scores, target and mask."""
    dtype = torch.bool if target == "relevant" else torch.float32
    values = {"scores": torch.randn(6, n, device=DEVICE, requires_grad=True)}
    values |= {target: torch.zeros(6, n, dtype=dtype, device=DEVICE)}
    return {**values, "where": torch.ones(6, n, dtype=torch.bool, device=DEVICE)} if masked else values


def reads_of(loss: Callable[..., Tensor], target: str, fakes: FakeTensorMode | None = None, **options: Any) -> int:
    """How often the host waits in a step, forward and backward."""
    with counted(fakes) as reads:
        values = lists(target, **options)
        loss(values.pop("scores"), **values).backward()
    return len(reads)


def guide() -> dict[str, tuple[int, bool]]:
    """What the guide says of each loss on scores: how often it reads, and whether a CUDA graph takes it."""
    rows = re.findall(r"^\| (`.+`) \| (\d) \| (yes|no) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: (int(reads), word == "yes") for names, reads, word in rows for name in re.findall(r"`(\w+)`", names)}


def away(x: Tensor) -> Tensor:
    return x.as_subclass(Away)


NOT_CAPTURED = (
    "This loss cannot be captured in a CUDA graph: how much it computes depends on how many items are relevant. "
    "Capture the model alone, or take another loss of average precision: quantized_ap_loss."
)
RANK_FNS = {
    "laplace": sodeep.laplace_rank,
    "sigmoid": sodeep.sigmoid_rank,
    "blackbox": sodeep.blackbox_rank,
    "straight_through": sodeep.straight_through(sodeep.laplace_rank),
}
ON_RANKS = [
    (sodeep.spearman_loss, "target"),
    (sodeep.map_loss, "relevant"),
    (sodeep.recall_loss, "relevant"),
    (sodeep.ndcg_loss, "relevance"),
]
SMALL = {"lstm": {"hidden": 8}, "mlp": {"hidden": 8}, "set": {"frequencies": [4, 8]}}


def with_rank_fn(member: Any) -> dict[str, Any]:
    """The options of a row of the table, on a rank function whose order needs no look at its first ranks."""
    return {key: sodeep.laplace_rank if key == "rank_fn" else x for key, x in member.options.items()}


def test_the_guide_names_every_loss():
    assert set(guide()) == {member.module.__name__ for member in LOSSES.values()}


@every_loss
@pytest.mark.parametrize("masked", [False, True])
def test_the_host_waits_as_often_as_the_guide_says(name, masked):
    member = LOSSES[name]
    loss = partial(member.function, **with_rank_fn(member))
    assert reads_of(loss, member.target, masked=masked) <= guide()[member.module.__name__][0]


@every_loss
def test_a_graph_is_captured_without_a_read(name, captured):
    member = LOSSES[name]
    if guide()[member.module.__name__][1]:
        assert reads_of(member.loss, member.target) == reads_of(member.loss, member.target, masked=True) == 0
    else:
        with pytest.raises(RuntimeError, match=exactly(NOT_CAPTURED)):
            reads_of(member.loss, member.target)


@every_loss
def test_what_is_captured_has_the_same_value(name, request):
    member = LOSSES[name]
    if not guide()[member.module.__name__][1]:
        return
    scores, target = draw(member)
    if "recall" not in name:  # the hardest item of tied ones: which it is depends on the rounding of their ranks
        scores[:, 3] = scores[:, 4]
    expected = value_and_grad(member.loss, scores, target)
    request.getfixturevalue("captured")
    for found, wanted in zip(value_and_grad(member.loss, scores, target), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rank_fn", RANK_FNS.values(), ids=RANK_FNS)
@pytest.mark.parametrize(("loss", "target"), ON_RANKS)
def test_losses_on_rank_functions_are_captured(rank_fn, loss, target, captured):
    for masked in (False, True):
        assert reads_of(partial(loss, rank_fn=rank_fn), target, masked=masked) == 0


@pytest.mark.parametrize("name", sodeep.SORTERS)
def test_losses_on_sorters_are_captured(name, captured):
    n = 40 if name == "cnn" else 5
    sorter = sodeep.build_sorter(name, seq_len=n, **SMALL.get(name, {})).requires_grad_(False)
    fakes = FakeTensorMode()
    with fakes:
        for module in sorter.modules():
            for key, x in [*module._parameters.items(), *module._buffers.items()]:
                if x is not None:
                    fake = torch.empty(x.shape, dtype=x.dtype, device=DEVICE)
                    weight = nn.Parameter(fake, requires_grad=False) if isinstance(x, nn.Parameter) else fake
                    (module._parameters if isinstance(x, nn.Parameter) else module._buffers)[key] = weight
            if isinstance(module, nn.RNNBase):
                module._flat_weights = [getattr(module, key) for key in module._flat_weights_names]
    loss = partial(sodeep.spearman_loss, rank_fn=sorter)
    for masked in (False, True) if sorter.reads_masks else (False,):
        assert reads_of(loss, "target", fakes, n=n, masked=masked) == 0


def of_embeddings(criterion: nn.Module, masked: bool, *more: int) -> int:
    """How often the host waits in a step of a loss on embeddings; `more`: the rows of other sets."""
    with counted() as reads:
        rows = torch.randn(8, 4, device=DEVICE, requires_grad=True)
        where = torch.ones(8, dtype=torch.bool, device=DEVICE) if masked else None
        if isinstance(criterion, sodeep.CrossModalLoss):
            others = [torch.randn(8, 4, device=DEVICE, requires_grad=True)]
        else:
            others = [torch.zeros(8, dtype=torch.int64, device=DEVICE)]
            for m in more:
                others += [torch.randn(m, 4, device=DEVICE), torch.zeros(m, dtype=torch.int64, device=DEVICE)]
        criterion(rows, *others, where=where).backward()
    return len(reads)


@every_loss_of_relevance
@pytest.mark.parametrize("masked", [False, True])
def test_losses_on_embeddings(name, masked, request):
    member = LOSSES[name]
    reads, taken = guide()[member.module.__name__]
    loss = member.module(**with_rank_fn(member))
    alone, others = sodeep.EmbeddingLoss(loss), sodeep.CrossModalLoss(loss)
    assert of_embeddings(alone, masked) <= reads + 1  # for equal rows
    assert of_embeddings(others, masked) <= 2 * reads + 2
    request.getfixturevalue("captured")
    if taken:
        assert of_embeddings(alone, masked) == of_embeddings(others, masked) == 0


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_similarities_are_captured(similarity, captured):
    loss = sodeep.EmbeddingLoss(sodeep.NTXentLoss(), similarity=similarity)
    assert of_embeddings(loss, False) == of_embeddings(loss, False, 5) == of_embeddings(loss, True, 5) == 0


@every_loss
def test_checks_that_wait_say_the_same(name):
    member = LOSSES[name]
    scores, target = draw(member)
    options = {**LOSSES[name].options}
    for plain, other in zip(
        value_and_grad(member.loss, scores, target), value_and_grad(member.loss, away(scores), target), strict=True
    ):
        torch.testing.assert_close(other.as_subclass(Tensor), plain, rtol=1e-12, atol=1e-12)
    for value in (math.nan, math.inf):
        bad = scores.clone()
        bad[2, 5] = value
        message = (
            f"`scores` must be finite, got 1 NaN or infinite of 54 values, the first ({value}) at index (2, 5). "
            "Mask such items out with where=, or find the step that made them (torch.autograd.set_detect_anomaly)."
        )
        for x in (bad, away(bad)):
            with pytest.raises(ValueError, match=exactly(message)):
                member.function(x, target, **options)
    if target.dtype == torch.bool:
        with pytest.raises(ValueError, match="must be boolean"):
            member.function(away(scores), target * 2.0, **options)


@every_loss
def test_no_defined_list_warns_in_the_one_read(name):
    member = LOSSES[name]
    target = torch.zeros(3, 4)
    nowhere = torch.zeros(3, 4, dtype=torch.bool)
    with pytest.warns(UndefinedListWarning) as caught:
        member.function(away(torch.zeros(3, 4)).requires_grad_(), target, where=nowhere, **member.options)
    assert len(caught) == 1


def test_a_wrong_value_is_told_before_what_follows_from_it():
    def fails(scores, relevant):
        raise IndexError("of what follows")

    rows = torch.randn(4, 3)
    rows[1, 2] = math.nan
    with pytest.raises(ValueError, match="`embeddings` must be finite"):
        sodeep.EmbeddingLoss(fails)(away(rows), torch.arange(4))
    with pytest.raises(IndexError):
        sodeep.EmbeddingLoss(fails)(away(torch.randn(4, 3)), torch.arange(4))
    memory = sodeep.EmbeddingMemory(8, 3)
    with pytest.raises(ValueError, match="`embeddings` must be finite"):
        sodeep.EmbeddingLoss(lambda scores, relevant: scores.sum(), memory=memory)(away(rows), torch.arange(4))
    assert int(memory.seen) == 0


def test_operators_that_read_are_no_part_of_a_graph():
    """torch.compile with mode="reduce-overhead" leaves them out."""
    tag = getattr(torch.Tag, "cudagraph_unsafe", None)
    if tag is None or "tags" not in inspect.signature(torch.library.custom_op).parameters:
        pytest.skip("this torch has no such tag")
    unsafe = {
        name
        for name in ("smooth_ap", "sup_ap", "recall_at_k", "svm_ap", "quantized_ap", "sum_over_pairs")
        if tag in getattr(torch.ops.sodeep, name).default.tags
    }
    assert unsafe == {"smooth_ap", "sup_ap", "recall_at_k", "svm_ap"}
