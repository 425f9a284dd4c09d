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
    rows = [line[1:-1].split("|") for line in output.splitlines() if line.startswith(start)]
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


# ---- count_informative_pairs -----------------------------------------------------------------------------------------


def test_queries_without_an_informative_pair():
    pytest.importorskip("sklearn")
    import count_informative_pairs as script

    options = ["--steps", 0, "--steps", 2, "--size", 20, "--size", 40, "--batches", 3]
    rows = cells(run(script, *options))[1:]
    assert [(row[0], row[2]) for row in rows] == [("0", "20"), ("0", "40"), ("2", "20"), ("2", "40")]
    assert all(0 <= float(cell) <= 1 for row in rows for cell in row[3:])


def test_solved_classes_have_no_informative_pair():
    import count_informative_pairs as script

    labels = torch.arange(8).repeat_interleave(20)
    solved, equal = torch.eye(8)[labels], torch.ones(160, 8)
    assert script.without(solved, labels, 20, batches=4) == dict.fromkeys(script.LOSSES, (1, 1))
    # equal scores are not semi-hard, but the two others learn from them
    assert [queries for queries, _ in script.without(equal, labels, 20, batches=4).values()] == [0, 1, 0]


@pytest.mark.parametrize(("size", "counts"), [(20, [5] * 4), (40, [5] * 8), (64, [8] * 8), (30, [5] * 6)])
def test_a_batch_has_equally_many_items_of_a_class(size, counts):
    import count_informative_pairs as script

    labels = torch.arange(8).repeat(20)
    items = script.draw(labels, size, torch.Generator().manual_seed(1))
    assert len(items.unique()) == size
    assert labels[items].unique(return_counts=True)[1].tolist() == counts


# ---- compare_quantized_ap --------------------------------------------------------------------------------------------


def test_quantized_ap_beside_exact_ap(monkeypatch):
    pytest.importorskip("sklearn")
    import compare_quantized_ap as script

    monkeypatch.setattr(script, "trained", lambda task, steps: [(0, task.model())])
    rows = cells(run(script, "--queries", 40, "--length", 60, "--length", 80))[1:]
    assert [tuple(row[:3]) for row in rows[:4]] == [("drawn", n, p) for p in ("5", "50") for n in ("60", "80")]
    assert [row[0] for row in rows[4:]] == ["digits, pixels"] * 3 + ["digits, trained"] * 3
    finest = [[float(part) for part in row[-1].split(", ")] for row in rows]
    assert all(correlation > 0.9 and -0.2 < error <= 0 for correlation, error in finest)


def test_lists_of_real_vectors_keep_some_of_the_relevant_items():
    import compare_quantized_ap as script

    generator = torch.Generator().manual_seed(2)
    x, labels = torch.randn(60, 4, generator=generator), torch.arange(60) % 3
    scores, relevant = script.retrieved(x, labels, queries=10, relevant=4)
    assert relevant.sum(-1).tolist() == [4] * 10
    assert scores.shape == (10, 44)  # and the 40 of other classes
    everything = script.retrieved(x, labels, queries=10, relevant=1000)[1]
    assert everything.shape == (10, 59)
    assert everything.sum(-1).tolist() == [19] * 10


def test_more_bins_are_closer():
    """A part of the error remains: an item between two centres is seen in part at the first, at a lower precision."""
    import compare_quantized_ap as script

    lists = script.drawn(30, 50, 5)
    (coarse, far), (fine, near) = script.agreement(*lists, num_bins=10), script.agreement(*lists, num_bins=20_000)
    assert coarse < fine
    assert fine == pytest.approx(1, abs=1e-3)
    assert far < 3 * near < 0


# ---- bench_multistage ------------------------------------------------------------------------------------------------


def test_memory_and_time_of_multistage_backward():
    import bench_multistage as script

    rows = cells(run(script, "--size", 32, "--chunk-size", 8, "--chunk-size", 32, "--rounds", 1))[1:]
    assert [row[1] for row in rows] == ["plain", "multistage", "multistage"]
    plain, small, whole = (float(row[3]) for row in rows)
    assert small < plain
    assert whole == plain
    assert [float(row[-1]) for row in rows[1:]] == pytest.approx([0, 0], abs=1e-5)


# ---- bench_processes -------------------------------------------------------------------------------------------------


def test_a_loss_of_two_processes_is_that_of_one():
    import bench_processes as script

    _, shared = cells(run(script, "--loss", "nt-xent", "--size", 64, "--processes", 2, "--rounds", 1))[1:]
    assert float(shared[-1]) < 1e-12


# ---- bench_growth ----------------------------------------------------------------------------------------------------


def test_growth_is_the_slope_of_the_last_three_points():
    import bench_growth as script

    assert script.exponent([1, 10, 100, 1000], [5, 1, 100, 10000]) == pytest.approx(2)
    assert script.exponent([2, 8], [3, 6]) == pytest.approx(0.5)
    assert script.row("a", "ms", [10, 20], [1.0, 2.0]) == "| a | ms | 1 | 2 | 1.00 |"


def test_memory_of_ranks_grows_with_the_list():
    import bench_growth as script

    _, memory = script.of_rank("laplace_rank", [100, 1000], rounds=1)
    assert memory[1] == pytest.approx(10 * memory[0], rel=0.1)


# ---- compare_svm_ap --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.5, 20.0])
def test_cutting_planes_find_the_minimum(penalty):
    """The objective is convex: no other weights are better, near or far."""
    import compare_svm_ap as script

    generator = torch.Generator().manual_seed(3)
    x = torch.randn(25, 3, generator=generator, dtype=torch.float64)
    relevant = x[:, 0] + torch.randn(25, generator=generator) > 0.5

    def objective(w):
        return w @ w / 2 + penalty * sodeep.svm_ap_loss(x @ w, relevant)

    w = torch.from_numpy(script.cutting_planes(x, relevant, penalty, gap=1e-5))
    least = objective(w) - penalty * 1e-5
    assert objective(torch.zeros(3, dtype=torch.float64)) > least + 0.1 * penalty
    for size in (1e-3, 1e-2, 0.1, 1.0):
        for _ in range(50):
            other = w + size * torch.randn(3, generator=generator, dtype=torch.float64)
            assert objective(other) >= least


def test_the_toy_experiment():
    pytest.importorskip("sklearn")
    import compare_svm_ap as script

    options = ["--seeds", 2, "--quick", "--penalty", 0.01, "--loss", "svm-ap", "--loss", "hinge"]
    rows = cells(run(script, *options))[1:]
    assert [row[0] for row in rows] == [script.SVM, "svm-ap", "hinge", "linear SVM of scikit-learn"]
    assert rows[2][2] == "baseline"
    assert all(0.4 < float(row[1].split()[0]) < 0.7 for row in rows)
    refused = CliRunner().invoke(script.main, ["--loss", "bce"])
    assert refused.exit_code == 2
    assert refused.stderr.endswith("Invalid value for --baseline: hinge is not among svm-ap-planes, bce.\n")


# ---- check_gradient_scaling ------------------------------------------------------------------------------------------


def test_both_scalings_of_gradients():
    import check_gradient_scaling as script

    output = run(script, "--task", "memorability", "--losses", "mse,pearson", "--seeds", 1, "--max-steps", 3)
    assert [(row[0], row[3]) for row in cells(output)[1:]] == [("mse", "3 and 3"), ("pearson", "3 and 3")]
