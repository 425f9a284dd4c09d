"""Arguments: numpy's numbers are numbers, wherever a whole or a real one is asked for."""

import errno
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import sodeep
from sodeep._core.checks import (
    check_at_least,
    check_bool,
    check_choice,
    check_computes,
    check_number,
    check_positive,
    check_writable,
    plain,
    reworded,
    with_remedy,
)

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
    with pytest.raises(
        TypeError, match=r"^`memory` must be .*, got 'x'\. Make one: sodeep.EmbeddingMemory\(size, dim\)\.$"
    ):
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
    assert numpys.resolve() == own.resolve()
    assert repr(numpys.resolve()) == repr(own.resolve())
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


# ---- paths and devices -----------------------------------------------------------------------------------------------


def compare_and_report():
    import sodeep.report

    sodeep.comparison.compare("toy", ["bce"], out="~/c", seeds=1, max_steps=5)
    assert sodeep.comparison.read_runs("~/c")
    comparison = sodeep.comparison.read_comparison("~/c")
    sodeep.report.write_report(comparison, out="~/r")
    sodeep.report.write_tensorboard(comparison, [], "~/b")
    assert {path.name for path in Path("~").expanduser().iterdir()} == {"t.csv", "c", "r", "b"}


@pytest.mark.parametrize(
    "use",
    [
        lambda: sodeep.save_sorter("~/s.safetensors", sodeep.build_sorter("gru-sum")),
        lambda: sodeep.load_sorter(sodeep.save_sorter("~/s.safetensors", sodeep.build_sorter("gru-sum"))),
        lambda: sodeep.export_sorter("~/s.pt2", sodeep.build_sorter("mlp", 4, hidden=2)),
        lambda: sodeep.train_sorter(
            sodeep.TrainConfig(steps=1, batch_size=1, lengths=(4, 5)), out="~/s", log_dir=Path("~/log")
        ),
        compare_and_report,
        lambda: sodeep.datasets.memorability.read_table("~/t.csv"),
        lambda: sodeep.tasks.TASKS["memorability"].load("~/t.csv"),
        lambda: sodeep.tasks.TASKS["memorability"].load("~/t.csv", target="x"),
        lambda: sodeep.comparison.losses_by_name.loss_by_name(
            f"spearman:{sodeep.save_sorter('~/s', sodeep.build_sorter('gru-sum')) and '~/s'}"
        ),
    ],
    ids=["save", "load", "export", "train", "compare", "layout", "task", "target", "loss"],
)
def test_the_home_folder_may_be_written_as_a_tilde(tmp_path, monkeypatch, use):
    import sodeep.report  # noqa: F401  # and compare and tasks with it: the cases use them

    home = tmp_path / "home"
    home.mkdir()
    (home / "t.csv").write_text("score,x\n" + "".join(f"0.{i},{i * i}\n" for i in range(10, 40)))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    use()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize(
    "missing",
    [
        lambda: sodeep.import_sodeep2019("~/no.pth"),
        lambda: sodeep.generators.read_scores_file("~/no.csv"),
        lambda: sodeep.train_sorter(sodeep.TrainConfig(scores_file="~/no.csv")),
        lambda: sodeep.train_sorter(out="~/no", resume=True),
        lambda: sodeep.datasets.revisited.read_revisited("~/no.pkl"),
    ],
)
def test_the_home_folder_is_where_files_are_missed(tmp_path, monkeypatch, missing):
    import sodeep.datasets.revisited  # noqa: F401

    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError) as error:
        missing()
    assert f"{tmp_path}/no" in str(error.value)


def test_a_remedy_is_worded_for_those_who_give_its_arguments():
    error = with_remedy(
        ValueError, "`a {}` is 1.", "Give {lr_rate} and {force}, or leave {a} out.", lr_rate=2, force=True, a=None
    )
    assert str(error) == "`a {}` is 1. Give lr_rate=2 and force=True, or leave a out."
    assert reworded(error, lambda name, value: f"<{name} {value}>") == (
        "`a {}` is 1. Give <lr_rate 2> and <force True>, or leave <a None> out."
    )
    assert reworded(KeyError("x"), lambda name, value: "") == "'x'"


def test_a_target_is_checked_without_being_made(tmp_path, monkeypatch):
    target = tmp_path / "figures.json"
    check_writable(target)
    assert list(tmp_path.iterdir()) == []
    target.write_text("old")
    check_writable(target)
    assert target.read_text() == "old"
    with pytest.raises(IsADirectoryError, match=f"^`out` must be a file, got the folder {tmp_path}. Add a name.$"):
        check_writable(tmp_path)
    message = f"^`out` must be in a folder that exists, got {target}/x. Make it first: {target}.$"
    with pytest.raises(FileNotFoundError, match=message):
        check_writable(target / "x")

    def refuse(*args):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    new = tmp_path / "new.json"
    message = f"^`out` must be a file that can be written, got {new}: Read-only file system.$"
    with pytest.raises(OSError, match=message):
        check_writable(new)


def test_a_device_that_is_not_there_has_a_reason_of_one_line(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("Cannot get a generator without the library. PyTorch splits its backend " + 900 * "x")

    monkeypatch.setattr(torch, "Generator", refuse)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = "`device` must be one that PyTorch can compute on here, got {} ({}). Use 'auto' or 'cpu'."
    with raises(message.format("'xpu'", "Cannot get a generator without the library")):
        check_computes("xpu")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with raises(message.format("'cuda:1'", "no GPU is found")):
        check_computes("cuda:1")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with raises(message.format("'cuda'", f"torch {torch.__version__} is built without CUDA")):
        check_computes("cuda")
