"""One training: how long it goes on, what is kept, and the encoder that it starts from."""

import dataclasses
import math
import re

import pytest
import safetensors.torch
import torch

from sodeep.comparison import compare
from sodeep.comparison.losses_by_name import LossSpec
from sodeep.comparison.train import LEAST_GAIN, LOWERED, Job, Length, Training, load_encoder
from sodeep.tasks import TASKS, TaskMetrics


class Told:
    """A task whose validation follows a given list: its encoder is a number that grows with every step."""

    accepts = ("target",)
    metric = primary_metric = "Spearman"
    ranges = {}  # noqa: RUF012
    epsilon = 1e-8

    def __init__(self, values):
        self.values = list(values)
        self.seen = []

    def model(self):
        return torch.nn.Linear(1, 1, bias=False).requires_grad_(requires_grad=True)

    def batches(self, epoch):
        yield from range(3)

    def forward(self, model, batch):
        return {"target": lambda loss: loss(model.weight)}

    def measure(self, model, split, details=False):
        assert split == "val"
        value = self.values[len(self.seen)]
        self.seen.append(model.weight.item())
        return TaskMetrics({"Spearman": value, "MAE": -value})


def trained(values, max_steps=1000, patience=2, validate_every=2):
    """A training whose validations give these values, and the learning rate of each step."""
    task = Told(values)
    length = Length(max_steps, validate_every, patience)
    job = Job("toy", None, "mse", 0, {"lr": 0.01}, ".", length, "cpu", {}, None)
    training = Training(task, LossSpec(lambda: torch.sum, signature="target"), job)
    rates = []
    step = training.step

    def watched(number, batch):
        rates.append(training.schedule.get_last_lr()[0])
        return step(number, batch)

    training.step = watched
    training.run()
    return training, task, rates


def test_it_is_lowered_once_from_the_best_weights_and_ends_when_it_is_flat_again():
    #                 0    2    4    6    8  | 10   12   14   16
    training, task, rates = trained([0.1, 0.2, 0.5, 0.4, 0.3, 0.6, 0.7, 0.6, 0.7])
    assert (training.steps, training.best_step, training.flat) == (16, 12, True)
    assert len(task.seen) == 9
    assert training.metrics == {"Spearman": 0.7, "MAE": -0.7}
    assert training.model.weight.item() == task.seen[6]
    assert rates[2:8] == pytest.approx([0.01] * 6)
    assert rates[9:] == pytest.approx([LOWERED * 0.01] * 7)
    first, second = abs(task.seen[4] - task.seen[3]), abs(task.seen[6] - task.seen[5])
    assert second == pytest.approx(LOWERED * first, rel=0.1)
    # the step after the lowering began at the weights of step 4, not of step 8
    assert abs(task.seen[5] - task.seen[2]) < first < abs(task.seen[5] - task.seen[4])


def test_the_cap_ends_a_training_that_still_rises():
    training, task, _ = trained([0.1, 0.2, 0.3, 0.4], max_steps=5)
    assert (training.steps, training.best_step, training.flat) == (5, 5, False)
    assert [step for step, _ in training.curves["val/Spearman"]] == [0, 2, 4, 5]
    assert [step for step, _ in training.curves["loss/train"]] == [2, 4, 5]
    assert training.model.weight.item() == task.seen[3]


def test_the_best_validation_counts_and_not_the_last():
    training, task, _ = trained([0.1, 0.9, 0.3], max_steps=4)
    assert (training.best_step, training.metrics["Spearman"]) == (2, 0.9)
    assert training.model.weight.item() == task.seen[1]


def test_untrained_weights_are_tested_where_no_training_is_better():
    training, task, _ = trained([0.9, 0.1, 0.2, 0.3, 0.4])
    assert (training.steps, training.best_step, training.flat) == (8, 0, True)
    assert training.metrics["Spearman"] == 0.9
    assert training.model.weight.item() == task.seen[0]
    assert task.seen[1] != task.seen[0]


def test_a_small_gain_is_kept_but_does_not_prolong():
    small = LEAST_GAIN / 4
    values = [0.5, 0.5 + small, 0.5 + 2 * small, 0.5 + small, 0.5 + 3 * small]
    training, task, _ = trained(values)
    assert (training.steps, training.best_step, training.flat) == (8, 8, True)
    assert training.metrics["Spearman"] == values[4]
    assert training.model.weight.item() == task.seen[4]


def test_small_gains_that_add_up_are_a_gain():
    rising = [0.5 + 0.6 * LEAST_GAIN * place for place in range(7)]
    training, _, rates = trained(rising, max_steps=12)
    assert (training.steps, training.flat) == (12, False)
    assert min(rates[2:]) == pytest.approx(0.01)  # never lowered


@pytest.mark.parametrize("patience", [1, 3])
def test_patience_counts_validations(patience):
    training, task, _ = trained([0.5] * 20, patience=patience)
    assert len(task.seen) == 1 + 2 * patience
    assert (training.steps, training.flat) == (4 * patience, True)


def test_without_patience_all_steps_are_taken_along_a_cosine():
    training, _, rates = trained([0.9] + [0.1] * 10, max_steps=20, patience=None)
    assert (training.steps, training.best_step, training.flat) == (20, 0, None)
    expected = [0.01 * (1 + math.cos(math.pi * step / 20)) / 2 for step in range(20)]
    assert rates == pytest.approx(expected)


def test_nan_is_no_best():
    training, _, _ = trained([math.nan, math.nan, 0.1, math.nan, math.nan, math.nan, math.nan])
    assert (training.best_step, training.metrics["Spearman"]) == (4, 0.1)


# ---- encoders --------------------------------------------------------------------------------------------------------

GIVEN = {"seeds": 1, "max_steps": 4, "validate_every": 2, "trials": 1}


def encoder_of(folder):
    (path,) = (folder / "encoders").iterdir()
    return path


def test_saved_encoders_are_what_others_start_from(tmp_path):
    first = compare("memorability", ["mse"], out=tmp_path / "first", save_encoders=True, **GIVEN)
    saved = encoder_of(tmp_path / "first")
    runs = compare("memorability", ["l1"], out=tmp_path / "second", init=saved, save_encoders=True, **GIVEN)
    model = load_encoder(TASKS["memorability"].load().model(), saved)
    for split, metrics in (("val", first[0].metrics), ("test", first[1].metrics)):
        assert TASKS["memorability"].load().evaluate(model, split).metrics == metrics
    for name, value in first[0].metrics.items():
        assert runs[0].curves[f"val/{name}"][0] == (0, value)


def test_encoders_are_kept_only_if_asked_for(tmp_path):
    compare("memorability", ["mse"], out=tmp_path, **GIVEN)
    assert list((tmp_path / "encoders").iterdir()) == []


def test_an_encoder_of_another_shape_is_refused_before_anything_is_made(tmp_path):
    path = tmp_path / "other.safetensors"
    state = TASKS["memorability"].load().model().state_dict()
    name = min(state)
    safetensors.torch.save_file({**state, name: torch.zeros(3, 2)}, path)
    expected = (
        f"`init` must hold the weights of this task's encoder, got {path} with {name} of shape (3, 2), not "
        f"{tuple(state[name].shape)}. Take one that was saved for the same data."
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        compare("memorability", ["mse"], out=tmp_path / "out", init=path, **GIVEN)
    safetensors.torch.save_file({key: value for key, value in state.items() if key != name}, path)
    with pytest.raises(ValueError, match=re.escape(f"{path} with {name} of shape none, not ")):
        compare("memorability", ["mse"], out=tmp_path / "out", init=path, **GIVEN)
    assert not (tmp_path / "out").exists()


def test_init_that_is_no_file_of_weights(tmp_path):
    path = tmp_path / "none.safetensors"
    expected = f"`init` must be a file of weights, got '{path}', not there."
    with pytest.raises(FileNotFoundError, match="^" + re.escape(expected) + "$"):
        compare("memorability", ["mse"], out=tmp_path / "out", init=path, **GIVEN)
    path.write_bytes(b"weights")
    with pytest.raises(ValueError, match=re.escape(f"`init` must be a .safetensors file of weights, got {path} (")):
        compare("memorability", ["mse"], out=tmp_path / "out", init=path, **GIVEN)
    assert not (tmp_path / "out").exists()


def test_other_weights_to_start_from_are_not_mixed_in(tmp_path):
    compare("memorability", ["mse"], out=tmp_path / "first", save_encoders=True, **GIVEN)
    saved = encoder_of(tmp_path / "first")
    compare("memorability", ["l1"], out=tmp_path / "out", init=saved, **GIVEN)
    state = safetensors.torch.load_file(saved)
    safetensors.torch.save_file({name: value * 2 for name, value in state.items()}, saved)
    with pytest.raises(
        ValueError,
        match=r"^`out` .* holds a comparison whose encoders start from a file of weights, not from this one\.",
    ):
        compare("memorability", ["l1"], out=tmp_path / "out", init=saved, **GIVEN)


def test_edges_of_the_settings_are_kept(tmp_path):
    (run, *_) = compare("memorability", ["mse"], out=tmp_path, **GIVEN)
    assert run.edges == {}
    assert dataclasses.asdict(run)["start"] == {}
