import copy
import io
import json
import math
import pickle
import re
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sodeep.evaluation import rank_error
from sodeep.generators import SODEEP2019, draw
from sodeep.losses import spearman_loss
from sodeep.ranks import exact_rank, laplace_rank, sigmoid_rank, straight_through, with_width
from sodeep.sorters import SORTERS, build_sorter
from sodeep.sorters.base import Sorter, double_backward, standardise
from sodeep.sorters.set import cauchy_fit, smooth_rank
from sodeep.training.config import TrainConfig

LENGTH = 40  # the cnn takes lists of 37 and more
RECURRENT = [name for name in SORTERS if name.startswith(("lstm", "gru"))]
LENGTH_FREE = [name for name, sorter in SORTERS.items() if sorter.any_length({})]
FIXED = [name for name in SORTERS if name not in LENGTH_FREE]
SMALL = {
    "lstm": {"hidden": 8},
    "lstm-large": {"hidden": 8},
    "gru": {"hidden": 8, "layers": 2},
    "gru-proj": {"hidden": 8, "layers": 2},
    "mlp": {"hidden": 32},
}
every_sorter = pytest.mark.parametrize("name", SORTERS)


def whole(message: str) -> str:
    """A pattern that matches exactly `message`."""
    return f"^{re.escape(message)}$"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def small_sorter(name: str, length: int = LENGTH, **config: object) -> Sorter:
    """A sorter of few weights whose output depends on all of them (some of them start at zero)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sorter = build_sorter(name, seq_len=length, **SMALL.get(name, {}), **config)
        with torch.no_grad():
            for weight in sorter.parameters():
                weight.add_(0.05 * torch.randn_like(weight))
        return sorter


def spearman(sorter: Sorter, scores: Tensor, target: Tensor) -> Tensor:
    """A plain Spearman loss: what sorters are for."""
    ranks = 1 + (target.unsqueeze(-2) > target.unsqueeze(-1)).sum(-1)
    return ((sorter(scores) - ranks) / scores.shape[-1]).square().mean()


# ---- the published networks ----


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("cnn", 1_444_725),
        ("lstm", 3_089_508),
        ("lstm-large", 18_649_188),
        ("lstm-end", 903_000),
        ("gru", 100_800),
        ("gru-proj", 4_142_948),
        ("gru-sum", 168),
        ("mlp", 4_608_100),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, count: int) -> None:
    with torch.device("meta"):
        sorter = build_sorter(name, seq_len=100)
    assert sum(weight.numel() for weight in sorter.parameters()) == count


@pytest.mark.parametrize("name", ["lstm", "lstm-large", "gru-proj"])
def test_dense_head_is_the_convolution_of_the_paper(name: str) -> None:
    sorter = small_sorter(name, normalize=False).double()
    scores = normal(3, LENGTH, dtype=torch.float64)
    x = torch.sigmoid(scores / 2 + 1) if name == "gru-proj" else scores
    states, _ = sorter.rnn(x.unsqueeze(-1))
    ranks = nn.functional.conv1d(states, sorter.head.weight, sorter.head.bias).squeeze(-1)
    ranks = torch.sigmoid(ranks) if name == "gru-proj" else ranks
    torch.testing.assert_close(sorter(scores), LENGTH * ranks)


def test_item_head_and_sum_head_take_any_length() -> None:
    for head in ("item", "sum"):
        sorter = small_sorter("lstm", head=head, init="random")
        assert sorter.seq_len is None
        for n in (1, 2, 17):
            assert sorter(normal(2, n)).shape == (2, n)


# ---- the contract of a rank function ----


@every_sorter
def test_rebuilds_from_its_name_and_config(name: str) -> None:
    sorter = small_sorter(name)
    again = build_sorter(sorter.name, **sorter.config)
    again.load_state_dict(sorter.state_dict())
    assert again.config == sorter.config
    torch.testing.assert_close(again.eval()(normal(2, LENGTH)), sorter.eval()(normal(2, LENGTH)), rtol=0, atol=0)


@every_sorter
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)])
def test_any_leading_shape(name: str, batch: tuple[int, ...]) -> None:
    sorter = small_sorter(name).eval()
    scores = normal(*batch, LENGTH)
    ranks = sorter(scores)
    assert ranks.shape == scores.shape
    rows = [sorter(row) for row in scores.reshape(-1, LENGTH)]
    if rows:
        torch.testing.assert_close(ranks.reshape(-1, LENGTH), torch.stack(rows), rtol=1e-4, atol=1e-4)


@every_sorter
def test_non_contiguous_scores(name: str) -> None:
    sorter = small_sorter(name).eval()
    scores = normal(LENGTH, 3).T
    torch.testing.assert_close(sorter(scores), sorter(scores.contiguous()))


@every_sorter
def test_shift_and_scale_change_nothing(name: str) -> None:
    sorter = small_sorter(name).eval().double()
    scores = normal(3, LENGTH, dtype=torch.float64)
    expected = sorter(scores)
    for other in (1000 + scores, 1e-3 * scores, 1e4 * (1000 + scores), 1e300 * scores, 1e-300 * scores):
        torch.testing.assert_close(sorter(other), expected, rtol=0, atol=1e-6)


def test_large_offset_small_spread() -> None:
    sorter = build_sorter("set").freeze()
    scores = torch.tensor([1000.1, 1000.4, 1000.2, 1000.3], dtype=torch.float64)
    expected = torch.tensor([4.0, 1.0, 3.0, 2.0], dtype=torch.float64)
    answers = [sorter(s) for s in (scores, scores - 1000, 0.001 * (scores - 1000), 1e4 * scores)]
    for answer in answers:
        torch.testing.assert_close(answer, expected, rtol=0, atol=0.2)
        torch.testing.assert_close(answer, answers[0], rtol=0, atol=1e-3)


@every_sorter
def test_constant_and_nearly_constant_lists_are_finite(name: str) -> None:
    sorter = small_sorter(name).freeze()
    for value in (0.4, 0.0, 1e30, -3e-38):
        scores = torch.full((2, LENGTH), value, requires_grad=True)
        ranks = sorter(scores)
        ranks.square().mean().backward()
        assert torch.isfinite(ranks).all()
        assert torch.isfinite(scores.grad).all()


def test_constant_list_is_all_ties_for_the_set_sorter() -> None:
    torch.testing.assert_close(build_sorter("set")(torch.full((7,), 0.1)), torch.full((7,), 4.0))
    torch.testing.assert_close(build_sorter("set")(torch.tensor([3.0])), torch.tensor([1.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@every_sorter
def test_precision(name: str, dtype: torch.dtype) -> None:
    sorter = small_sorter(name).freeze()
    scores = normal(2, LENGTH).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ranks = sorter(scores)
        loss = ranks.square().mean()
    loss.backward()
    assert ranks.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert scores.grad.dtype == dtype
    torch.testing.assert_close(ranks.float(), sorter(scores.detach().float()), rtol=0, atol=1e-5)


@every_sorter
def test_weights_stay_wide(name: str) -> None:
    sorter = small_sorter(name).freeze()
    before = copy.deepcopy(sorter.state_dict())
    holder = nn.ModuleDict({"loss": sorter, "model": nn.Linear(2, 2)})
    holder.half().bfloat16()
    assert holder["model"].weight.dtype == torch.bfloat16
    for key, tensor in sorter.state_dict().items():
        torch.testing.assert_close(tensor, before[key], rtol=0, atol=0)
    assert holder.double()["loss"](normal(2, LENGTH)).dtype == torch.float64


def test_long_lists_have_ranks_beyond_half_precision() -> None:
    scores = (torch.arange(3000) - 1500).div(2048).half()
    ranks = build_sorter("set").freeze()(scores)
    expected = torch.arange(3000, 0, -1).float()
    assert ranks.dtype == torch.float32
    assert (ranks - expected).abs().mean() < 0.005 * 3000


# ---- masks ----


@every_sorter
@pytest.mark.parametrize("padding", [0.0, -1.0, 1e9, math.nan, math.inf])
def test_masked_items_change_nothing(name: str, padding: float) -> None:
    sorter = small_sorter(name).freeze()
    n = 3 * LENGTH // 2
    order = torch.rand(4, n, generator=generator()).argsort(-1)
    where = order < LENGTH  # the real items, anywhere in the list
    sizes = [LENGTH] * 4
    if name in LENGTH_FREE:
        sizes = [LENGTH, 5, 0, 1]
        where = order < torch.tensor(sizes).unsqueeze(-1)
    values = normal(4, n)
    scores = torch.where(where, values, padding).requires_grad_()
    weights = normal(4, n, seed=1)
    ranks = sorter(scores, where)
    (ranks * weights).sum().backward()
    for i, size in enumerate(sizes):
        real = where[i]
        torch.testing.assert_close(ranks[i][~real], torch.zeros(n - size), rtol=0, atol=0)
        torch.testing.assert_close(scores.grad[i][~real], torch.zeros(n - size), rtol=0, atol=0)
        if size:
            alone = values[i][real].requires_grad_()
            expected = sorter(alone)
            (expected * weights[i][real]).sum().backward()
            torch.testing.assert_close(ranks[i][real], expected, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(scores.grad[i][real], alone.grad, rtol=1e-3, atol=1e-3)


@every_sorter
def test_all_items_real_is_no_mask(name: str) -> None:
    sorter = small_sorter(name).freeze()
    scores = normal(3, LENGTH)
    everything = torch.ones(LENGTH, dtype=torch.bool)
    torch.testing.assert_close(sorter(scores, everything), sorter(scores), rtol=1e-5, atol=1e-5)


@every_sorter
def test_no_item_real_is_zero_with_a_graph(name: str) -> None:
    scores = normal(2, LENGTH).requires_grad_()
    ranks = small_sorter(name).freeze()(scores, torch.zeros(2, LENGTH, dtype=torch.bool))
    ranks.sum().backward()
    torch.testing.assert_close(ranks.detach(), torch.zeros(2, LENGTH), rtol=0, atol=0)
    torch.testing.assert_close(scores.grad, torch.zeros(2, LENGTH), rtol=0, atol=0)


# ---- the set sorter ----


def test_set_sorter_is_permutation_equivariant_and_keeps_the_sum_of_ranks() -> None:
    sorter = small_sorter("set").double()
    for n in (2, 10, 1000):
        scores = normal(3, n, dtype=torch.float64)
        order = torch.randperm(n, generator=generator())
        ranks = sorter(scores)
        torch.testing.assert_close(sorter(scores[:, order]), ranks[:, order])
        torch.testing.assert_close(ranks.sum(-1), torch.full((3,), n * (n + 1) / 2, dtype=torch.float64))
        torch.testing.assert_close(sorter(-scores), n + 1 - ranks)


@pytest.mark.parametrize("n", [10, 100, 1000])
def test_set_sorter_is_a_soft_rank_before_any_training(n: int) -> None:
    scores = normal(20, n)
    exact = 1 + (scores.unsqueeze(-2) > scores.unsqueeze(-1)).sum(-1)
    assert (build_sorter("set")(scores) - exact).abs().mean() < 0.02 * n


@pytest.mark.parametrize("head", ["dense", "item"])
@pytest.mark.parametrize(("name", "n", "limit"), [("lstm", 30, 0.02), ("lstm", 100, 0.01), ("lstm-large", 30, 0.02)])
def test_lstm_that_counts_is_a_soft_rank_before_any_training(name: str, n: int, limit: float, head: str) -> None:
    scores = torch.cat([normal(20, n), normal(20, n, seed=1).exp(), normal(20, n, seed=2).round()])
    exact = (
        1
        + (scores.unsqueeze(-2) > scores.unsqueeze(-1)).sum(-1)
        + 0.5 * ((scores.unsqueeze(-2) == scores.unsqueeze(-1)).sum(-1) - 1)
    )
    with torch.no_grad():
        assert (build_sorter(name, n, head=head)(scores) - exact).abs().mean() < limit * n


def test_both_heads_read_the_counts_alike() -> None:
    dense, item = (build_sorter("lstm", 20, head=head, hidden=8) for head in ("dense", "item"))
    scores = normal(5, 20)
    torch.testing.assert_close(item(scores), dense(scores), rtol=0, atol=1e-4)
    assert sum(weight.numel() for weight in item.head.parameters()) == 17


def test_only_an_item_head_that_counts_has_a_fixed_length() -> None:
    counting = build_sorter("lstm", 20, head="item", hidden=8)
    assert (counting.seq_len, counting.config["seq_len"], counting.config["init"]) == (20, 20, "counting")
    message = (
        "`scores` must have lists of 20 items, the length this lstm sorter was built for, got 19 real items. Leave a "
        "shorter last batch out (drop_last=True), use a sorter for any length such as 'set', or train one: "
        "sodeep train-sorter --sorter lstm --seq-len 19"
    )
    with pytest.raises(ValueError, match=whole(message)):
        counting(normal(2, 19))
    free = {
        "no length": build_sorter("lstm", head="item", hidden=8),
        "random": build_sorter("lstm", 20, head="item", hidden=8, init="random"),
        "few units": build_sorter("lstm", 20, head="item", hidden=7),
        "sum": build_sorter("lstm", 20, head="sum", hidden=8),
        "no counter": build_sorter("gru", 20, head="item", hidden=8),
    }
    for case, sorter in free.items():
        assert sorter.seq_len is None, case
        assert sorter.config["seq_len"] is None, case
        assert sorter.config.get("init", "random") == "random", case
        assert sorter(normal(2, 19)).shape == (2, 19), case


def test_lstm_has_random_weights_as_published_on_request() -> None:
    torch.manual_seed(0)
    random = build_sorter("lstm", 5, init="random", hidden=8)
    torch.manual_seed(0)
    published = nn.LSTM(1, 8, 2, batch_first=True, bidirectional=True)
    torch.testing.assert_close(random.rnn.state_dict(), published.state_dict(), rtol=0, atol=0)
    counting = build_sorter("lstm", 5, hidden=8)
    assert [tuple(t.shape) for t in counting.parameters()] == [tuple(t.shape) for t in random.parameters()]
    message = "^`init` must be one of counting, random, got 'sorted'.$"
    with pytest.raises(ValueError, match=message):
        build_sorter("lstm", 5, init="sorted")


@pytest.mark.parametrize(
    ("n", "item", "missing"),
    [
        *[(37, 0, ()), (37, 36, ()), (73, 36, ()), (80, 43, ()), (90, 50, ()), (150, 75, ())],
        # some pairs meet in a layer in which neither is at an end of the window
        *[(37, 1, (36,)), (37, 3, (36,)), (40, 38, ()), (40, 37, (39,))],
        *[(60, 30, (0, 1, 59)), (100, 78, range(92, 100)), (100, 21, range(8))],
    ],
)
def test_cnn_compares_before_any_training(n: int, item: int, missing: Iterable[int]) -> None:
    """Exactly, an item with those within 36 places, but for a few near the ends; the others as if spread evenly."""
    scores = standardise(normal(8, n)).float()
    with torch.no_grad():
        ranks = build_sorter("cnn", n).eval()(scores)[:, item]
    score = scores[:, item]
    total = 0 * score
    for other in range(n):
        if abs(other - item) > 36:
            total -= score / 3**0.5
        elif other not in missing:
            total += ((scores[:, other] - score) / 0.2).clamp(-1, 1)
    torch.testing.assert_close(ranks / n, torch.sigmoid(2 / n * (1 + total)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("n", [37, 38, 60, 100, 150])
def test_cnn_that_compares_is_a_coarse_rank_before_any_training(n: int) -> None:
    scores = draw(SODEEP2019, 64, n, torch.Generator().manual_seed(0))
    sorter = build_sorter("cnn", n)
    assert rank_error(sorter.eval(), scores) < 0.065
    assert rank_error(sorter.train(), scores) < 0.09  # on the statistics of the batch
    assert rank_error(build_sorter("cnn", n, init="random").eval(), scores) > 0.2


def test_cnn_has_random_weights_as_published_on_request() -> None:
    torch.manual_seed(0)
    random = build_sorter("cnn", 40, init="random")
    torch.manual_seed(0)
    torch.testing.assert_close(random.layers[0][0].weight, nn.Conv1d(1, 8, 2).weight, rtol=0, atol=0)
    comparing = build_sorter("cnn", 40)
    assert [tuple(t.shape) for t in comparing.parameters()] == [tuple(t.shape) for t in random.parameters()]
    torch.manual_seed(0)
    build_sorter("cnn", 40)
    drawn = torch.rand(())
    torch.manual_seed(0)
    build_sorter("cnn", 40, init="random")
    torch.testing.assert_close(torch.rand(()), drawn, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"^`init` must be one of comparing, random, got 'sorted'.$"):
        build_sorter("cnn", 40, init="sorted")


def test_a_narrow_cnn_cannot_compare() -> None:
    class Narrow(SORTERS["cnn"]):  # type: ignore[misc]
        channels = (1, 8, 16, 16, 64, 96, 128, 256, 256, 128)

    assert Narrow(40, init="random")(normal(2, 40)).shape == (2, 40)
    with pytest.raises(
        ValueError, match="`init` must be 'random' where a convolution has fewer than 32 channels, got 16"
    ):
        Narrow(40)


def test_a_cnn_in_training_learns_in_every_layer() -> None:
    sorter = build_sorter("cnn", 40)
    optimizer = torch.optim.SGD(sorter.parameters(), lr=1e-3)
    for _ in range(2):  # spare channels get a gradient once the dense layer reads them
        optimizer.zero_grad()
        (sorter(normal(4, 40)) - exact_rank(normal(4, 40))).abs().mean().backward()
        optimizer.step()
    for weight in sorter.parameters():
        assert weight.grad.isfinite().all()
        assert weight.grad.abs().sum() > 0


def test_set_sorter_has_first_and_second_derivatives() -> None:
    sorter = small_sorter("set", gradient="values", frequencies=[3, 4], condition=4).double().freeze()
    scores = normal(2, 6, dtype=torch.float64).requires_grad_()
    where = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    assert torch.autograd.gradcheck(sorter, (scores,))
    assert torch.autograd.gradgradcheck(sorter, (scores,))
    assert torch.autograd.gradcheck(lambda s: sorter(s, where), (scores,))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # of torch's jvp itself
def test_set_sorter_has_the_values_of_its_stages_and_the_gradient_of_soft_ranks() -> None:
    sorter = small_sorter("set", frequencies=[3, 4], condition=4, width=0.7).double().freeze()
    values = build_sorter("set", gradient="values", frequencies=[3, 4], condition=4).double().freeze()
    values.load_state_dict(sorter.state_dict())
    scores = normal(2, 6, dtype=torch.float64).requires_grad_()
    vectors = normal(2, 6, seed=1, dtype=torch.float64)
    ranks = sorter(scores)
    torch.testing.assert_close(ranks, values(scores))
    (gradient,) = torch.autograd.grad(ranks, scores, vectors)

    # the scale of the list is a constant to it
    fixed = scores.detach().clone()
    location, _ = cauchy_fit(standardise(fixed), None)
    centre, unit = fixed.mean(-1, keepdim=True), fixed.std(-1, correction=0, keepdim=True)
    count = torch.full((2, 1), 6.0, dtype=torch.float64)

    def smooth(s: torch.Tensor) -> torch.Tensor:
        return -6 * smooth_rank((s - centre) / unit, None, count, location, 0.7)

    torch.testing.assert_close(gradient, torch.autograd.functional.vjp(smooth, fixed, vectors)[1])
    assert torch.autograd.gradcheck(smooth, (scores,))
    tangents = torch.func.jvp(sorter, (fixed,), (vectors,))[1]
    torch.testing.assert_close(tangents, torch.autograd.functional.jvp(smooth, fixed, vectors)[1])


@pytest.mark.parametrize("name", ["normal", "uniform", "ties", "heavy-tailed", "clusters", "bimodal"])
@pytest.mark.parametrize("width", [0.1, 0.25, 0.5, 1.0, 2.0])
def test_the_gradient_of_a_set_sorter_is_that_of_sigmoid_rank_at_its_width(name: str, width: float) -> None:
    sorter = build_sorter("set", width=width).freeze()
    scores = draw({name: 1.0}, 8, 60, torch.Generator().manual_seed(0)).requires_grad_()
    vectors = normal(8, 60, seed=1)
    for n in (60, 4):  # a few items have a wider one
        (got,) = torch.autograd.grad(sorter(scores[:, :n]), scores, vectors[:, :n])
        wide = with_width(sigmoid_rank, max(width, 2.5 / n))
        (want,) = torch.autograd.grad(wide(scores[:, :n]), scores, vectors[:, :n])
        assert torch.cosine_similarity(got, want, dim=-1).min() > 0.97
        torch.testing.assert_close(got.norm(dim=-1), want.norm(dim=-1), rtol=0.25, atol=0)


def test_a_width_of_a_set_sorter_is_a_view_of_it() -> None:
    sorter = small_sorter("set", width=0.5).freeze()
    wide = with_width(sorter, 2)
    assert type(wide) is type(sorter)
    assert (sorter.width, wide.width, wide.config["width"], sorter.config["width"]) == (0.5, 2.0, 2.0, 0.5)
    assert all(a is b for a, b in zip(wide.parameters(), sorter.parameters(), strict=True))
    assert wide.frozen
    scores, where = normal(3, LENGTH), torch.rand(3, LENGTH, generator=torch.Generator().manual_seed(2)) < 0.7
    torch.testing.assert_close(wide(scores, where), sorter(scores, where), rtol=0, atol=0)
    gradients = []
    for function in (sorter, wide, wide.with_width(0.5), copy.deepcopy(wide), pickle.loads(pickle.dumps(wide))):
        leaf = scores.clone().requires_grad_()
        function(leaf, where)[:, 0].sum().backward()
        assert (leaf.grad[~where] == 0).all()
        gradients.append(leaf.grad)
    assert not torch.allclose(gradients[0], gradients[1], rtol=0.1)
    for one, other in ((0, 2), (1, 3), (1, 4)):
        torch.testing.assert_close(gradients[one], gradients[other], rtol=0, atol=0)
    wide.double()
    assert next(sorter.parameters()).dtype == torch.float64
    assert repr(with_width(straight_through(sorter), 2).rank_fn) == repr(wide)


def test_a_set_sorter_may_have_no_width() -> None:
    with pytest.raises(ValueError, match=r"^`width` must be a finite number of at least 0.05, got 0.01\.$"):
        build_sorter("set").with_width(0.01)
    with pytest.raises(ValueError, match=r"^`width` must be a positive number, got -1\.$"):
        build_sorter("set", width=-1)
    message = (
        "`with_width` needs a set sorter with gradient='smooth', got gradient='values': its gradient is that of its "
        "values. Build it with gradient='smooth'."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build_sorter("set", gradient="values").with_width(1.0)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # of torch's jvp itself
@pytest.mark.parametrize("frozen", [True, False])
def test_forward_mode_finds_the_gradient_of_a_set_sorter(frozen: bool) -> None:
    sorter = small_sorter("set").double()
    sorter = sorter.freeze() if frozen else sorter
    scores = normal(1, 7, dtype=torch.float64)[0]
    expected = torch.func.jacrev(sorter)(scores)
    torch.testing.assert_close(torch.func.jacfwd(sorter)(scores), expected)
    with torch.no_grad():
        torch.testing.assert_close(torch.func.jacfwd(sorter)(scores), expected)


@pytest.mark.parametrize(("name", "options"), [("lstm", {"hidden": 9, "layers": 1}), ("set", {"condition": 3})])
def test_numpy_numbers_are_numbers(name: str, options: dict[str, int]) -> None:
    numpys = {key: np.int64(value) for key, value in options.items()}
    sorter = build_sorter(name, np.int64(5), **numpys)
    assert sorter.config == build_sorter(name, 5, **options).config
    assert json.dumps(sorter.config)


def test_a_counting_lstm_of_odd_width_has_one_random_unit() -> None:
    sorter = build_sorter("lstm", 20, hidden=9)
    for weight in sorter.rnn.parameters():
        assert (weight.reshape(4, 9, -1)[:, 8].abs() > 0).all()
    for counter in (sorter, build_sorter("lstm", 20, hidden=8)):
        scores = normal(5, 20)
        torch.testing.assert_close(counter(scores), build_sorter("lstm", 20, hidden=8)(scores), rtol=0, atol=1e-4)


@pytest.mark.parametrize("n", [20, 100, 1000])
def test_gradient_of_the_set_sorter_where_scores_tie_is_like_that_of_a_handcrafted_rank(n: int) -> None:
    """A model that starts with constant predictions takes a step of the usual size."""
    constant, one = torch.zeros(n), torch.zeros(n)
    one[0] = 1.0
    target = normal(1, n)[0]
    for scores in (constant, one):
        sizes = {}
        for rank_fn in (build_sorter("set").freeze(), with_width(laplace_rank, 1.0)):
            leaf = scores.clone().requires_grad_()
            spearman_loss(leaf, target, rank_fn=rank_fn).backward()
            sizes[rank_fn] = float(leaf.grad.norm())
        learned, handcrafted = sizes.values()
        assert handcrafted / 6 < learned < 6 * handcrafted


def test_set_sorter_under_function_transforms() -> None:
    sorter = small_sorter("set").double().freeze()
    scores = normal(4, 9, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(sorter)(scores), sorter(scores))
    slope = torch.func.grad(lambda s: sorter(s)[0])(scores[0])
    leaf = scores[0].clone().requires_grad_()
    torch.testing.assert_close(slope, torch.autograd.grad(sorter(leaf)[0], leaf)[0])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(lambda s: sorter(s)[0]))(scores)[0], slope)


@pytest.mark.parametrize("name", ["cnn", "mlp", "set"])
def test_compiles_into_one_graph(name: str) -> None:
    sorter = small_sorter(name).freeze()
    compiled = torch.compile(sorter, fullgraph=True, backend="aot_eager")
    for use in (sorter, compiled):
        scores = normal(2, LENGTH).requires_grad_()
        ranks = use(scores)
        ranks.square().sum().backward()
        if use is sorter:
            expected = (ranks, scores.grad)
    torch.testing.assert_close((ranks, scores.grad), expected, rtol=1e-4, atol=1e-3)
    if name == "set":
        where = normal(2, LENGTH) > 0
        torch.testing.assert_close(compiled(normal(2, LENGTH), where), sorter(normal(2, LENGTH), where))


@every_sorter
def test_double_backward(name: str) -> None:
    sorter = small_sorter(name)
    scores = normal(2, LENGTH).requires_grad_()
    enabled = torch.backends.cudnn.enabled
    with double_backward():
        assert not torch.backends.cudnn.enabled
        ranks = sorter(scores)
    assert torch.backends.cudnn.enabled == enabled
    (gradient,) = torch.autograd.grad((ranks * normal(2, LENGTH, seed=1)).sum(), scores, create_graph=True)
    gradient.square().sum().backward()
    # the gradient of a set sorter depends on no weight
    reached = scores if name == "set" else next(weight for weight in sorter.parameters() if weight.grad is not None)
    assert torch.isfinite(reached.grad).all()
    assert reached.grad.abs().sum() > 0


# ---- frozen ----


def three_steps(sorter: Sorter, mode: bool) -> tuple[list[float], list[Tensor]]:
    """A linear model under a loss that holds `sorter`, one optimiser over both, as users write it."""
    criterion = nn.Module()
    criterion.rank_fn = sorter
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.copy_(normal(1, 4, seed=2))
        model.bias.zero_()
    inputs, target = normal(LENGTH, 4, seed=3), normal(LENGTH, seed=4)
    everything = [*model.parameters(), *criterion.parameters()]
    optimizer = torch.optim.SGD(everything, lr=0.1, momentum=0.9, weight_decay=0.1)
    criterion.train(mode)
    losses, gradients = [], []
    for _ in range(3):
        optimizer.zero_grad()
        loss = spearman(sorter, model(inputs).squeeze(-1), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        gradients.append(model.weight.grad.clone())
    return losses, gradients


@every_sorter
def test_frozen_sorter_passes_gradients_and_does_not_move(name: str) -> None:
    sorter = small_sorter(name)
    spearman(sorter, normal(2, LENGTH), normal(2, LENGTH, seed=1)).backward()  # a left-over gradient
    sorter.freeze()
    before = copy.deepcopy(sorter.state_dict())
    results = [three_steps(sorter, mode) for mode in (True, False)]
    assert sum(weight.requires_grad for weight in sorter.parameters()) == 0
    for key, tensor in sorter.state_dict().items():
        torch.testing.assert_close(tensor, before[key], rtol=0, atol=0)
    assert results[0][0] == results[1][0]  # the same loss in training and evaluation mode
    for gradient in results[0][1]:
        assert torch.isfinite(gradient).all()
        assert gradient.abs().sum() > 0


@every_sorter
def test_nothing_thaws_a_frozen_sorter_but_unfreeze(name: str) -> None:
    sorter = small_sorter(name).freeze()
    before = copy.deepcopy(sorter.state_dict())
    model = nn.ModuleDict({"head": nn.Linear(2, 2), "loss": sorter})
    model.requires_grad_(True).train()
    model.apply(lambda module: [nn.init.zeros_(weight) for weight in module.parameters(recurse=False)])
    for weight in model.parameters():
        weight.requires_grad = True
    scores = normal(2, LENGTH).requires_grad_()
    sorter(scores).square().sum().backward()
    assert sorter.frozen
    assert scores.grad.abs().sum() > 0
    for weight in sorter.parameters():
        assert weight.grad is None
        assert not weight.requires_grad
    for key, tensor in sorter.state_dict().items():
        torch.testing.assert_close(tensor, before[key], rtol=0, atol=0)

    sorter.unfreeze()
    assert not sorter.frozen
    assert all(weight.requires_grad for weight in sorter.parameters())
    sorter(normal(2, LENGTH).requires_grad_()).square().sum().backward()
    assert all(weight.grad is not None for weight in sorter.parameters())


@every_sorter
@pytest.mark.parametrize("frozen", [False, True])
def test_modules_are_in_the_mode_their_backward_needs(name: str, frozen: bool) -> None:
    sorter = small_sorter(name)
    sorter = sorter.freeze() if frozen else sorter
    for mode in (True, False):
        sorter.train(mode)
        for module in sorter.modules():
            if isinstance(module, nn.RNNBase):
                assert module.training  # cuDNN has no backward otherwise
                assert module.dropout == 0
            if isinstance(module, nn.BatchNorm1d):
                assert module.training == (mode and not frozen)


@every_sorter
def test_copies_and_pickles_stay_frozen(name: str) -> None:
    sorter = small_sorter(name).freeze()
    buffer = io.BytesIO()
    torch.save(sorter, buffer)
    buffer.seek(0)
    copies = [copy.deepcopy(sorter), pickle.loads(pickle.dumps(sorter)), torch.load(buffer, weights_only=False)]
    scores = normal(2, LENGTH)
    for other in copies:
        assert other.frozen
        assert not any(weight.requires_grad for weight in other.parameters())
        torch.testing.assert_close(other.train()(scores), sorter(scores), rtol=0, atol=0)
    with torch.no_grad():
        for weight in copies[0].parameters():
            weight.zero_()
    torch.testing.assert_close(copies[1](scores), sorter(scores), rtol=0, atol=0)


@pytest.mark.usefixtures("process_group")
def test_loss_works_beside_a_model_in_ddp() -> None:
    sorter = small_sorter("set").freeze()
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    loss = spearman(sorter, model(normal(LENGTH, 4)).squeeze(-1), normal(LENGTH))
    loss.backward()
    assert model.module.weight.grad.abs().sum() > 0


# ---- normalisation ----


def test_standardise_is_the_population_z_score() -> None:
    scores = normal(4, 11)
    values = scores.double().numpy()
    expected = (values - values.mean(-1, keepdims=True)) / values.std(-1, keepdims=True)
    np.testing.assert_allclose(standardise(scores).numpy(), expected, atol=1e-12)


def test_standardise_over_the_real_items() -> None:
    scores = normal(1, 9)
    where = torch.tensor([[True, False, True, True, True, False, False, True, True]])
    expected = torch.zeros(1, 9, dtype=torch.float64)
    expected[where] = standardise(scores[where].unsqueeze(0)).squeeze(0)
    torch.testing.assert_close(standardise(scores.masked_fill(~where, math.nan), where), expected)


@pytest.mark.parametrize("value", [0.1, -7.3e200, 1.7e308, 5e-324])
def test_standardise_of_a_constant_list_is_exactly_zero(value: float) -> None:
    scores = torch.full((1, 7), value, dtype=torch.float64)
    torch.testing.assert_close(standardise(scores), torch.zeros_like(scores), rtol=0, atol=0)


def test_standardise_of_the_widest_list() -> None:
    big = torch.finfo(torch.float64).max
    torch.testing.assert_close(
        standardise(torch.tensor([[-big, big]], dtype=torch.float64)), torch.tensor([[-1.0, 1.0]], dtype=torch.float64)
    )


@every_sorter
def test_a_sorter_that_does_not_normalise_warns_outside_its_range(name: str) -> None:
    sorter = small_sorter(name, normalize=False).freeze()
    scores = normal(LENGTH).clamp(-1, 1)
    sorter(1000 + scores)  # nothing known of its range
    sorter.trained = {"scores": [-1.0, 1.0]}
    where = torch.ones(2, LENGTH, dtype=torch.bool)
    padded = torch.cat([scores, torch.full((LENGTH,), 1000.0)])
    sorter(padded, torch.arange(2 * LENGTH) < LENGTH)
    sorter(scores.expand(2, LENGTH), where)
    message = (
        f"The scores reach from 999 to 1001, and this {name} sorter, which does not normalise them, was trained on "
        "-1 to 1: its ranks are unreliable. Scale the scores, or use a sorter that normalises."
    )
    with pytest.warns(UserWarning, match=whole(message)):
        sorter(1000 + scores)


@pytest.mark.parametrize("name", LENGTH_FREE)
def test_lists_of_untested_lengths_give_one_warning(name: str) -> None:
    sorter = small_sorter(name).freeze()
    sorter(normal(3))  # nothing known of its lengths
    sorter.trained = {"lengths": [4, 8], "known_lengths": [4, 16]}
    where = torch.arange(20) < torch.tensor([[0], [1], [4], [16]])  # nothing to order in the first two
    for scores, mask in ((normal(4), None), (normal(2, 16), None), (normal(1), None), (normal(4, 20), where)):
        sorter(scores, mask)
    message = (
        f"`scores` has a list of 3 items, and this {name} sorter is known to work on lists of 4 to 16: beyond, its "
        "ranks or their gradient may be poor. Use a handcrafted rank such as laplace_rank, or train one: sodeep "
        f"train-sorter --sorter {name} --lengths 3 16"
    )
    where[1, :3] = True
    with pytest.warns(UserWarning, match=whole(message)) as caught:
        sorter(normal(4, 20), where)
    assert caught[0].filename == __file__
    sorter(normal(3))
    sorter(normal(100))


def test_without_a_measurement_the_lengths_trained_on_are_the_known_ones() -> None:
    sorter = small_sorter("set").freeze()
    assert sorter.known_lengths is None
    sorter.trained = {"lengths": [4, 8]}
    assert sorter.known_lengths == (4, 8)
    message = (
        "`scores` has a list of 9 items, and this set sorter is known to work on lists of 4 to 8: beyond, its ranks or "
        "their gradient may be poor. Use a handcrafted rank such as laplace_rank, or train one: sodeep train-sorter "
        "--sorter set --lengths 4 9"
    )
    with pytest.warns(UserWarning, match=whole(message)):
        sorter(normal(9))


# ---- bad input ----


@pytest.mark.parametrize("name", FIXED)
def test_another_length_is_an_error(name: str) -> None:
    message = (
        f"`scores` must have lists of 40 items, the length this {name} sorter was built for, got 39 real items. Leave "
        "a shorter last batch out (drop_last=True), use a sorter for any length such as 'set', or train one: "
        f"sodeep train-sorter --sorter {name} --seq-len 39"
    )
    sorter = small_sorter(name)
    with pytest.raises(ValueError, match=whole(message)):
        sorter(normal(2, 39))
    where = torch.ones(2, 40, dtype=torch.bool)
    where[1, 3] = False
    with pytest.raises(ValueError, match=whole(message)):
        sorter(normal(2, 40), where)


OPTIONS: dict[str, list[dict[str, object]]] = {
    "lstm": [{"head": "item"}, {"head": "sum"}, {"hidden": 4}, {"hidden": 8}, {"init": "random"}],
    "gru": [{"head": "dense"}, {"head": "item"}],
    "cnn": [{"init": "random"}],
    "set": [{"gradient": "values"}],
}


@pytest.mark.parametrize(("name", "options"), [(n, o) for n in SORTERS for o in [{}, *OPTIONS.get(n, [])]])
def test_class_methods_agree_with_the_sorters(name: str, options: dict[str, object]) -> None:
    kind = SORTERS[name]
    if kind.any_length(options):
        assert build_sorter(name, **options).seq_len is None
    else:
        with pytest.raises(ValueError, match=r"^`seq_len` must be given"):
            build_sorter(name, **options)
    with torch.device("meta"):
        sorter = build_sorter(name, 40, **options)
    assert sorter.any_length(sorter.config) == kind.any_length(options)
    assert sorter.recipe(sorter.config) == kind.recipe({**options, "seq_len": 40})


@pytest.mark.parametrize(("name", "shortest"), [("cnn", 37), ("mlp", 2)])
def test_a_length_that_cannot_be_trained_for_is_not_advised(name: str, shortest: int) -> None:
    sorter = build_sorter(name, 40)
    message = (
        f"`scores` must have lists of 40 items, the length this {name} sorter was built for, got {shortest - 1} real "
        "items. Leave a shorter last batch out (drop_last=True), use a sorter for any length such as 'set'."
    )
    with pytest.raises(ValueError, match=whole(message)):
        sorter(normal(2, shortest - 1))
    with pytest.raises(ValueError, match=f"--seq-len {shortest}$"):
        sorter(normal(2, shortest))
    TrainConfig(sorter=name, seq_len=shortest)
    with pytest.raises(ValueError, match=f"^`seq_len` must be .*at least {shortest}"):
        TrainConfig(sorter=name, seq_len=shortest - 1)


@pytest.mark.parametrize(
    ("scores", "kind", "message"),
    [
        (
            torch.arange(5),
            TypeError,
            "`scores` must be real floating point, got dtype int64. Convert it first: scores.float().",
        ),
        (
            torch.tensor([0.1, math.nan, 0.3]),
            ValueError,
            "`scores` must be finite, got 1 NaN or infinite of 3 values, the first (nan) at index (1,). Mask such "
            "items out with where=, or find the step that made them (torch.autograd.set_detect_anomaly).",
        ),
        (
            torch.zeros(3, 0),
            ValueError,
            "`scores` must have a last axis of at least one item, got shape (3, 0). "
            "The last axis is the list; leading axes are batch.",
        ),
        (
            [0.1, 0.2],
            TypeError,
            "`scores` must be a torch.Tensor, got list. Convert it first: torch.as_tensor(scores).",
        ),
    ],
)
def test_bad_scores(scores: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=whole(message)):
        build_sorter("set")(scores)


def test_sorter_on_another_device_is_an_error() -> None:
    message = (
        "`scores` must be on the device of the sorter (meta), got cpu. "
        "Move the sorter, or the loss that holds it: .to(scores.device)."
    )
    with pytest.raises(ValueError, match=whole(message)):
        build_sorter("set").to("meta")(normal(2, 3))


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        (
            "lstmm",
            {},
            "`name` must be one of cnn, lstm, lstm-large, lstm-end, gru, gru-proj, gru-sum, mlp, set, got 'lstmm'.",
        ),
        (
            "lstm",
            {"hiden": 3},
            "`config of the lstm sorter` must be one of seq_len, head, hidden, layers, normalize, init, got 'hiden'.",
        ),
        (
            "lstm",
            {},
            "`seq_len` must be given for the lstm sorter, which has a fixed length of list, got None. "
            "Give it, for example seq_len=100, or head='item' for lists of any length.",
        ),
        (
            "mlp",
            {},
            "`seq_len` must be given for the mlp sorter, which has a fixed length of list, got None. "
            "Give it, for example seq_len=100, or use a sorter for any length such as 'set'.",
        ),
        ("lstm", {"seq_len": 0}, "`seq_len` must be a whole number of at least 1, got 0."),
        ("lstm", {"seq_len": 0, "head": "item"}, "`seq_len` must be a whole number of at least 1, got 0."),
        ("lstm", {"seq_len": 9, "hidden": 1.5}, "`hidden` must be a whole number of at least 1, got 1.5."),
        ("lstm", {"seq_len": 9, "layers": 1025}, "`layers` must be a whole number from 1 to 1024, got 1025."),
        ("lstm", {"seq_len": 9, "head": "conv"}, "`head` must be one of dense, item, sum, got 'conv'."),
        ("lstm", {"seq_len": 9, "normalize": 1}, "`normalize` must be True or False, got 1."),
        ("set", {"frequencies": 16}, "`frequencies` must be a list of whole numbers, one for each stage, got 16."),
        ("set", {"smoothness": 0}, "`smoothness` must be a positive number, got 0."),
        ("set", {"frequencies": [16, 0]}, "`frequencies` must be a whole number from 1 to 1024, got 0."),
        ("set", {"frequencies": 2 * [600]}, "`sum(frequencies)` must be a whole number from 1 to 1024, got 1200."),
        (
            "cnn",
            {"seq_len": 36},
            "`seq_len` must be at least 37 for the cnn sorter, whose convolutions shorten the list by 36, got 36. "
            "Use a sorter for any length such as 'set' for short lists.",
        ),
    ],
)
def test_bad_config(name: str, config: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=whole(message)):
        build_sorter(name, **config)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # of torch's jvp itself
@every_sorter
def test_forward_mode_is_reverse_mode(name: str) -> None:
    sorter = small_sorter(name).double().freeze()
    scores, along = normal(2, LENGTH, dtype=torch.float64), normal(2, LENGTH, seed=1, dtype=torch.float64)
    weights = normal(2, LENGTH, seed=2, dtype=torch.float64)

    def value(s: Tensor) -> Tensor:
        return (sorter(s) * weights).sum()

    leaf = scores.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(leaf), leaf)
    forward = torch.func.jvp(value, (scores,), (along,))[1]
    torch.testing.assert_close(forward, (gradient * along).sum(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in SORTERS), ("set", {"gradient": "values"})])
def test_a_list_without_a_real_item_has_a_finite_gradient(name: str, options: dict[str, str]) -> None:
    n = LENGTH if name == "cnn" else 8  # anomalies are looked for after each operation
    for empty in ([1], [0, 1, 2]):
        sorter = small_sorter(name, n, **options)
        scores = normal(3, n).requires_grad_()
        where = torch.ones(3, n, dtype=torch.bool).index_fill(0, torch.tensor(empty), False)
        with torch.autograd.set_detect_anomaly(True), double_backward():
            (gradient,) = torch.autograd.grad(sorter(scores, where).square().sum(), scores, create_graph=True)
            (sorter(scores, where).square().sum() + gradient.square().sum()).backward()
        for tensor in (scores, *sorter.parameters()):
            if tensor.grad is not None:
                assert tensor.grad.isfinite().all()
        assert (scores.grad[~where] == 0).all()
