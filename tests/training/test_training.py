"""Training: what a run promises. Sizes are tiny; how good a sorter gets is measured by scripts, not here."""

import dataclasses
import inspect
import json
import math
import os
import pickle
import signal
import sys
import threading

import pytest
import safetensors.torch
import torch
from torch import nn

import sodeep
from sodeep import training
from sodeep._core.sealed import header_end, seal
from sodeep.generators import draw
from sodeep.ranks import exact_rank
from sodeep.sorters import build_sorter
from sodeep.sorters.set import SetSorter
from sodeep.training.config import TrainConfig
from sodeep.training.objective import (
    directional_derivative,
    gradient_mismatch,
    mean_deviation,
    mismatch_with_smooth_rank,
    smooth_rank_vjp,
    sorter_loss,
)
from sodeep.training.run import Run
from sodeep.training.train import TrainingInterrupted, _read_state, state_path, train_sorter

TINY = {"lr": 2e-3, "steps": 6, "batch_size": 2, "lengths": (4, 12), "validate_every": 2}
DISTRIBUTIONS = {"normal": 1.0, "ties": 1.0}
CNN = {"sorter": "cnn", "seq_len": 40, "validate_every": 6}
"""Validated once: the statistics of its batch norms take as long as all of its steps."""


def tiny(**changes):
    options = {**TINY, "distributions": DISTRIBUTIONS, **changes}
    if "seq_len" in changes:
        del options["lengths"]
    return TrainConfig(**options)


def weights(sorter):
    return sorter.state_dict()


def assert_same_weights(a, b):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=0)


def raises(kind, message):
    """Raises with the whole message."""
    import re

    return pytest.raises(kind, match="^" + re.escape(message) + "$")


# ---- the config ----------------------------------------------------------------------------------------------------


def test_config_is_plain_values_and_survives_json():
    config = tiny(sorter="lstm", seq_len=8, sorter_config={"hidden": 4})
    assert TrainConfig(**json.loads(json.dumps(config.to_dict()))).resolve() == config.resolve()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lr = 1.0


def test_config_is_the_one_its_file_gives_back(tmp_path, monkeypatch):
    config = tiny(sorter_config={"frequencies": (4, 6)}, device=torch.device("cpu"))
    assert TrainConfig(**json.loads(json.dumps(config.to_dict()))).resolve() == config.resolve()
    interrupt_after(monkeypatch, step=3)
    with pytest.raises(TrainingInterrupted):
        train_sorter(config, out=tmp_path / "s")
    monkeypatch.undo()
    assert train_sorter(config, out=tmp_path / "s", resume=True).steps == 6
    with pytest.raises(TypeError, match="`sorter_config` must hold plain JSON values"):
        tiny(sorter_config={"hidden": torch.ones(1)})


def test_recipe_fills_in_what_is_not_given():
    assert TrainConfig(sorter="mlp").resolve().lr == 1e-3
    assert TrainConfig(sorter="lstm").resolve().lr == 2e-5  # a larger rate would break what it starts with
    for options in ({"init": "random"}, {"head": "item"}, {"hidden": 4}):  # all of which start at random
        assert TrainConfig(sorter="lstm", sorter_config=options).resolve().lr == 1e-3
    assert TrainConfig(sorter="lstm", seq_len=20, sorter_config={"head": "item"}).resolve().lr == 2e-5
    assert TrainConfig(sorter="lstm", seq_len=20, sorter_config={"head": "sum"}).resolve().lr == 1e-3
    assert TrainConfig(sorter="cnn").resolve().lr == 5e-4
    assert TrainConfig(sorter="cnn", sorter_config={"init": "random"}).resolve().lr == 1e-3
    assert TrainConfig(sorter="lstm").resolve().seq_len == 100
    assert TrainConfig(sorter="set").resolve().seq_len is None
    assert TrainConfig(sorter="gru").resolve().seq_len is None
    assert TrainConfig(sorter="lstm", sorter_config={"head": "item"}).resolve().seq_len is None
    assert TrainConfig(lr=0.5).resolve().lr == 0.5
    assert TrainConfig().lr is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"sorter": "quicksort"},
            f"`sorter` must be one of {', '.join(sodeep.SORTERS)}, got 'quicksort'.",
        ),
        ({"steps": 0}, "`steps` must be a whole number of at least 1, got 0."),
        ({"steps": "many"}, "`steps` must be a whole number of at least 1, got 'many'."),
        ({"validate_every": 0}, "`validate_every` must be a whole number of at least 1, got 0."),
        ({"seed": 2**63}, "`seed` must be below 2**63, got 9223372036854775808."),
        ({"sorter_config": {"seq_len": 5}}, "`sorter_config` must not hold 'seq_len', got 5. Give it as `seq_len`."),
        ({"sorter_config": {"name": "set"}}, "`sorter_config` must not hold 'name', got 'set'. Give it as `sorter`."),
        ({"batch_size": 2.5}, "`batch_size` must be a whole number of at least 1, got 2.5."),
        ({"lr": -1.0}, "`lr` must be a positive number, got -1.0."),
        ({"max_time": 0}, "`max_time` must be a positive number, got 0."),
        ({"lengths": (10, 5)}, "`lengths[1]` must be a whole number of at least 10, got 5."),
        ({"lengths": (10,)}, "`lengths` must be (shortest, longest), got (10,)."),
        ({"seq_len": 1}, "`seq_len` must be a whole number of at least 2, got 1."),
        ({"warmup": 1.5}, "`warmup` must be at least 0 and below 1, got 1.5."),
        (
            {"sorter": "gru", "gradient_weight": -1.0},
            "`gradient_weight` must be at least 0 and below inf, got -1.0.",
        ),
        (
            {"gradient_weight": 0.01},
            "`gradient_weight` must be 0 for this set sorter, whose gradient is not trained, got 0.01. Leave it out.",
        ),
        ({"schedule": "linear"}, "`schedule` must be one of cosine, step, got 'linear'."),
        ({"clip": 0}, "`clip` must be a positive number, got 0."),
        ({"top_weighted": 1}, "`top_weighted` must be True or False, got 1."),
        ({"value_loss": "l7"}, "`value_loss` must be one of l1, l2, huber, got 'l7'."),
        ({"precision": "float16"}, "`precision` must be one of float32, tf32, got 'float16'."),
        (
            {"sorter": "gru", "compile": True, "gradient_weight": 0.5},
            "`compile` must be False while gradient_weight is not 0 (0.5), got True: a compiled network has no second "
            "derivative. Set gradient_weight=0, or leave compile out.",
        ),
        (
            {"distributions": {"gaussian": 1.0}},
            f"`weights` must be one of {', '.join([*sodeep.DISTRIBUTIONS, 'user'])}, got 'gaussian'.",
        ),
        (
            {"sorter": "lstm", "lengths": (5, 50)},
            "`lengths` must not be given for the lstm sorter, which has a fixed length of list, got (5, 50). "
            "Give that as `seq_len`, or train a sorter for any length such as 'set'.",
        ),
        (
            {"seq_len": 20, "lengths": [5, 50]},
            "`lengths` must not be given beside `seq_len`, the one length to train for, got (5, 50) and 20. "
            "Leave one of them out.",
        ),
        (
            {"sorter": "cnn", "seq_len": 20},
            "`seq_len` must be at least 37 for the cnn sorter, whose convolutions shorten the list by 36, got 20. "
            "Use a sorter for any length such as 'set' for short lists.",
        ),
        (
            {"device": "tpu9"},
            "`device` must be auto, cpu, cuda, cuda:1, ..., got 'tpu9'.",
        ),
    ],
)
def test_bad_config(change, message):
    with raises(ValueError, message):
        TrainConfig(**change)


def test_options_that_a_sorter_does_not_have_are_refused_at_once():
    with pytest.raises(ValueError, match=r"^`config of the mlp sorter` must be one of .*, got 'units'\.$"):
        TrainConfig(sorter="mlp", sorter_config={"units": 4})


def test_a_compiled_run_is_the_same(monkeypatch):
    compiled, compiler = [], torch.compile

    def compile_eagerly(function):
        compiled.append(function)
        return compiler(function, backend="eager")

    monkeypatch.setattr(torch, "compile", compile_eagerly)
    same = {"sorter": "mlp", "seq_len": 6, "sorter_config": {"hidden": 4}, "gradient_weight": 0.0}
    assert_same_weights(
        weights(train_sorter(tiny(**same, compile=True)).sorter), weights(train_sorter(tiny(**same)).sorter)
    )
    assert len(compiled) == 1


# ---- reproducible --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, CNN, {"sorter": "lstm", "seq_len": 5}])
def test_same_seed_same_file(tmp_path, monkeypatch, changes):
    monkeypatch.setattr("sodeep.training.run.STATISTICS_BATCHES", 5)
    for name in ("a", "b"):
        train_sorter(tiny(**changes), out=tmp_path / name)
        torch.rand(3)  # the global generator plays no part
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    train_sorter(tiny(**changes, seed=1), out=tmp_path / "c")
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()


def test_global_generator_is_left_alone():
    before = torch.get_rng_state()
    train_sorter(tiny())
    torch.testing.assert_close(torch.get_rng_state(), before)


def test_result_is_frozen_loaded_and_described(tmp_path):
    result = train_sorter(tiny(), out=tmp_path / "set.safetensors")
    loaded = sodeep.load_sorter(tmp_path / "set.safetensors")
    scores = torch.randn(3, 7)
    torch.testing.assert_close(result.sorter(scores), loaded(scores), rtol=0, atol=0)
    assert not any(p.requires_grad for p in result.sorter.parameters())
    assert set(result.errors) == {"validation", *DISTRIBUTIONS}
    assert loaded.trained["steps"] == 6
    assert loaded.trained["seed"] == 0
    assert loaded.trained["lengths"] == [4, 12]
    assert loaded.trained["errors"] == result.errors
    assert not state_path(tmp_path / "set.safetensors").exists()


def test_best_weights_are_kept(monkeypatch):
    """A learning rate that ruins the weights after the first validation leaves those of the first validation."""
    from sodeep import training

    monkeypatch.setattr(training.run.Run, "learning_rate", lambda run: 1e-3 if run.step < 2 else 0.3)
    random = {"sorter": "gru-sum", "seq_len": 8}  # the set sorter starts better than two steps make it
    spoilt = train_sorter(tiny(**random))
    monkeypatch.setattr(training.run.Run, "learning_rate", lambda run: 1e-3)
    short = train_sorter(tiny(**random, steps=2))
    assert spoilt.best_step == 2
    assert spoilt.history[-1]["objective"] > spoilt.history[0]["objective"]
    assert spoilt.errors == spoilt.history[0]["errors"] == short.errors
    assert_same_weights(weights(spoilt.sorter), weights(short.sorter))


def test_initial_weights_are_kept_where_no_validation_is_better(tmp_path, monkeypatch):
    from sodeep import training

    monkeypatch.setattr(training.run.Run, "learning_rate", lambda run: 0.3)
    result = train_sorter(tiny(), out=tmp_path / "whole")
    assert result.best_step == 0
    assert result.error < min(row["errors"]["validation"] for row in result.history)
    assert_same_weights(weights(result.sorter), training.run.Run(tiny().resolve()).weights)
    interrupt_after(monkeypatch, step=3)
    with pytest.raises(TrainingInterrupted):
        train_sorter(tiny(), out=tmp_path / "parts")
    monkeypatch.undo()
    monkeypatch.setattr(training.run.Run, "learning_rate", lambda run: 0.3)
    assert train_sorter(out=tmp_path / "parts", resume=True).best_step == 0
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes()


@pytest.mark.parametrize("sorter", ["mlp", "gru-sum"])
def test_training_learns(sorter):
    config = TrainConfig(
        sorter=sorter,
        seq_len=8,
        steps=150,
        batch_size=32,
        lr=3e-3,
        gradient_weight=0.0,
        distributions={"uniform": 1.0},
        sorter_config={"hidden": 32} if sorter == "mlp" else {},
    )
    result = train_sorter(config)
    first, last = result.history[0]["errors"]["validation"], result.error
    assert last < 0.7 * first


def test_the_gradient_of_short_lists_is_learned():
    sorter = train_sorter(tiny(seq_len=3, steps=25, validate_every=25)).sorter
    assert sodeep.optimization_score(sorter, n=3, steps=(100,))[100] >= 0.97


def test_short_lists_weigh_less_in_the_values():
    """By the square of a length below ten: their gradients agree, and would rule those of long lists."""
    sorter = build_sorter("set")
    for n, weight in ((2, 0.04), (5, 0.25), (10, 1.0), (30, 1.0)):
        scores = draw({"normal": 1}, 8, n, torch.Generator().manual_seed(0))
        plain = nn.functional.l1_loss(sorter(scores), exact_rank(scores)) / n
        loss = sorter_loss(sorter, scores, torch.Generator(), gradient_weight=0)
        torch.testing.assert_close(loss, weight * plain)


def test_longer_lists_are_known_where_they_were_measured_to_be_as_good(tmp_path, monkeypatch):
    long = tiny(lengths=(40, 160))
    assert train_sorter(long, out=tmp_path / "set").sorter.known_lengths == (40, 1600)
    assert sodeep.load_sorter(tmp_path / "set").trained["known_lengths"] == [40, 1600]
    assert train_sorter(tiny(sorter="gru-sum")).sorter.known_lengths == (4, 12)
    assert "known_lengths" not in train_sorter(tiny(sorter="mlp", seq_len=6)).sorter.trained
    monkeypatch.setattr("sodeep.training.run.LONGEST_MEASURED", 500)
    assert train_sorter(long).sorter.known_lengths == (40, 500)

    monkeypatch.setattr(SetSorter, "values", lambda self, scores: self(scores) + 100 * (scores.shape[-1] > 160))
    assert train_sorter(long).sorter.known_lengths == (40, 160)


def test_top_weighted_items_count_by_their_rank():
    scores = draw({"normal": 1}, 8, 12, torch.Generator().manual_seed(0))
    sorter, target = build_sorter("mlp", 12, hidden=8), exact_rank(scores)
    weight = 1 / target / (1 / target).mean(-1, keepdim=True)
    plain = (weight * (sorter(scores) - target).abs()).mean() / 12
    loss = sorter_loss(sorter, scores, torch.Generator(), gradient_weight=0, top_weighted=True)
    torch.testing.assert_close(loss, plain)
    vectors = torch.randn(8, 12, generator=torch.Generator().manual_seed(1))
    leaf = scores.clone().requires_grad_()
    one = torch.full_like(vectors, 1.0)
    equal = gradient_mismatch(sorter(leaf), leaf, vectors, 0.25)
    torch.testing.assert_close(gradient_mismatch(sorter(leaf), leaf, vectors, 0.25, one), equal)
    first = (target == 1).float()
    (got,) = torch.autograd.grad(sorter(leaf), leaf, vectors)
    spread = mean_deviation(scores)
    want = smooth_rank_vjp(scores / spread, vectors, 0.25)
    size = (first * want.square()).sum(-1) + (0.03 * 12) ** 2 * vectors.square().sum(-1)
    expected = ((first * (got * spread - want).square()).sum(-1) / size).mean()
    torch.testing.assert_close(gradient_mismatch(sorter(leaf), leaf, vectors, 0.25, first), expected)
    result = train_sorter(tiny(sorter="gru-sum", top_weighted=True))
    assert result.sorter.trained["config"]["top_weighted"]


def test_the_step_schedule_halves_the_rate():
    run = Run(tiny(steps=400, schedule="step", warmup=0.0, lr=1.0).resolve())
    rates = []
    for run.step in (0, 69, 71, 139, 141, 399):
        rates.append(run.learning_rate())
    assert rates == [1, 1, 0.5, 0.5, 0.25, 0.5**5]


@pytest.mark.parametrize("name", [name for name in sodeep.SORTERS if name != "set"])
def test_the_recipe_of_2019(name):
    config = TrainConfig.sodeep2019(name).resolve()
    assert (config.seq_len, config.batch_size, config.lr, config.steps) == (100, 256, 1e-3, 400 * 1406)
    assert (config.gradient_weight, config.schedule, config.warmup, config.clip) == (0, "step", 0, None)
    assert config.distributions == sodeep.SODEEP2019
    may_count = "init" in inspect.signature(sodeep.SORTERS[name]).parameters
    assert config.sorter_config.get("init") == ("random" if may_count else None)
    assert not config.sorter_config["normalize"]
    assert TrainConfig(**config.to_dict()).resolve() == config


def test_the_recipe_of_2019_can_be_changed_and_trains():
    small = {"sorter_config": {"hidden": 4}, "seq_len": 6, "steps": 4, "batch_size": 3}
    config = TrainConfig.sodeep2019("lstm", **small)
    assert config.sorter_config == {"normalize": False, "init": "random", "hidden": 4}
    assert train_sorter(config).steps == 4
    with raises(
        ValueError, f"`sorter` must be one of {', '.join(n for n in sodeep.SORTERS if n != 'set')}, got 'set'."
    ):
        TrainConfig.sodeep2019("set")


def test_ema_validates_the_average():
    random = {"sorter": "gru-sum", "seq_len": 8}
    result = train_sorter(tiny(**random, ema=0.9))
    plain = train_sorter(tiny(**random))
    name, value = next(iter(weights(result.sorter).items()))
    assert not torch.equal(value, weights(plain.sorter)[name])


def test_own_scores_take_part(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("0.1,0.5,0.2,0.9\n3,1,2,5\n")
    result = train_sorter(tiny(scores_file=path))
    assert "user" in result.errors
    assert result.config.distributions["user"] == 2.0


# ---- interruptible -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"ema": 0.9}, CNN, {"gradient_weight": 0.0}])
def test_resume_reaches_the_same_weights(tmp_path, monkeypatch, changes):
    whole = train_sorter(tiny(**changes), out=tmp_path / "whole")
    interrupt_after(monkeypatch, step=3)  # between two validations
    with pytest.raises(TrainingInterrupted) as stop:
        train_sorter(tiny(**changes), out=tmp_path / "parts")
    monkeypatch.undo()
    assert stop.value.step == 3
    assert stop.value.checkpoint == tmp_path / "parts.run"
    assert not (tmp_path / "parts").exists()
    resumed = train_sorter(out=tmp_path / "parts", resume=True)
    assert_same_weights(weights(whole.sorter), weights(resumed.sorter))
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes()


def interrupt_after(monkeypatch, step, signum=signal.SIGINT):
    from sodeep import training

    advance = training.run.Run.advance

    def interrupted(run):
        if run.step == step - 1:
            os.kill(os.getpid(), signum)  # in the middle of the step
        advance(run)

    monkeypatch.setattr(training.run.Run, "advance", interrupted)


def test_sigterm_saves_too(tmp_path, monkeypatch):
    interrupt_after(monkeypatch, step=2, signum=signal.SIGTERM)
    with pytest.raises(TrainingInterrupted, match="stopped by SIGTERM after step 2"):
        train_sorter(tiny(), out=tmp_path / "s")
    assert (tmp_path / "s.run").exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def train_until_killed(config, out, threads):
    """In a process of its own."""
    torch.set_num_threads(threads)  # as there: other numbers make other sums
    objective = training.run.Run.objective

    def killed(run, scores, generator):
        if run.step == 3 and generator is run.generator:
            os.kill(os.getpid(), signal.SIGKILL)
        return objective(run, scores, generator)

    training.run.Run.objective = killed
    train_sorter(config, out=out)


@pytest.mark.parametrize("changes", [{}, {"ema": 0.9}])
def test_killed_run_resumes_to_the_same_weights(tmp_path, changes, processes):
    """kill -9 in the middle of step 4: step 3 is done again, from the state that step 2 left."""
    whole = train_sorter(tiny(**changes), out=tmp_path / "whole")
    out = tmp_path / "killed"
    process = processes.Process(target=train_until_killed, args=(tiny(**changes), out, torch.get_num_threads()))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not out.exists()
    assert _read_state(state_path(out))[1]["step"] == 2
    resumed = train_sorter(out=out, resume=True)
    assert resumed.steps == 6
    assert_same_weights(weights(whole.sorter), weights(resumed.sorter))


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_saves_too_unless_it_is_ignored(tmp_path, monkeypatch, ignored):
    """As it is under nohup."""
    interrupt_after(monkeypatch, step=2, signum=signal.SIGHUP)
    handler = signal.SIG_IGN if ignored else signal.SIG_DFL
    before = signal.signal(signal.SIGHUP, handler)
    try:
        if ignored:
            assert train_sorter(tiny(), out=tmp_path / "s").steps == 6
        else:
            with pytest.raises(TrainingInterrupted, match="stopped by SIGHUP after step 2"):
                train_sorter(tiny(), out=tmp_path / "s")
            assert (tmp_path / "s.run").exists()
        assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


class Closed:
    """A pipe that nobody reads any more."""

    def __init__(self, error):
        self.error = error

    def isatty(self):
        return False

    def write(self, text):
        raise self.error

    flush = fileno = write


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), ValueError("I/O operation on closed file.")])
def test_training_goes_on_when_nobody_reads_its_progress(tmp_path, monkeypatch, error):
    monkeypatch.setattr(sys, "stdout", Closed(error))
    result = train_sorter(tiny(), out=tmp_path / "s", progress=True)
    monkeypatch.undo()
    assert result.steps == 6


def test_in_a_thread_signals_are_left_alone():
    results = []
    thread = threading.Thread(target=lambda: results.append(train_sorter(tiny())))
    thread.start()
    thread.join()
    assert results[0].steps == 6


@pytest.fixture
def clock(monkeypatch):
    """A clock of its own for a run: a step takes one second, a validation ten."""
    from sodeep import training

    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    for name, seconds in (("advance", 1.0), ("_estimate_batch_statistics", 10.0)):
        method = getattr(training.run.Run, name)

        def slow(run, method=method, seconds=seconds):
            now[0] += seconds
            return method(run)

        monkeypatch.setattr(training.run.Run, name, slow)
    return now


def test_max_time_covers_the_validations(clock):
    result = train_sorter(tiny(steps=10**6, validate_every=10**6, max_time=60))
    assert result.steps == 40  # one validation before them, one after
    assert clock[0] == 60
    assert result.seconds == 60
    assert result.history[-1]["lr"] < 1e-20
    assert train_sorter(tiny(steps=10**6, validate_every=35, max_time=60)).steps == 35  # no second one at the end


def test_a_resumed_run_may_have_another_time_limit(tmp_path, monkeypatch, clock):
    out = tmp_path / "s"
    endless = {"steps": 10**6, "validate_every": 10**6}
    interrupt_after(monkeypatch, step=3)
    with pytest.raises(TrainingInterrupted):
        train_sorter(tiny(**endless), out=out)
    monkeypatch.undo()
    assert sodeep.training.train.saved_config(out).max_time is None
    result = train_sorter(tiny(**endless, max_time=1e-6), out=out, resume=True)
    assert result.steps == 4
    assert result.config.max_time == 13 + 1e-6  # of all parts together


def test_max_time_ends_the_run_with_the_rate_at_zero():
    result = train_sorter(tiny(steps=10**9, validate_every=10**9, max_time=1e-6))
    assert result.steps == 1
    assert result.history[-1]["lr"] < 1e-20


# ---- nothing is lost -----------------------------------------------------------------------------------------------


def test_finished_sorter_is_not_overwritten(tmp_path):
    out = tmp_path / "s"
    train_sorter(tiny(), out=out)
    before = out.read_bytes()
    with raises(FileExistsError, f"`out` {out} exists. Choose another name, or replace it: overwrite=True."):
        train_sorter(tiny(seed=1), out=out)
    assert out.read_bytes() == before
    train_sorter(tiny(seed=1), out=out, overwrite=True)
    assert out.read_bytes() != before


def test_unfinished_run_is_not_overwritten(tmp_path, monkeypatch):
    out = tmp_path / "s"
    interrupt_after(monkeypatch, step=2)
    with pytest.raises(TrainingInterrupted):
        train_sorter(tiny(), out=out)
    monkeypatch.undo()
    message = (
        f"`out` {out} has an unfinished run, {out}.run. Go on with it: resume=True; or start again: overwrite=True."
    )
    with raises(FileExistsError, message):
        train_sorter(tiny(), out=out)
    with raises(
        ValueError,
        "`config` must be that of the run to resume: lr was 0.002 and is 0.5. Leave it out to take the saved one.",
    ):
        train_sorter(dataclasses.replace(tiny(lr=0.002), lr=0.5), out=out, resume=True)


def test_nothing_to_resume(tmp_path):
    out = tmp_path / "s"
    with raises(FileNotFoundError, f"`resume` needs the state of an unfinished run at {out}.run: no such file."):
        train_sorter(out=out, resume=True)
    with raises(ValueError, "`out` must be given with resume=True, got None. It says which run to go on with."):
        train_sorter(resume=True)


DAMAGED = (
    "{} must be the state of an unfinished run, got another kind of file, a damaged one, or one of an older sodeep "
    "({}). Start again: overwrite=True."
)
UNFIT = (
    "`resume` needs the state of the same run on the same kind of device (here cpu), got one for OUT that does not fit "
    "({}). "
    "Resume it where it ran, or start again: overwrite=True."
)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "it is empty"),
        (b"<html>", "it is a web page, saved by a download that failed"),
        (b'\x08\0\0\0\0\0\0\0{"a":1} ', "it is a safetensors file without a sodeep header, so of another program"),
        (b'\xff\xff\0\0\0\0\0\0{"a":1} ', "it is truncated or damaged (16 bytes)"),
    ],
)
def test_damaged_state(tmp_path, content, found):
    (tmp_path / "s.run").write_bytes(content)
    with raises(ValueError, DAMAGED.format(tmp_path / "s.run", found)):
        train_sorter(out=tmp_path / "s", resume=True)


@pytest.mark.parametrize(
    "header",
    ["[]", "3", "{}", '{"config": {"nope": 1}}', json.dumps({"config": TrainConfig().to_dict()})],
)
def test_state_of_another_kind(tmp_path, header):
    (tmp_path / "s.run").write_bytes(safetensors.torch.save({"x": torch.ones(1)}, {"sodeep_run": header}))
    with pytest.raises(ValueError, match=r"the state of .* run.*[Ss]tart again: overwrite=True\.$"):
        train_sorter(out=tmp_path / "s", resume=True)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The state of a run after its third step: bytes, tensors and header."""
    out = tmp_path_factory.mktemp("stopped") / "s"
    with pytest.MonkeyPatch.context() as monkeypatch:
        interrupt_after(monkeypatch, step=3)
        with pytest.raises(TrainingInterrupted):
            train_sorter(tiny(), out=out)
    return state_path(out).read_bytes(), *_read_state(state_path(out))


FILTER = "sorter/stages.0.filter"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors, header: tensors.update(x=tensors.pop(FILTER)),
            DAMAGED.format("{}", "its tensors are not those of its set sorter: stages.0.filter is missing"),
        ),
        (
            lambda tensors, header: tensors.update({FILTER: torch.ones(1)}),
            DAMAGED.format(
                "{}", "its tensors are not those of its set sorter: stages.0.filter has shape (1,) instead of (16,)"
            ),
        ),
        (
            lambda tensors, header: tensors.update(x=tensors.pop("best/stages.0.filter")),
            UNFIT.format("best/stages.0.filter is missing; x is unexpected"),
        ),
        (
            lambda tensors, header: tensors.pop("optimizer/exp_avg/stages.0.filter"),
            UNFIT.format("optimizer/exp_avg/stages.0.filter is missing"),
        ),
        (
            lambda tensors, header: tensors.update(generator=tensors["generator"][:16]),
            UNFIT.format("generator has shape (16,) instead of (5056,)"),
        ),
        (
            lambda tensors, header: tensors.update({FILTER: tensors[FILTER].double()}),
            UNFIT.format(f"{FILTER} has dtype torch.float64 instead of torch.float32"),
        ),
        (
            lambda tensors, header: tensors.update({FILTER: tensors[FILTER] / 0}),
            UNFIT.format(f"{FILTER} is not finite"),
        ),
        (
            lambda tensors, header: header.update(seconds=None),
            DAMAGED.format("{}", "its header has no valid 'seconds'"),
        ),
        (lambda tensors, header: header.update(step=True), DAMAGED.format("{}", "its header has no valid 'step'")),
        (lambda tensors, header: header.update(step=7), UNFIT.format("step 7 of 6 after {seconds} seconds")),
        (
            lambda tensors, header: header["config"].update(lr="fast"),
            DAMAGED.format("{}", "`lr` must be a positive number, got 'fast'"),
        ),
        (
            lambda tensors, header: header["config"].update(gradient_share=header["config"].pop("gradient_fraction")),
            DAMAGED.format("{}", "its config has gradient_share, which this version does not know"),
        ),
        (
            lambda tensors, header: header["history"][0].update(step=4),
            UNFIT.format("a history of other validations than those of its step"),
        ),
        (
            lambda tensors, header: header["history"].clear(),
            UNFIT.format("a history of other validations than those of its step"),
        ),
        (lambda tensors, header: header["history"][0].pop("loss"), UNFIT.format("'loss'")),
        (
            lambda tensors, header: header["config"].update(
                sorter="lstm", seq_len=3_000_000, lengths=list(training.config.LENGTHS)
            ),
            None,  # and in no time
        ),
    ],
)
def test_state_that_does_not_fit(tmp_path, stopped, change, message):
    _, tensors, header = stopped
    tensors, header = dict(tensors), json.loads(json.dumps(header))
    change(tensors, header)
    state = tmp_path / "s.run"
    state.write_bytes(seal(tensors, "sodeep_run", header))
    if message is None:
        with pytest.raises(ValueError, match=r"those of its lstm sorter: .*; and [0-9]+ more"):
            train_sorter(out=tmp_path / "s", resume=True)
    else:
        message = message.replace("{seconds}", str(header["seconds"])).replace("{}", str(state))
        message = message.replace("OUT", str(tmp_path / "s"))
        with raises(ValueError, message):
            train_sorter(out=tmp_path / "s", resume=True)


def test_nothing_of_a_state_can_change_unseen(tmp_path, stopped):
    data = stopped[0]
    state = tmp_path / "s.run"
    for place in [*range(0, header_end(data), 31), *range(header_end(data), len(data), len(data) // 50)]:
        state.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with pytest.raises(ValueError, match=r"s\.run must be the state of an unfinished run.*Start again"):
            train_sorter(out=tmp_path / "s", resume=True)


def test_temporary_files_of_killed_runs_are_swept(tmp_path):
    out = tmp_path / "s[1].safetensors"  # not a pattern
    names = [f".{out.name}.0123abcd.tmp", f".{out.name}.run.0123abcd.tmp"]
    others = [".s1.safetensors.0123abcd.tmp", f".{out.name}.copy.tmp"]
    for name in [*names, *others]:
        (tmp_path / name).write_bytes(b"x")
    with (tmp_path / names[1]).open("rb") as file:
        fcntl = pytest.importorskip("fcntl")
        fcntl.flock(file, fcntl.LOCK_EX)  # of a live process
        train_sorter(tiny(), out=out)
    assert sorted(os.listdir(tmp_path)) == sorted([out.name, names[1], *others])
    train_sorter(tiny(), out=out, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == sorted([out.name, *others])


def test_a_second_run_of_the_same_file_is_refused(tmp_path, monkeypatch):
    from sodeep import training

    out, advance, messages = tmp_path / "s", training.run.Run.advance, []

    def and_another(run):
        with pytest.raises(FileExistsError) as error:
            train_sorter(tiny(), out=out, overwrite=True)
        messages.append(str(error.value))
        advance(run)

    monkeypatch.setattr(training.run.Run, "advance", and_another)
    train_sorter(tiny(), out=out)
    message = f"`out` {out} is being written by another run. Wait for it to end, or choose another name."
    assert messages == 6 * [message]
    assert list(tmp_path.iterdir()) == [out]


def test_lock_of_a_killed_run_is_free(tmp_path):
    (tmp_path / ".s.lock").touch()
    train_sorter(tiny(), out=tmp_path / "s")
    assert os.listdir(tmp_path) == ["s"]


@pytest.mark.parametrize("device", ["meta", "cuda:77"])
def test_device_that_cannot_compute(tmp_path, device):
    with pytest.raises(
        ValueError,
        match=f"^`device` must be one that PyTorch can compute on here, got '{device}' .*Use 'auto' or 'cpu'",
    ):
        train_sorter(tiny(device=device), out=tmp_path / "s")


def test_interrupting_a_diverged_run_keeps_the_last_good_state(tmp_path, monkeypatch):
    from sodeep import training

    interrupt_after(monkeypatch, step=3)  # the state of step 2 is saved
    advance = training.run.Run.advance

    def diverging(run):
        advance(run)
        if run.step == 3:  # its loss was finite yet
            with torch.no_grad():
                next(iter(run.parameters.values())).fill_(torch.nan)

    monkeypatch.setattr(training.run.Run, "advance", diverging)
    message = (
        "a weight is NaN or infinite after step 3: training diverged. Lower lr (now 0.002), or raise warmup; the state "
        "of the last validation is kept."
    )
    with raises(FloatingPointError, message):
        train_sorter(tiny(), out=tmp_path / "s")
    monkeypatch.undo()
    assert train_sorter(out=tmp_path / "s", resume=True).steps == 6


def test_interruption_can_be_pickled():
    stop = pickle.loads(pickle.dumps(TrainingInterrupted(signal.SIGINT, 3, None)))
    assert str(stop) == "stopped by SIGINT after step 3"
    assert (stop.signum, stop.step, stop.checkpoint) == (signal.SIGINT, 3, None)


def test_out_is_checked_before_training(tmp_path):
    with raises(
        IsADirectoryError, f"`out` must be a file, got the folder {tmp_path}. For example {tmp_path}/set.safetensors."
    ):
        train_sorter(tiny(), out=tmp_path)
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(OSError, match="`out` must be in a folder that can be written to"):
        train_sorter(tiny(steps=10**9), out=blocker / "s")


def test_divergence_is_an_error(monkeypatch):
    from sodeep import training

    monkeypatch.setitem(training.VALUE_LOSSES, "l1", lambda a, b: (a - b).sum() * float("nan"))
    message = (
        "the loss of step 2 is nan: training diverged. Lower lr (now 0.002), or raise warmup; the state of the last "
        "validation is kept."
    )
    with raises(FloatingPointError, message):
        train_sorter(tiny(lr=0.002))


# ---- the gradient term -----------------------------------------------------------------------------------------------


def normal_rank(scores, tau):
    """1/2 + sum over j of Phi((s_j - s_i) / tau)."""
    return 0.5 + torch.special.ndtr((scores.unsqueeze(-2) - scores.unsqueeze(-1)) / tau).sum(-1)


def plain_deviation(x):
    """Mean distance from the (lower) median, 1 for a standard normal list."""
    middle = sorted(x)[(len(x) - 1) // 2]
    return math.sqrt(math.pi / 2) * sum(abs(value - middle) for value in x) / len(x)


def test_mean_deviation():
    lists = torch.randn(3, 8, dtype=torch.float64)
    expected = [[plain_deviation(x)] for x in lists.tolist()]
    torch.testing.assert_close(mean_deviation(lists), torch.tensor(expected, dtype=torch.float64))
    drawn = torch.randn(1, 100_000, generator=torch.Generator().manual_seed(0))
    assert float(mean_deviation(drawn)) == pytest.approx(1, abs=0.01)


def test_gradient_mismatch_is_zero_for_the_reference_and_one_for_flat():
    scores = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    vectors = torch.randn(4, 9, dtype=torch.float64)
    same = normal_rank(scores, 0.25 * mean_deviation(scores.detach()).unsqueeze(-1))
    torch.testing.assert_close(gradient_mismatch(same, scores, vectors, 0.25), torch.zeros((), dtype=torch.float64))
    flat = 0 * scores
    assert 0.9 < float(gradient_mismatch(flat, scores, vectors, 0.25)) < 1


def test_gradient_mismatch_against_a_plain_jacobian():
    """|J'v - Jv|^2 / (|J'v|^2 + floor) with both Jacobians built entry by entry."""
    net = torch.nn.Linear(5, 5).double()
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    vectors = torch.randn(3, 5, dtype=torch.float64)
    expected = 0.0
    for x, v in zip(scores.detach(), vectors, strict=True):
        spread = plain_deviation(x.tolist())
        smooth = torch.autograd.functional.jacobian(lambda s, tau=0.3 * spread: normal_rank(s, tau), x)
        got, want = net.weight.detach().T @ v, smooth.T @ v
        floor = (0.03 * 5 / spread) ** 2 * v.square().sum()
        expected += float((got - want).square().sum() / (want.square().sum() + floor)) / 3
    mismatch = gradient_mismatch(net(scores), scores, vectors, 0.3)
    assert float(mismatch.detach()) == pytest.approx(expected, rel=1e-9)
    mismatch.backward()
    assert float(net.weight.grad.abs().sum()) > 0


def test_directional_derivative_is_the_jacobian_times_the_vector():
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 5)).double()
    scores, vectors = torch.randn(2, 3, 5, dtype=torch.float64)
    jacobians = [torch.autograd.functional.jacobian(net, x) for x in scores]
    expected = torch.stack([jacobian @ v for jacobian, v in zip(jacobians, vectors, strict=True)])
    found = directional_derivative(net, scores, vectors, 1e-4)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    found.square().sum().backward()
    assert all(float(p.grad.abs().sum()) > 0 for p in (net[0].weight, net[2].weight))


def test_directional_derivative_of_lists_and_vectors_without_spread():
    scores, vectors = (
        torch.tensor([[0.3, 0.3, 0.3], [0.1, 0.2, 0.4]]),
        torch.tensor([[1.0, 0.0, -1.0], [0.0, 0.0, 0.0]]),
    )
    torch.testing.assert_close(directional_derivative(lambda x: 2 * x, scores, vectors, 0.05), 2 * vectors)


def test_differences_are_the_recipe_of_recurrent_networks():
    steps = {name: TrainConfig(sorter=name).resolve().gradient_step for name in ("lstm", "gru-sum", "cnn", "set")}
    assert steps == {"lstm": 0.05, "gru-sum": 0.05, "cnn": 0, "set": 0}


def test_the_gradient_term_by_differences_is_that_of_the_jacobian():
    n, width = 12, 0.25 * 12 / 100
    sorter = build_sorter("gru-sum", hidden=8).double()
    scores = torch.randn(4, n, dtype=torch.float64)
    value, both = (
        sorter_loss(sorter, scores, torch.Generator().manual_seed(0), gradient_weight=weight, gradient_step=1e-4).item()
        for weight in (0, 1)
    )
    target = exact_rank(scores)
    shuffled = torch.rand(4, n, generator=torch.Generator().manual_seed(0)).argsort(-1)
    vectors = (target - target.gather(-1, shuffled)) / n
    jacobians = [torch.autograd.functional.jacobian(sorter, x) for x in scores]
    moved = torch.stack([jacobian @ v for jacobian, v in zip(jacobians, vectors, strict=True)])
    expected = mismatch_with_smooth_rank(moved, scores, vectors, width).item()
    assert (both - value) / (n / 100) ** 2 == pytest.approx(expected, rel=1e-5)


def test_the_target_gradient_of_long_lists_is_made_in_parts():
    scores, vectors = torch.randn(2, 2, 3000, dtype=torch.float64)  # 6,000 x 3,000 pairs: in two parts and in one
    whole = smooth_rank_vjp(scores, vectors, 0.3)
    rows = torch.stack([smooth_rank_vjp(x[None], v[None], 0.3)[0] for x, v in zip(scores, vectors, strict=True)])
    torch.testing.assert_close(whole, rows)
    some = scores[:1, :50]
    expected = torch.autograd.functional.vjp(lambda s: normal_rank(s, 0.3), some, vectors[:1, :50])[1]
    torch.testing.assert_close(smooth_rank_vjp(some, vectors[:1, :50], 0.3), expected)


def test_isolated_items_do_not_blow_the_gradient_term_up():
    """The smooth rank has no slope there, so a difference relative to its slope alone would be huge."""
    scores = torch.tensor([[0.0, 1.0, 2.0, 3.0]], requires_grad=True)
    mismatch = gradient_mismatch(0.05 * scores, scores, torch.tensor([[1.0, -1.0, 0.5, 0.0]]), tau=1e-3)
    assert 0 < float(mismatch) < 1


def test_constant_lists_do_not_enter_the_gradient_term():
    scores = torch.full((2, 5), 0.3, requires_grad=True)
    mismatch = gradient_mismatch(2 * scores, scores, torch.ones(2, 5), 0.1)
    assert float(mismatch.detach()) == 0.0


# ---- TensorBoard -----------------------------------------------------------------------------------------------------


def logged(folder):
    """Tag -> [(step, value)] of a log as TensorBoard shows it: without values where they are of a clock."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    log.Reload()
    scalars = {tag: [(e.step, e.value) for e in log.Scalars(tag)] for tag in log.Tags()["scalars"]}
    scalars["throughput/sequences_per_s"] = [step for step, _ in scalars["throughput/sequences_per_s"]]
    return scalars | {tag: [(e.step, e.encoded_image_string) for e in log.Images(tag)] for tag in log.Tags()["images"]}


class Killed(BaseException):
    """What nothing catches, as a kill."""


def logged_config(**changes):
    """Of one distribution: a figure takes longer than the steps between two."""
    return tiny(distributions={"normal": 1.0}, **changes)


@pytest.fixture(scope="module")
def whole_log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train_sorter(logged_config(), log_dir=folder)
    return logged(folder)


@pytest.mark.parametrize(
    ("name", "count", "kept", "error"),
    [
        ("add_scalar", 1, 2, Killed),
        ("add_scalar", 12, 4, Killed),
        ("flush", 2, 4, OSError(28, "No space left on device")),
        ("add_figure", 3, 6, Killed),
        ("flush", 4, 6, Killed),
    ],
)
def test_a_log_that_was_cut_off_ends_up_whole(tmp_path, monkeypatch, whole_log, name, count, kept, error):
    """At the first point, within the second, after it, before the last figure, when all is logged: the state stays."""
    from torch.utils.tensorboard import SummaryWriter

    calls, function = [], getattr(SummaryWriter, name)

    def fails(*args, **options):
        calls.append(args)
        if len(calls) == count:
            raise error
        return function(*args, **options)

    monkeypatch.setattr(SummaryWriter, name, fails)
    with pytest.raises(type(error) if isinstance(error, OSError) else error):
        train_sorter(logged_config(), out=tmp_path / "s", log_dir=tmp_path / "log")
    monkeypatch.undo()
    assert _read_state(tmp_path / "s.run")[1]["step"] == kept
    train_sorter(out=tmp_path / "s", log_dir=tmp_path / "log", resume=True)
    assert logged(tmp_path / "log") == whole_log
    assert sorted(os.listdir(tmp_path)) == ["log", "s"]


@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_the_log_of_a_resumed_run_is_whole(tmp_path, monkeypatch, whole_log, step):
    interrupt_after(monkeypatch, step=step)
    with pytest.raises(TrainingInterrupted):
        train_sorter(logged_config(), out=tmp_path / "s", log_dir=tmp_path / "log")
    monkeypatch.undo()
    train_sorter(out=tmp_path / "s", resume=True)  # the state holds the folder of the log
    assert logged(tmp_path / "log") == whole_log


def test_a_run_started_again_replaces_the_log(tmp_path, monkeypatch, whole_log):
    interrupt_after(monkeypatch, step=5)
    with pytest.raises(TrainingInterrupted):
        train_sorter(logged_config(seed=1), out=tmp_path / "s", log_dir=tmp_path / "log")
    monkeypatch.undo()
    train_sorter(logged_config(), out=tmp_path / "s", log_dir=tmp_path / "log", overwrite=True)
    assert logged(tmp_path / "log") == whole_log


def test_tensorboard_tags(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train_sorter(tiny(), log_dir=tmp_path)
    log = EventAccumulator(str(tmp_path))
    log.Reload()
    tags = set(log.Tags()["scalars"])
    assert {
        "loss/train",
        "loss/validation",
        "error/validation",
        "error by distribution/normal",
        "error by distribution/ties",
        "lr",
        "gradient_norm",
        "throughput/sequences_per_s",
    } <= tags
    assert not any(len(log.Scalars(tag)) == 1 for tag in tags)  # no card with one dot
    assert [event.step for event in log.Scalars("error/validation")] == [2, 4, 6, 6]  # the last one of what is saved
    assert log.Tags()["images"] == ["sorter"]
    assert "_hparams_/session_start_info" in log.summary_metadata


def test_batch_statistics_of_a_validation_are_those_of_many_batches_and_leave_the_run_alone():
    config = tiny(sorter="cnn", seq_len=40, batch_size=4, steps=2).resolve()
    run = sodeep.training.run.Run(config)
    run.advance()
    before = {name: tensor.clone() for name, tensor in run.weights.items()}
    run.best_objective = math.inf  # whatever that of the initial weights was
    run.validate()
    for name, tensor in run.weights.items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)

    generator = torch.Generator().manual_seed(sodeep.training.run.VALIDATION_SEED)
    inputs = []
    norm = run.sorter.layers[1][1]
    handle = norm.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach().clone()))
    run.sorter.train()
    with torch.no_grad():
        for _ in range(sodeep.training.run.STATISTICS_BATCHES):
            run.sorter(sodeep.generators.draw(config.distributions, 4, 40, generator))
    handle.remove()
    mean = torch.stack([batch.mean((0, 2)) for batch in inputs]).mean(0)
    torch.testing.assert_close(run.best["layers.1.1.running_mean"], mean, rtol=1e-4, atol=1e-5)
    assert (before["layers.1.1.running_mean"] - mean).abs().max() > 1e-3
    assert norm.momentum == 0.1
