"""Arguments: numpy's numbers are numbers, wherever a whole or a real one is asked for."""

import json
import re

import numpy as np
import pytest
import torch

import sodeep
from sodeep._checks import check_at_least, check_bool, check_choice, check_number, check_positive, plain

SCORES = torch.tensor([[0.9, 0.2, 0.4, 0.3], [0.1, 0.8, 0.5, 0.7]])
RELEVANT = torch.tensor([[True, False, True, False], [False, True, False, False]])
WHOLE = [kind(3) for kind in (int, np.int8, np.uint8, np.int32, np.int64, np.uint64)]
REAL = [kind(0.5) for kind in (float, np.float16, np.float32, np.float64)]
NO_NUMBERS = [True, np.True_, "3", None, np.array(3), torch.tensor(3), 3 + 0j]


def raises(message):
    return pytest.raises(ValueError, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize("value", WHOLE, ids=repr)
def test_whole_numbers_come_back_as_pythons(value):
    for got in (check_at_least(value, 1, "x"), check_number(value, "x"), check_positive(value, "x"), plain(value)):
        assert type(got) is int
        assert got == 3


@pytest.mark.parametrize("value", REAL, ids=repr)
def test_real_numbers_come_back_as_pythons(value):
    for got in (check_number(value, "x"), check_positive(value, "x"), plain(value)):
        assert type(got) is float
        assert got == 0.5
    with raises(f"`x` must be a whole number of at least 0, got {value!r}."):
        check_at_least(value, 0, "x")


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_what_is_no_number(value):
    shown = "a tensor of shape () and dtype int64" if isinstance(value, torch.Tensor) else repr(value)
    with raises(f"`x` must be a whole number of at least 0, got {shown}."):
        check_at_least(value, 0, "x")
    with raises(f"`x` must be a positive number, got {shown}."):
        check_positive(value, "x")
    with raises(f"`x` must be a finite number, got {shown}."):
        check_number(value, "x")


@pytest.mark.parametrize("kind", [float, np.float32, np.float64])
def test_numbers_out_of_range(kind):
    for value in (kind("nan"), kind("inf"), kind("-inf")):
        with raises(f"`x` must be a positive number, got {value!r}."):
            check_positive(value, "x")
        with raises(f"`x` must be a finite number of at least 0, got {value!r}."):
            check_number(value, "x", low=0)
    with raises(f"`x` must be a finite number of at least 0.5, got {kind(0.25)!r}."):
        check_number(kind(0.25), "x", low=0.5)
    with raises(f"`x` must be a whole number of at least 1, got {np.int64(0)!r}."):
        check_at_least(np.int64(0), 1, "x")


@pytest.mark.parametrize("value", [1e39, -1e39, 1e300, 10**400, np.float64(1e300)], ids=str)
def test_numbers_that_float32_cannot_hold(value):
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    message = f"`x` must be within float32's range, +-3.4e+38, got {shown}."
    with raises(message):
        check_number(value, "x")
    with raises(message if value > 0 else f"`x` must be a positive number, got {shown}."):
        check_positive(value, "x")
    with raises(message.replace("`x`", "`tau`")):
        sodeep.SmoothAPLoss(tau=abs(value)) if value > 0 else check_number(value, "tau")


def test_true_or_false():
    for value in (True, False, np.True_, np.False_):
        got = check_bool(value, "x")
        assert type(got) is bool
        assert got == value
    for value in (1, 0, "no", None, torch.tensor(True), np.array(True)):
        shown = "a tensor of shape () and dtype bool" if isinstance(value, torch.Tensor) else repr(value)
        with raises(f"`x` must be True or False, got {shown}."):
            check_bool(value, "x")


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda value: sodeep.SmoothAPLoss(include_self=value), "include_self"),
        (lambda value: sodeep.QuantizedAPLoss(include_self=value), "include_self"),
        (lambda value: sodeep.SupAPLoss(include_self=value), "include_self"),
        (lambda value: sodeep.EmbeddingLoss(sodeep.SmoothAPLoss(), gather=value), "gather"),
        (lambda value: sodeep.CrossModalLoss(sodeep.SmoothAPLoss(), gather=value), "gather"),
    ],
)
def test_options_that_are_true_or_false(build, name):
    with raises(f"`{name}` must be True or False, got 'no'."):
        build("no")
    build(np.True_)


def test_a_memory_is_one():
    with pytest.raises(TypeError, match=r"^`memory` must be an EmbeddingMemory or None, got 'x'\.$"):
        sodeep.EmbeddingLoss(sodeep.SmoothAPLoss(), memory="x")


@pytest.mark.parametrize("value", [np.array(["a", "b"]), np.array("a"), torch.tensor(3), None, ["a"]], ids=repr)
def test_choices_are_words(value):
    shown = "a tensor of shape () and dtype int64" if isinstance(value, torch.Tensor) else repr(value)
    with raises(f"`x` must be one of a, b, got {shown}."):
        check_choice(value, ["a", "b"], "x")
    assert check_choice(np.str_("a"), ["a", "b"], "x") == "a"


@pytest.mark.parametrize("k", [torch.tensor(3), np.array(3), 2.5, None, ()], ids=repr)
def test_cut_offs(k):
    shown = "a tensor of shape () and dtype int64" if isinstance(k, torch.Tensor) else repr(k)
    with raises(f"`k` must be a whole number of at least 1, or several, got {shown}."):
        sodeep.RecallAtKLoss(k=k)
    assert sodeep.RecallAtKLoss(k=np.array([2, 4])).k == (2, 4)


def test_json_takes_numpys_numbers():
    assert json.loads(json.dumps({"a": [np.int64(3)], "b": np.float32(0.5)}, default=plain)) == {"a": [3], "b": 0.5}
    with pytest.raises(TypeError, match=r"^Object of type set is not JSON serializable$"):
        json.dumps({1, 2}, default=plain)


@pytest.mark.parametrize(
    "call",
    [
        lambda n, x: sodeep.recall_at_k(SCORES, RELEVANT, n(2)),
        lambda n, x: sodeep.average_precision(SCORES, RELEVANT, n(2), chunk_size=n(1)),
        lambda n, x: sodeep.pmrp(SCORES, RELEVANT, torch.eye(4).bool(), [n(2)]),
        lambda n, x: sodeep.laplace_rank(SCORES, x(0.5)),
        lambda n, x: sodeep.sigmoid_rank(SCORES, x(0.5)),
        lambda n, x: sodeep.blackbox_rank(SCORES, x(0.5)),
        lambda n, x: sodeep.generators.draw({"normal": x(0.5)}, n(2), n(3), torch.Generator().manual_seed(0)),
        lambda n, x: list(sodeep.BalancedBatchSampler([0, 0, 1, 1], n(2), n(2), num_replicas=n(1), rank=n(0))),
        lambda n, x: sodeep.contributing_pairs(sodeep.NTXentLoss(), SCORES, RELEVANT, threshold=x(0.5)),
        lambda n, x: sodeep.EmbeddingMemory(n(4), n(2), warmup=n(0)).embeddings,
    ],
)
def test_functions_take_numpys_numbers(call):
    expected = call(int, float)
    for whole, real in ((np.int64, np.float64), (np.int32, np.float32)):
        torch.testing.assert_close(call(whole, real), expected, rtol=0, atol=0)


def test_a_run_of_numpys_numbers_is_that_of_pythons(tmp_path):
    def config(whole, real):
        return sodeep.TrainConfig(
            steps=whole(2),
            batch_size=whole(2),
            lengths=(whole(4), whole(8)),
            validate_every=whole(1),
            seed=whole(3),
            lr=real(0.125),
            ema=real(0.5),
            distributions={"normal": real(1.5)},
            sorter_config={"condition": whole(8), "frequencies": [whole(4)], "smoothness": real(2.5)},
        )

    own, numpys = config(int, float), config(np.int64, np.float32)
    assert numpys == own
    assert repr(numpys) == repr(own)
    assert sodeep.train_sorter(numpys, out=tmp_path / "s").steps == 2
    sodeep.save_sorter(
        tmp_path / "s", sodeep.build_sorter("set", condition=np.int64(8)), training={"e": np.float32(0.5)}
    )
    loaded = sodeep.load_sorter(tmp_path / "s")
    assert loaded.config["condition"] == 8
    assert loaded.trained == {"e": 0.5}


def test_refreshed_sorter_takes_numpys_numbers():
    def weights(whole, real):
        torch.manual_seed(0)
        ranker = sodeep.RefreshedSorter(
            sodeep.build_sorter("set"),
            capacity=whole(8),
            steps=whole(2),
            batch_size=whole(2),
            lr=real(0.125),
            gradient_weight=real(0.5),
            seed=whole(1),
        )
        ranker(SCORES)
        ranker.refresh()
        return ranker.state_dict()

    torch.testing.assert_close(weights(np.int64, np.float32), weights(int, float), rtol=0, atol=0)
