"""Twelve faults that hurt users of other libraries, one or a few tests each, and their siblings.

Values are by hand or from scipy in float64. Ranks in sodeep are 1 = highest; a few tests convert to state the case in
the words it was reported in.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sodeep
from sodeep import UndefinedListWarning, UndefinedMetricWarning

F64 = torch.float64
SMALL = {
    "lstm": {"hidden": 8},
    "lstm-large": {"hidden": 8},
    "gru-proj": {"hidden": 8, "layers": 2},
    "mlp": {"hidden": 16},
    "set": {"frequencies": [4, 8]},
}
HANDCRAFTED = {
    "sigmoid": sodeep.sigmoid_rank,
    "laplace": sodeep.laplace_rank,
    "blackbox": sodeep.blackbox_rank,
    "straight-through": sodeep.straight_through(sodeep.laplace_rank),
}
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))

every_sorter = pytest.mark.parametrize("name", sodeep.SORTERS)


def small_sorter(name: str, n: int) -> sodeep.Sorter:
    """A sorter of few weights, as it is before any training."""
    torch.manual_seed(0)
    return sodeep.build_sorter(name, seq_len=n, **SMALL.get(name, {}))


def rank_functions(n: int) -> dict[str, object]:
    """Every kind that takes lists of `n`."""
    sorters = {name: small_sorter(name, n).freeze() for name in sodeep.SORTERS if name != "cnn" or n > 36}
    return {**HANDCRAFTED, **sorters}


def permutations(n: int) -> list[Tensor]:
    return [torch.arange(n), *(torch.randperm(n, generator=torch.Generator().manual_seed(seed)) for seed in range(5))]


def exactly(message: str) -> str:
    return f"^{re.escape(message)}$"


def close(a: object, b: object, atol: float = 1e-9) -> None:
    np.testing.assert_allclose(torch.as_tensor(a).detach().double().numpy(), b, rtol=0, atol=atol)


# ---- H1: ties on both sides ------------------------------------------------------------------------------------------


def test_h1_ties_on_both_sides():
    pred = torch.tensor([3, 1, 3, 2, 1, 5, 3, 2], dtype=F64)
    target = torch.tensor([2, 2, 4, 1, 1, 4, 3, 3], dtype=F64)
    ascending = [6, 1.5, 6, 3.5, 1.5, 8, 6, 3.5], [3.5, 3.5, 7.5, 1.5, 1.5, 7.5, 5.5, 5.5]
    close(9 - sodeep.exact_rank(pred), ascending[0], 0)
    close(9 - sodeep.exact_rank(target), ascending[1], 0)
    inside = np.mean((np.subtract(*ascending) / 8) ** 2)
    for order in permutations(8):
        p, t = pred[order], target[order]
        close(sodeep.spearman_corr(p, t), 0.7342360411356583)
        close(sodeep.spearman_corr(p.float(), t.long()), 0.7342360411356583, 1e-5)
        close(sodeep.spearman_loss(p, t, rank_fn=sodeep.exact_rank), inside)


@pytest.mark.parametrize("name", HANDCRAFTED)
def test_h1_equal_scores_have_equal_ranks_and_gradients(name):
    scores = torch.tensor([3, 1, 3, 2, 1, 5, 3, 2], dtype=F64, requires_grad=True)
    ranks = HANDCRAFTED[name](scores)
    sodeep.spearman_loss(scores, torch.ones(8).index_fill(0, torch.tensor(5), 2), rank_fn=HANDCRAFTED[name]).backward()
    for group in ([0, 2, 6], [1, 4], [3, 7]):
        close(ranks[group], ranks[group[0]].item(), 1e-12)
        if name != "blackbox":  # it moves items past one another, and tied ones move together
            close(scores.grad[group], scores.grad[group[0]].item(), 1e-12)


# ---- H2: constant predictions ----------------------------------------------------------------------------------------


def test_h2_constant_predictions_have_no_correlation():
    pred, target = torch.full((6,), 0.4, dtype=F64), torch.arange(1.0, 7)
    for rank_fn in (sodeep.exact_rank, *HANDCRAFTED.values()):
        close(rank_fn(pred), [3.5] * 6)
    message = (
        "spearman_corr is NaN for 1 of 1 lists: a list needs two items with different scores and different targets."
    )
    for a, b in ((pred, target), (target, pred), (pred, pred), (pred[:1], target[:1])):
        with pytest.warns(UndefinedMetricWarning, match=exactly(message)) as caught:
            assert sodeep.spearman_corr(a, b).isnan()
        assert len(caught) == 1


def test_h2_constant_predictions_train():
    """A model that starts constant: no NaN in the loss, the gradient, or the model one step later."""
    x, target = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40.0)
    for name, rank_fn in rank_functions(40).items():
        for clip in (None, 1.0):
            model = nn.Linear(4, 1)
            nn.init.zeros_(model.weight)
            nn.init.constant_(model.bias, 0.4)
            optimizer = torch.optim.Adam(model.parameters())
            for criterion in (sodeep.SpearmanLoss(rank_fn), sodeep.MAPLoss(rank_fn), sodeep.RecallLoss(rank_fn)):
                wanted = target if isinstance(criterion, sodeep.SpearmanLoss) else target > 30
                value = criterion(model(x).squeeze(-1), wanted)
                optimizer.zero_grad()
                value.backward()
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip, error_if_nonfinite=True)
                optimizer.step()
                assert value.isfinite(), name
                assert all(p.isfinite().all() and p.grad.isfinite().all() for p in model.parameters()), name


# ---- H3: large offset, small spread ----------------------------------------------------------------------------------


def moved(scores: Tensor) -> list[Tensor]:
    return [scores, scores - 1000, (scores - 1000) * 0.001, scores * 1e4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_h3_offset_and_scale_of_the_scores_change_no_rank(dtype):
    scores = torch.tensor([1000.1, 1000.4, 1000.2, 1000.3], dtype=dtype)
    for name, rank_fn in {"exact": sodeep.exact_rank, **rank_functions(4)}.items():
        ranks = [rank_fn(s).detach() for s in moved(scores)]
        for other in ranks:
            torch.testing.assert_close(other, ranks[0], rtol=0, atol=1e-3, msg=name)
        if name in ("exact", *HANDCRAFTED):
            # ranks 1 4 2 3 in the words of the case, SoDeep's 1 0.25 0.75 0.5; 1 % is the error of a soft rank
            for other in ranks:
                close(other / 4, [1, 0.25, 0.75, 0.5], 0.011)
    longer = 1000 + permutations(40)[1].to(dtype) / 10
    for name, rank_fn in rank_functions(40).items():
        ranks = [rank_fn(s).detach() / 40 for s in moved(longer)]
        for other in ranks:
            torch.testing.assert_close(other, ranks[0], rtol=0, atol=1e-3, msg=name)


@pytest.fixture(scope="module")
def trained() -> sodeep.TrainResult:
    config = sodeep.TrainConfig(
        "mlp", seq_len=4, sorter_config={"hidden": 64}, steps=400, batch_size=128, lr=3e-3, gradient_weight=0.0
    )
    return sodeep.train_sorter(config)


def test_h3_of_a_trained_sorter_within_its_stated_error(trained):
    scores = torch.tensor([1000.1, 1000.4, 1000.2, 1000.3], dtype=F64)
    ranks = [trained.sorter(s) / 4 for s in moved(scores)]
    assert trained.error < 0.06
    for other in ranks:
        torch.testing.assert_close(other, ranks[0], rtol=0, atol=1e-3)
        close((other - torch.tensor([1, 0.25, 0.75, 0.5])).abs().mean(), 0, 2 * trained.error)


def test_h3_of_the_shipped_sorter():
    if "set" not in {card.name for card in sodeep.list_sorters()}:
        pytest.skip("no sorter is shipped in this copy")
    sorter = sodeep.load_sorter("set")
    scores = torch.tensor([1000.1, 1000.4, 1000.2, 1000.3], dtype=F64)
    ranks = [sorter(s) / 4 for s in moved(scores)]
    for other in ranks:
        torch.testing.assert_close(other, ranks[0], rtol=0, atol=1e-3)
        close(other, [1, 0.25, 0.75, 0.5], 0.05)


def test_h3_a_sorter_that_does_not_normalise_says_so():
    sorter = sodeep.build_sorter("mlp", seq_len=4, hidden=16, normalize=False)
    sorter.trained = {"scores": [-1.0, 1.0]}
    with pytest.warns(UserWarning, match=r"was trained on -1 to 1: its ranks are unreliable\."):
        sorter(torch.tensor([1000.1, 1000.4, 1000.2, 1000.3]))


# ---- H4: padded lists ------------------------------------------------------------------------------------------------


def padded(fill: float, sign: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """The lists A, of three, and B, of five."""
    where = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    scores = torch.tensor([[0.2, 0.9, 0.5, 0, 0], [-0.3, 0.1, 0.4, -0.8, 0.0]], dtype=F64)
    scores[0] *= sign
    target = torch.tensor([[1, 2, 3, 0, 0], [2, 3, 5, 1, 4]], dtype=F64)
    return scores.masked_fill(~where, fill), target.masked_fill(~where, fill), where


PADS = [0.0, -1.0, 1e9, math.nan]


@pytest.mark.parametrize("fill", PADS)
def test_h4_pads_have_no_rank(fill):
    scores, target, where = padded(fill)
    ranks = sodeep.exact_rank(scores, where)
    close(4 - ranks[0, :3], [1, 3, 2], 0)
    close(6 - ranks[1], [2, 4, 5, 1, 3], 0)
    rho = sodeep.spearman_corr(scores, target, where)
    close(rho, [0.5, 0.9])
    close(rho.mean(), 0.7)
    scores, target, where = padded(fill, sign=-1)  # now zeros would rank on top
    close(sodeep.spearman_corr(scores, target, where), [-0.5, 0.9])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_h4_pads_change_neither_loss_nor_gradient(sign):
    for name, rank_fn in {**HANDCRAFTED, "set": small_sorter("set", 5), "gru": small_sorter("gru", 5)}.items():
        results = []
        for fill in PADS:
            scores, target, where = padded(fill, sign)
            scores.requires_grad_()
            value = sodeep.spearman_loss(scores, target, rank_fn=rank_fn, where=where)
            value.backward()
            assert (scores.grad[~where] == 0).all(), name
            results.append((value.detach(), scores.grad))
        for other in results:
            torch.testing.assert_close(other, results[0], rtol=0, atol=0)
        scores, target, _ = padded(0, sign)
        alone = sodeep.spearman_loss(scores[0, :3], target[0, :3], rank_fn=rank_fn)
        full = sodeep.spearman_loss(scores[1], target[1], rank_fn=rank_fn)
        torch.testing.assert_close(results[0][0], ((alone + full) / 2).detach(), rtol=0, atol=1e-6)


# ---- H5: a query without positives -----------------------------------------------------------------------------------

Q1, Q2 = ([0.9, 0.2, 0.4], [0, 1, 0]), ([0.3, 0.8, 0.1], [0, 0, 0])


def test_h5_a_query_without_positives_is_left_out_and_counted():
    scores, relevant = (torch.tensor(x) for x in zip(Q1, Q2, strict=True))
    scores = scores.to(F64).requires_grad_()
    with pytest.warns(UndefinedMetricWarning, match="1 of 2 lists") as caught:
        ap = sodeep.average_precision(scores, relevant)
    assert len(caught) == 1
    close(ap[0], 1 / 3)
    assert ap[1].isnan()
    close(ap.nanmean(), 1 / 3)
    for loss, expected, atol in (
        (sodeep.MAPLoss(sodeep.exact_rank), 2 / 3, 1e-9),
        (sodeep.SmoothAPLoss(tau=1e-3), 2 / 3, 1e-9),
        (sodeep.QuantizedAPLoss(num_bins=25, low=0, high=1), 0.7047619, 1e-7),
    ):
        value, stats = loss(scores, relevant, return_stats=True)
        close(value, expected, atol)
        assert stats.total - int(stats.defined) == 1
        (grad,) = torch.autograd.grad(value, scores)
        assert grad.isfinite().all()
        assert (grad[1] == 0).all()


@pytest.mark.parametrize(
    "name", ["MAPLoss", "RecallLoss", "SmoothAPLoss", "QuantizedAPLoss", "FastAPLoss", "TripletLoss"]
)
def test_h5_all_queries_empty_is_a_zero_with_a_graph(name):
    loss = getattr(sodeep, name)
    loss = loss(sodeep.laplace_rank) if name in ("MAPLoss", "RecallLoss") else loss()
    scores = torch.tensor([Q1[0], Q2[0]], requires_grad=True)
    with pytest.warns(UndefinedListWarning, match=r"^0 of 2 lists have .*: the loss is a constant 0 for this batch\.$"):
        value = loss(scores, torch.zeros(2, 3).bool())
    value.backward()
    assert value == 0
    assert torch.equal(scores.grad, torch.zeros(2, 3))


# ---- H6: rows not sorted by class ------------------------------------------------------------------------------------

ORDERS = [((0, 20, 70, 30, 80, 100), "AAABBB"), ((0, 30, 20, 80, 70, 100), "ABABAB")]
TO_SECOND = [0, 3, 1, 4, 2, 5]


def unit_vectors(degrees: tuple[int, ...]) -> Tensor:
    angle = torch.deg2rad(torch.tensor(degrees, dtype=F64))
    return torch.stack([angle.cos(), angle.sin()], 1)


@pytest.mark.parametrize(("tau", "expected"), [(0.01, 0.4190945), (0.1, 0.4465857)])
def test_h6_rows_in_any_order_and_classes_of_any_name(tau, expected):
    criterion = sodeep.EmbeddingLoss(sodeep.SmoothAPLoss(tau=tau))
    gradients = []
    for degrees, labels in ORDERS:
        for names in (list(labels), [{"A": 7, "B": -3}[c] for c in labels]):
            x = unit_vectors(degrees).requires_grad_()
            value = criterion(x, names)
            close(value, expected, 5e-8)
            gradients.append(torch.autograd.grad(value, x)[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
    torch.testing.assert_close(gradients[2], gradients[0][TO_SECOND], rtol=0, atol=1e-12)


def test_h6_exact_metric_in_any_order():
    for degrees, labels in ORDERS:
        scores, relevant = sodeep.pairwise_scores(unit_vectors(degrees), list(labels))
        close(1 - sodeep.average_precision(scores, relevant).mean(), 151 / 360)


def test_h6_classes_of_unequal_sizes():
    """Five rows of one class, two of another, one alone: no loss may want equal sizes."""
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    order = permutations(8)[1]
    for name in ("SmoothAPLoss", "FastAPLoss", "NPairsLoss", "NTXentLoss", "MultiSimilarityLoss", "TripletLoss"):
        criterion = sodeep.EmbeddingLoss(getattr(sodeep, name)())
        torch.testing.assert_close(criterion(x[order], labels[order]), criterion(x, labels), msg=name)


# ---- H7: labels in other forms ---------------------------------------------------------------------------------------

INTS = torch.tensor([1, 2, 1, 2])
LABELS = {
    "floats": INTS.float(),
    "column": INTS.unsqueeze(1),
    "float column": INTS.double().unsqueeze(1),
    "strings": list("abab"),
    "string array": np.array(list("abab")),
    "bool": INTS == 1,
    "list": INTS.tolist(),
    "int32": INTS.int(),
    "multi-hot": torch.eye(2)[INTS - 1],
    "large": INTS + 10**12,
}


@pytest.mark.parametrize("form", LABELS)
def test_h7_every_form_of_labels_is_the_same_to_the_last_bit(form):
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    _, relevant = sodeep.pairwise_scores(x, LABELS[form])
    assert (int(relevant.sum()), int((~relevant).sum())) == (4, 8)
    for loss in (sodeep.SmoothAPLoss(), sodeep.MultiSimilarityLoss(), sodeep.TripletLoss()):
        assert torch.equal(sodeep.EmbeddingLoss(loss)(x, LABELS[form]), sodeep.EmbeddingLoss(loss)(x, INTS))


def test_h7_large_labels_stay_different():
    x = torch.eye(3)
    large = [10**12 + 1, 10**12 + 2, 10**12 + 1]
    for labels in (large, torch.tensor(large), torch.tensor(large, dtype=F64)):
        _, relevant = sodeep.pairwise_scores(x, labels)
        assert relevant.tolist() == [[False, True], [False, False], [True, False]]
    rho = sodeep.spearman_corr(torch.tensor([1.0, 2.0, 0.0]), torch.tensor([10**12 + 1, 10**12 + 2, 10**12]))
    assert rho == 1


@pytest.mark.parametrize("labels", [INTS.view(2, 2), INTS[:3], INTS.view(4, 1, 1), torch.tensor(1)])
def test_h7_a_refused_form_names_shape_and_dtype(labels):
    with pytest.raises(ValueError, match=r"^`labels` must have shape \(4,\)") as error:
        sodeep.EmbeddingLoss(sodeep.SmoothAPLoss())(torch.eye(4), labels)
    assert f"shape {tuple(labels.shape)} and dtype int64" in str(error.value)


def test_h7_a_column_of_targets_does_not_broadcast():
    message = "`target` must have the shape of `scores` (4,), got (4, 1). Drop the extra axis: target.squeeze(-1)."
    with pytest.raises(ValueError, match=exactly(message)):
        sodeep.spearman_loss(torch.randn(4), INTS.unsqueeze(1), rank_fn=sodeep.laplace_rank)


# ---- H8: ranks do not fit in half precision --------------------------------------------------------------------------


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("dtype", "n", "step"), [(torch.bfloat16, 300, 256), (torch.float16, 3000, 2048), (torch.float16, 300, 256)]
)
def test_h8_ranks_of_half_precision_scores(dtype, n, step, autocast):
    whole = torch.randperm(n, generator=torch.Generator().manual_seed(0)) - n // 2
    scores = (whole / step).to(dtype)
    assert len(scores.unique()) == n
    target = torch.randn(n, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert torch.equal(sodeep.exact_rank(scores), (n - n // 2 - whole).float())
        assert sodeep.spearman_corr(scores, scores) == 1
        assert sodeep.spearman_corr(scores, -scores) == -1
        length_free = {name: small_sorter(name, n) for name in ("set", "gru", "gru-sum") if n == 300}
        for name, rank_fn in {**HANDCRAFTED, **length_free}.items():
            low, wide = scores.clone().requires_grad_(), scores.float().requires_grad_()
            value = sodeep.spearman_loss(low, target, rank_fn=rank_fn)
            expected = sodeep.spearman_loss(wide, target, rank_fn=rank_fn)
            value.backward()
            expected.backward()
            assert (value.dtype, low.grad.dtype) == (torch.float32, dtype), name
            close(value, expected.item(), 1e-5)
            assert low.grad.isfinite().all(), name


# ---- H9: AP cut at k -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "divisor", "expected"),
    [(4, "min", 5 / 12), (4, "relevant", 5 / 12), (8, "min", 1 / 3), (8, "relevant", 5 / 24)],
)
def test_h9_the_divisor_of_average_precision_at_k(total, divisor, expected):
    scores = -torch.arange(13, dtype=F64)
    relevant = torch.tensor([1, 0, 1, 0, 0] + [1] * (total - 2) + [0] * (10 - total))
    close(sodeep.average_precision(scores, relevant, 5, divisor=divisor), expected)
    shuffled = permutations(13)[1]
    close(sodeep.average_precision(scores[shuffled], relevant[shuffled], 5, divisor=divisor), expected)
    assert '"min": min(k, R)' in sodeep.average_precision.__doc__
    assert '"relevant": R' in sodeep.average_precision.__doc__


def test_h9_recall_is_not_hit_rate():
    scores, relevant = -torch.arange(6.0), torch.tensor([1, 0, 1, 0, 1, 1])
    close(sodeep.recall_at_k(scores, relevant, 3), 2 / 4)
    close(sodeep.hit_rate_at_k(scores, relevant, 3), 1)


# ---- H10: per-process loss is not the global loss --------------------------------------------------------------------
# Two gloo processes with exactly these numbers: test_scale.py, test_h10_the_gathered_rho_is_the_global_one.


def test_h10_one_process_gathers_its_own_rows():
    pred, target = torch.tensor([1.0, 2, 3, 4], dtype=F64), torch.tensor([3.0, 4, 1, 2], dtype=F64)
    assert sodeep.gather(pred) is pred
    close(sodeep.spearman_corr(sodeep.gather(pred), sodeep.gather(target)), -0.6)
    per_process = sodeep.spearman_corr(pred.view(2, 2), target.view(2, 2))
    close(per_process.mean(), 1)  # what the mean over two processes says
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    plain, gathered = (
        sodeep.EmbeddingLoss(sodeep.SmoothAPLoss(), gather=flag)(x, [0, 0, 1, 1, 2, 2]) for flag in (False, True)
    )
    assert torch.equal(plain, gathered)


# ---- H11: a sorter file opens with the safe loader -------------------------------------------------------------------


def test_h11_a_trained_sorter_is_the_same_in_a_new_process(tmp_path):
    config = sodeep.TrainConfig(
        "gru", seq_len=10, sorter_config={"hidden": 4, "layers": 1}, steps=3, batch_size=8, seed=5
    )
    path = tmp_path / "mine.safetensors"
    sorter = sodeep.train_sorter(config, out=path).sorter
    lists = torch.randn(5, 10, generator=torch.Generator().manual_seed(0))
    torch.save(lists, tmp_path / "lists.pt")
    code = (
        "import torch, sodeep\n"
        "sorter = sodeep.load_sorter('mine.safetensors')\n"
        "card = sorter.trained\n"
        "assert (sorter.name, card['seed'], card['lengths']) == ('gru', 5, [10, 10]), card\n"
        "assert len(card['scores']) == 2\n"
        "torch.save(sorter(torch.load('lists.pt', weights_only=True)), 'ranks.pt')\n"
    )
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(Path(sodeep.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    assert torch.equal(torch.load(tmp_path / "ranks.pt", weights_only=True), sorter(lists))
    assert b"sodeep" in path.read_bytes()[:4096]  # a header, and nothing pickled
    assert not path.read_bytes().startswith((b"PK", b"\x80"))


def test_h11_an_old_file_is_refused_and_the_importer_named(tmp_path):
    """As the 2019 script wrote it: the weights beside the Namespace of its command line.

    What the importer makes of such files, all eight kinds, is in test_checkpoint.py.
    """
    sorter = small_sorter("gru", 10)
    old = {
        "epoch": 3,
        "args_dict": argparse.Namespace(model_type="gruc", seq_len=10),
        "state_dict": dict(sorter.state_dict()),
        "best_rec": 0.1,
    }
    torch.save(old, tmp_path / "old.pth.tar")
    with pytest.raises(
        ValueError, match=r"pickled PyTorch checkpoint, which is never unpickled here.*import_sodeep2019"
    ):
        sodeep.load_sorter(tmp_path / "old.pth.tar")


# ---- H12: the frozen sorter passes gradients and does not move -------------------------------------------------------


@every_sorter
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_h12_a_frozen_sorter_passes_gradients_and_does_not_move(name, device):
    generator = torch.Generator().manual_seed(0)
    x, target = torch.randn(40, 4, generator=generator).to(device), torch.randn(40, generator=generator).to(device)
    plain = lambda sorter: sorter  # noqa: E731
    for wrap, mode in ((plain, True), (plain, False), (sodeep.straight_through, True)):
        model = nn.Linear(4, 1).to(device)
        sorter = small_sorter(name, 40)
        criterion = sodeep.SpearmanLoss(wrap(sorter)).to(device)
        for state in (False, True, mode):
            criterion.train(state)
            assert not [p for p in criterion.parameters() if p.requires_grad]
        before = {key: value.clone() for key, value in criterion.state_dict().items()}
        assert len(before) >= len(sorter.state_dict()) > 0
        optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1, weight_decay=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            criterion(model(x).squeeze(-1), target).backward()
            assert model.weight.grad.isfinite().all()
            assert model.weight.grad.abs().sum() > 0
            optimizer.step()
        for key, value in criterion.state_dict().items():
            assert torch.equal(value, before[key]), key
        values = [criterion.train(state)(model(x).squeeze(-1), target) for state in (True, False)]
        assert torch.equal(*values)


@pytest.mark.parametrize("make", [lambda s: sodeep.ASPLoss(rank_fn=s), sodeep.MAPLoss, sodeep.RecallLoss])
def test_h12_every_loss_that_holds_a_sorter_moves_and_freezes_it(make):
    sorter = small_sorter("set", 8)
    criterion = make(sodeep.straight_through(sorter)).double()
    assert not [p for p in criterion.parameters() if p.requires_grad]
    assert all(p.dtype == F64 for p in sorter.parameters())
    assert {id(p) for p in sorter.parameters()} == {id(p) for p in criterion.parameters()}


@pytest.mark.usefixtures("process_group")
def test_h12_ddp_of_the_model_with_the_loss_left_unwrapped():
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    criterion = sodeep.SpearmanLoss(small_sorter("set", 16))
    criterion(model(torch.randn(16, 4)).squeeze(-1), torch.randn(16)).backward()
    assert model.module.weight.grad.abs().sum() > 0
