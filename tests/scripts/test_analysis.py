"""The scripts that docs/analysis.md quotes, at tiny sizes."""

import pytest
import torch
from click.testing import CliRunner

import sodeep


def run(script, *options):
    """What a script prints."""
    done = CliRunner().invoke(script.main, [str(option) for option in options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def cells(output, start="| "):
    """The rows of a Markdown table, without its head."""
    rows = [line.strip("| ").split(" | ") for line in output.splitlines() if line.startswith(start)]
    return [[cell.strip() for cell in row] for row in rows]


# ---- draw_pair_weights -----------------------------------------------------------------------------------------------


@pytest.fixture
def weightings(monkeypatch):
    pytest.importorskip("matplotlib")
    import draw_pair_weights

    monkeypatch.setattr(draw_pair_weights, "SHIFTS", 0.1 * torch.arange(-4, 5, dtype=torch.float64))
    draw_pair_weights.curves.cache_clear()
    return draw_pair_weights


def test_what_a_weight_depends_on(weightings, tmp_path):
    """What each loss is made of: its curves are flat along the other similarities."""
    output = run(weightings, "--out", tmp_path / "new")
    assert (tmp_path / "new" / "weightings.png").read_bytes().startswith(b"\x89PNG")
    seen = {row[0]: [float(cell) > 0.02 for cell in row[1:4]] for row in cells(output)[1:6]}
    assert seen == {
        "Multi-Similarity": [True, True, True],
        "BinLifted": [True, True, False],
        "binomial deviance": [True, False, False],
        "lifted structure": [False, True, False],
        "histogram": [False, False, True],
    }
    ratios = {row[0][:1]: [float(cell) for cell in row[1:]] for row in cells(output) if row[0][:1] in "123"}
    assert [ratios[case][0] for case in "123"] == [0, 0, 0]  # Multi-Similarity sees each
    assert (ratios["1"][3], ratios["2"][2], ratios["3"][1]) == (1, 1, 1)


def test_one_similarity_moves_at_a_time(weightings):
    (low, relevant), *_, (high, _) = weightings.lists("N", relevant=False)
    moved = high - low
    torch.testing.assert_close(moved[~relevant][1:], torch.full((160,), 0.8, dtype=torch.float64))
    assert float(moved[0]) == 0
    assert not moved[relevant].any()
    with_sigmoid = float(sodeep.pair_weights(sodeep.BinomialDevianceLoss(), low, relevant)[0])
    assert with_sigmoid == pytest.approx(50 / 161 * torch.sigmoid(torch.tensor(50 * 0.01)).item())
