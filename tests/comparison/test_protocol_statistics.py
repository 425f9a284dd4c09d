"""Intervals and significance against plain loops; what the report says of trainings that the cap ended."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from sodeep.comparison import Comparison, Run, compare, read_comparison, summarise
from sodeep.report.tables import find_differences

SIZES = {"train": 60, "val": 20, "test": 20, "data": 1}


def _runs(values: dict[str, list[float]]) -> list[Run]:
    """Tests of the memorability task on drawn splits."""
    return [
        Run(
            "memorability", "drawn", loss, seed, {"lr": 0.1}, "test", "ok", {"Spearman": value},
            flat=loss != "a", best_step=0, split={**SIZES, "items": seed},
        )
        for loss, by_seed in values.items()
        for seed, value in enumerate(by_seed)
    ]  # fmt: skip


VALUES = {
    "mse": [0.50, 0.52, 0.47, 0.55, 0.51],
    "a": [0.60, 0.61, 0.58, 0.66, 0.60],
    "b": [0.51, 0.55, 0.49, 0.54, 0.53],
    "c": [0.53, 0.57, 0.50, 0.59, 0.56],
}


def test_corrected_t_and_holm_against_a_loop() -> None:
    summary = summarise(_runs(VALUES))
    raw = {}
    for loss in ("a", "b", "c"):
        d = np.subtract(VALUES[loss], VALUES["mse"])
        variance = sum((x - d.mean()) ** 2 for x in d) / (len(d) - 1)
        error = math.sqrt(variance * (1 / len(d) + SIZES["test"] / SIZES["train"]))
        raw[loss] = 2 * (1 - t.cdf(abs(d.mean()) / error, len(d) - 1))
        cell = summary.cells[loss, "Spearman"]
        half = t.isf(0.025, len(d) - 1) * error
        np.testing.assert_allclose([cell.low, cell.high], [d.mean() - half, d.mean() + half])
    # Holm: the k-th smallest of m times (m - k + 1), never below the one before, at most 1
    order = sorted(raw, key=raw.__getitem__)
    adjusted = [min(1.0, max((3 - j) * raw[order[j]] for j in range(k + 1))) for k in range(3)]
    np.testing.assert_allclose([summary.cells[loss, "Spearman"].p for loss in order], adjusted)


def test_training_that_the_cap_ended_is_not_said_to_rise() -> None:
    """Its validation may as well have fallen since before the first step."""
    runs = _runs(VALUES)
    findings = find_differences(Comparison(Path(), {}, runs, summarise(runs)))
    (finding,) = [text for text in findings if "a (5 seeds)" in text]
    if finding != "Not yet flat on the validation split when the cap on steps ended the training: a (5 seeds).":
        pytest.fail(finding)


def test_best_setting_and_step_against_all_curves(tmp_path: Path) -> None:
    options = {"max_steps": 30, "validate_every": 10, "trials": 3}
    compare("memorability", ["mse", "l1"], out=tmp_path, seeds=[0, 1], search_seeds=1, **options)  # type: ignore[arg-type]
    runs = read_comparison(tmp_path).runs
    trained = [run for run in runs if run.stage == "tuning"]
    for run in trained:
        best = max(value for _, value in run.curves["val/Spearman"])
        np.testing.assert_equal(run.metrics["Spearman"], best)
        np.testing.assert_equal(dict(run.curves["val/Spearman"])[run.best_step or 0], best)
    for loss in ("mse", "l1"):
        searched = [run for run in trained if (run.loss, run.seed) == (loss, 0)]
        chosen = max(searched, key=lambda run: run.metrics["Spearman"]).settings
        tested = [run.settings for run in runs if (run.loss, run.stage) == (loss, "test")]
        np.testing.assert_equal(tested, [chosen, chosen])
