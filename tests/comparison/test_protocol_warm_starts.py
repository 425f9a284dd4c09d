"""Encoders that are kept, and comparisons that start from them."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from sodeep.comparison import Run, compare


def _compare(out: Path, *losses: str, **options: Any) -> list[Run]:
    return compare("memorability", list(losses), out=out, seeds=1, trials=1, max_steps=4, validate_every=2, **options)


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """Of a network trained with MSE."""
    _compare(tmp_path / "start", "mse", save_encoders=True)
    (file,) = (tmp_path / "start/encoders").glob("mse-0-*.safetensors")
    return file


def test_untrained_is_the_encoder_to_start_from(tmp_path: Path, encoder: Path) -> None:
    runs = _compare(tmp_path / "warm", "mse", "untrained", init=encoder)
    first = {run.loss: run.curves["val/Spearman"][0][1] for run in runs if run.stage == "tuning"}
    assert first["untrained"] == first["mse"]


def test_comparison_begun_with_an_encoder_refuses_runs_without(tmp_path: Path, encoder: Path) -> None:
    _compare(tmp_path / "warm", "mse", init=encoder)
    with pytest.raises(
        ValueError, match="a comparison whose encoders start from a file of weights, not whose encoders start at random"
    ):
        _compare(tmp_path / "warm", "mse", "l1")


def test_encoders_asked_for_after_the_test_are_kept(tmp_path: Path) -> None:
    before = _compare(tmp_path, "mse")
    after = _compare(tmp_path, "mse", save_encoders=True)
    (file,) = (tmp_path / "encoders").glob("mse-0-*.safetensors")
    assert safetensors.torch.load_file(file)
    assert [run.metrics for run in after] == [run.metrics for run in before]
    done: list[Run] = []
    _compare(tmp_path, "mse", save_encoders=True, on_run=lambda run, *_: done.append(run))
    assert done == []
    assert not list((tmp_path / "weights").iterdir())


def test_no_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`seeds` must name at least one seed"):
        compare("memorability", ["mse"], out=tmp_path, seeds=[])
