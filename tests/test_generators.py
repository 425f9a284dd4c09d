"""Generators: their distributions, determinism, mixtures, and files of a user's own scores."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from scipy import stats

from sodeep.generators import (
    DEFAULT,
    DISTRIBUTIONS,
    SODEEP2019,
    UserScores,
    check_mixture,
    draw,
    draw_length,
    parse_weight,
    read_scores_file,
)

NAMES = ", ".join([*DISTRIBUTIONS, "user"])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def exactly(message):
    return f"^{re.escape(message)}$"


# ---- every distribution ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 100])
def test_shape_dtype_device_and_finite(name, n):
    generator = seeded()
    scores = DISTRIBUTIONS[name](50, n, generator)
    assert scores.shape == (50, n)
    assert scores.dtype == torch.float32
    assert scores.device == generator.device
    assert scores.isfinite().all()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_same_seed_same_scores(name):
    first, again, other = (DISTRIBUTIONS[name](20, 30, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name == "ramp-2019")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_global_random_state_is_neither_read_nor_moved(name):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = DISTRIBUTIONS[name](5, 10, seeded())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(DISTRIBUTIONS[name](5, 10, seeded()), first)


@pytest.mark.parametrize("name", sorted(set(DISTRIBUTIONS) - {"ramp-2019"}))
def test_rows_differ(name):
    scores = DISTRIBUTIONS[name](40, 20, seeded())
    assert len(scores.unique(dim=0)) == 40


@pytest.mark.parametrize("name", ["uniform", "normal", "even", "concat", "scaled", "heavy-tailed", "nearly-sorted"])
def test_nearly_all_values_differ(name):
    scores = DISTRIBUTIONS[name](200, 50, seeded())
    distinct = torch.tensor([len(row.unique()) for row in scores], dtype=torch.float64)
    assert distinct.mean() > 49.5


# ---- values ----------------------------------------------------------------------------------------------------------


def flat(name, batch=400, n=50):
    return DISTRIBUTIONS[name](batch, n, seeded()).flatten().numpy()


def test_uniform_is_uniform():
    assert stats.kstest(flat("uniform"), stats.uniform(-1, 2).cdf).pvalue > 0.01


def test_normal_is_normal():
    assert stats.kstest(flat("normal"), stats.norm.cdf).pvalue > 0.01


@pytest.mark.parametrize("name", ["even", "even-sorted", "even-2019", "even-sorted-2019"])
def test_even_is_evenly_spaced_in_a_random_sub_range(name):
    low = 0 if name.endswith("2019") else -1
    scores = DISTRIBUTIONS[name](500, 40, seeded())
    ascending = scores.sort(-1).values.double()
    steps = ascending.diff(dim=-1)
    torch.testing.assert_close(steps, steps.mean(-1, keepdim=True).expand_as(steps), rtol=0, atol=1e-6)
    assert low <= scores.min()
    assert scores.max() <= 1
    width = (steps.mean(-1) * 40).numpy() / (1 - low)
    assert stats.kstest(width, lambda w: 1 - (1 - w) ** 2).pvalue > 0.01  # |U - V|


@pytest.mark.parametrize("name", ["even-sorted", "even-sorted-2019"])
def test_even_sorted_rises_or_falls(name):
    steps = DISTRIBUTIONS[name](500, 40, seeded()).diff(dim=-1)
    rising, falling = (steps >= 0).all(-1), (steps <= 0).all(-1)
    assert (rising | falling).all()
    assert 200 < rising.sum() < 300


@pytest.mark.parametrize("name", ["even", "even-2019"])
def test_even_is_shuffled(name):
    scores = DISTRIBUTIONS[name](2000, 5, seeded())
    position_of_largest = scores.argmax(-1).bincount(minlength=5).numpy()
    assert stats.chisquare(position_of_largest).pvalue > 0.01


def test_uniform_normal_2019_is_its_two_parts():
    scores = DISTRIBUTIONS["uniform-normal-2019"](20000, 10, seeded())
    # the first item is always of the uniform part; the last is of it only when the split is at the end (1 in 10)
    assert stats.kstest(scores[:, 0].numpy(), stats.uniform(-1, 2).cdf).pvalue > 0.01
    last = lambda x: 0.1 * stats.uniform(-1, 2).cdf(x) + 0.9 * stats.norm.cdf(x)  # noqa: E731
    assert stats.kstest(scores[:, -1].numpy(), last).pvalue > 0.01


def test_even_uniform_2019_is_its_two_parts():
    n = 6
    scores = DISTRIBUTIONS["even-uniform-2019"](20000, n, seeded())
    last = scores[:, -1]
    # the last item is uniform on [-1, 1] unless the split is at the end: negative in (n - 1) / n of half the lists
    share = (last < 0).double().mean().item()
    assert abs(share - 0.5 * (n - 1) / n) < 4 * math.sqrt(0.25 / len(last))
    assert (scores[:, 0] >= 0).all()
    # a list with a negative last item may have an even head; where the second item is negative the head is one item
    whole = scores[(scores >= 0).all(-1)].sort(-1).values.double().diff(dim=-1)
    even = (whole - whole.mean(-1, keepdim=True)).abs().amax(-1) < 1e-6
    assert even.sum() > 0.8 * 20000 / n  # at least the lists that are even from end to end (some negative tails aside)


def test_ramp_2019_is_exact():
    for n in (1, 2, 7, 100):
        expected = np.array([-1 + 2 * i / n for i in range(n)], dtype=np.float32)
        scores = DISTRIBUTIONS["ramp-2019"](3, n, seeded())
        np.testing.assert_allclose(scores.numpy(), np.tile(expected, (3, 1)), rtol=0, atol=6e-8)
        np.testing.assert_allclose(scores[0].numpy(), np.arange(-1.0, 1.0, 2.0 / n)[:n], rtol=0, atol=1.2e-7)


def test_concat_uses_two_different_parts():
    scores = DISTRIBUTIONS["concat"](30000, 8, seeded())
    # the first item is uniform, normal or even, each in a third of the lists; beyond 1 only the normal goes
    beyond = (scores[:, 0].abs() > 1).double().mean().item()
    assert abs(beyond - 2 * stats.norm.sf(1) / 3) < 0.01
    assert abs((scores[:, -1].abs() > 1).double().mean().item() - 2 * stats.norm.sf(1) / 3) < 0.01


def test_ties_have_few_values():
    distinct = torch.tensor([len(row.unique()) for row in DISTRIBUTIONS["ties"](500, 60, seeded())])
    assert distinct.min() <= 2
    assert distinct.max() <= 30
    assert (distinct >= 8).sum() > 100


def test_runs_are_stretches():
    scores = DISTRIBUTIONS["runs"](500, 100, seeded())
    changes = (scores.diff(dim=-1) != 0).sum(-1)
    distinct = torch.tensor([len(row.unique()) for row in scores])
    assert torch.equal(distinct, changes + 1)  # a value never comes back
    assert changes.min() == 0
    assert changes.max() > 35
    assert changes.double().mean() < 40


def test_constant_is_constant():
    scores = DISTRIBUTIONS["constant"](50, 9, seeded())
    assert (scores == scores[:, :1]).all()
    assert len(scores.unique()) == 50


def test_scaled_spans_decades_and_keeps_its_order():
    scores = DISTRIBUTIONS["scaled"](2000, 100, seeded())
    decades = scores.double().std(-1).log10()
    assert decades.min() < -5.5
    assert decades.max() > 5
    assert (scores.mean(-1).abs() / scores.std(-1)).max() > 1000
    assert torch.tensor([len(row.unique()) for row in scores]).min() > 90  # the offset does not swallow the spread


def test_skewed_goes_both_ways():
    skew = torch.tensor(stats.skew(DISTRIBUTIONS["skewed"](1000, 200, seeded()).double().numpy(), axis=-1))
    assert 400 < (skew > 0).sum() < 600
    assert skew.abs().median() > 1


def test_heavy_tailed_is_students_t():
    scores = DISTRIBUTIONS["heavy-tailed"](4000, 20, seeded()).double()
    degrees = 5 ** torch.linspace(0, 1, 201, dtype=torch.float64)[:-1].numpy()
    mixture = lambda x: stats.t(degrees[:, None]).cdf(x).mean(0)  # noqa: E731
    assert stats.kstest(scores[:, 0].numpy(), mixture).pvalue > 0.01
    assert scores.abs().max() > 100


def test_heavy_tailed_stays_finite_at_the_ends_of_the_random_numbers(monkeypatch):
    import sodeep.generators as generators

    for end in (0.0, 1 - 2**-24):
        monkeypatch.setattr(generators, "_rand", lambda generator, *shape, end=end: torch.full(shape, end))
        assert DISTRIBUTIONS["heavy-tailed"](2, 3, seeded()).isfinite().all()
        assert DISTRIBUTIONS["skewed"](2, 3, seeded()).isfinite().all()


def test_clusters_have_no_single_scale():
    gaps = DISTRIBUTIONS["clusters"](500, 100, seeded()).sort(-1).values.diff(dim=-1)
    assert (gaps.amax(-1) / gaps.median(-1).values.clamp(min=1e-8)).median() > 30


def test_similarities_look_like_similarities():
    scores = DISTRIBUTIONS["similarities"](1000, 200, seeded())
    assert scores.abs().max() <= 1
    torch.testing.assert_close(scores.median(-1).values.mean().item(), 0.05, atol=0.03, rtol=0)
    assert 0.01 < (scores > 0.6).double().mean() < 0.08


def test_nearly_sorted_is_nearly_sorted():
    scores = DISTRIBUTIONS["nearly-sorted"](400, 50, seeded()).numpy()
    rho = np.array([stats.spearmanr(row, np.arange(50)).statistic for row in scores])
    assert np.abs(rho).min() > 0.9
    assert 150 < (rho > 0).sum() < 250
    assert (np.abs(rho) < 1).sum() > 200


def test_bimodal_has_two_modes():
    gaps = DISTRIBUTIONS["bimodal"](500, 200, seeded()).sort(-1).values.diff(dim=-1)
    middle = gaps[:, 15:-15].amax(-1)  # the largest gap away from the tails: between the modes
    assert (middle > 1).double().mean() > 0.4


# ---- mixtures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [DEFAULT, SODEEP2019, {"normal": 1}], ids=["default", "2019", "one"])
def test_draw_shape_and_determinism(weights):
    scores = draw(weights, 300, 40, seeded())
    assert scores.shape == (300, 40)
    assert scores.dtype == torch.float32
    assert scores.isfinite().all()
    assert torch.equal(scores, draw(weights, 300, 40, seeded()))
    assert not torch.equal(scores, draw(weights, 300, 40, seeded(1)))


def test_draw_follows_the_weights_in_random_order():
    scores = draw({"constant": 3, "normal": 1, "uniform": 0}, 8000, 5, seeded())
    is_constant = (scores == scores[:, :1]).all(-1)
    assert abs(is_constant.double().mean().item() - 0.75) < 4 * math.sqrt(0.75 * 0.25 / 8000)
    # rows of one distribution are not all together: neighbours are of the same kind as often as independent ones
    same = (is_constant[1:] == is_constant[:-1]).double().mean().item()
    assert abs(same - (0.75**2 + 0.25**2)) < 0.03


def test_every_default_distribution_is_drawn(monkeypatch):
    drawn = set()
    for name, distribution in list(DISTRIBUTIONS.items()):

        def recorded(*args, name=name, distribution=distribution):
            drawn.add(name)
            return distribution(*args)

        monkeypatch.setitem(DISTRIBUTIONS, name, recorded)
    draw(DEFAULT, 4000, 3, seeded())
    assert drawn == set(DEFAULT)


def test_2019_mixture_has_the_proportions_of_the_released_code():
    """Against the ten types of the released data set, their distributions written again in numpy."""
    assert sum(SODEEP2019.values()) == 10
    batch, n = 20000, 10
    ours = draw(SODEEP2019, batch, n, seeded()).numpy()

    rng = np.random.default_rng(0)

    def ramp(size):
        start, end = rng.random(2)
        return start + (end - start) * np.arange(size) / size

    def one(kind):
        split = rng.integers(1, n + 1)
        u = rng.uniform(-1, 1, n)
        if kind in (0, 1, 7):
            return u
        if kind == 2:
            return rng.standard_normal(n)
        if kind == 3:
            return ramp(n)
        if kind == 4:
            return rng.permutation(ramp(n))
        if kind in (5, 6):
            return np.concatenate([u[:split], rng.standard_normal(n - split)])
        if kind == 8:
            return np.concatenate([rng.permutation(ramp(split)), u[split:]])
        return -1 + 2 * np.arange(n) / n

    theirs = np.stack([one(rng.integers(10)) for _ in range(batch)]).astype(np.float32)
    statistics = {
        "ramp": lambda s: (np.abs(s - (-1 + 2 * np.arange(n) / n)) < 1e-6).all(-1),
        "sorted": lambda s: (np.diff(s) > 0).all(-1) | (np.diff(s) < 0).all(-1),
        "even": lambda s: np.ptp(np.diff(np.sort(s)), axis=-1) < 1e-6,
        "beyond one": lambda s: (np.abs(s) > 1).any(-1),
        "all positive": lambda s: (s >= 0).all(-1),
        "first positive": lambda s: s[:, 0] > 0,
        "last beyond one": lambda s: np.abs(s[:, -1]) > 1,
    }
    for name, statistic in statistics.items():
        p, q = statistic(ours).mean(), statistic(theirs).mean()
        assert abs(p - q) < 5 * math.sqrt(2 * max(p, 1e-3) * (1 - p) / batch), (name, p, q)
    for column in (0, n // 2, n - 1):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 0.01


def test_draw_checks_its_numbers():
    with pytest.raises(ValueError, match=exactly("`batch` must be a whole number of at least 1, got 0.")):
        draw(DEFAULT, 0, 5, seeded())
    with pytest.raises(ValueError, match=exactly("`n` must be a whole number of at least 1, got 2.5.")):
        draw(DEFAULT, 1, 2.5, seeded())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"unifrom": 1}, f"`weights` must be one of {NAMES}, got 'unifrom'."),
        ({"uniform": -1}, "`weights` must hold finite numbers of at least 0, got uniform=-1."),
        ({"uniform": math.nan}, "`weights` must hold finite numbers of at least 0, got uniform=nan."),
        ({"uniform": math.inf}, "`weights` must hold finite numbers of at least 0, got uniform=inf."),
        ({"uniform": "3"}, "`weights` must hold finite numbers of at least 0, got uniform='3'."),
        (
            {"uniform": 0, "normal": 0.0},
            "`weights` must hold at least one weight above 0, got {'uniform': 0, 'normal': 0.0}. "
            f"The names are {NAMES}.",
        ),
        ({}, f"`weights` must hold at least one weight above 0, got {{}}. The names are {NAMES}."),
        (
            {"user": 1},
            "`weights` must name 'user' only when there are scores of your own, got user=1. "
            "Give them: user_scores=read_scores_file(path), or --scores-file on the command line.",
        ),
    ],
)
def test_bad_weights(weights, message):
    with pytest.raises(ValueError, match=exactly(message)):
        draw(weights, 2, 3, seeded())


def test_user_scores_need_a_weight():
    message = (
        "`weights` must give 'user' a weight above 0 when user_scores are given, got {'uniform': 1}. "
        "Add it: {**weights, 'user': 1}."
    )
    with pytest.raises(ValueError, match=exactly(message)):
        check_mixture({"uniform": 1}, user_scores=True)


def test_draw_length_is_log_uniform():
    generator = seeded()
    lengths = torch.tensor([draw_length(8, 127, generator) for _ in range(4000)])
    assert lengths.min() == 8
    assert lengths.max() == 127
    for octave in (8, 16, 32, 64):
        share = ((lengths >= octave) & (lengths < 2 * octave)).double().mean().item()
        assert abs(share - 0.25) < 0.03
    assert draw_length(5, 5, generator) == 5
    with pytest.raises(ValueError, match=exactly("`high` must be a whole number of at least 10, got 9.")):
        draw_length(10, 9, generator)


def test_parse_weight():
    assert parse_weight("uniform=3") == ("uniform", 3.0)
    assert parse_weight(" heavy-tailed = 0.5 ") == ("heavy-tailed", 0.5)
    assert parse_weight("ties") == ("ties", 1.0)
    assert parse_weight("user=2") == ("user", 2.0)
    with pytest.raises(ValueError, match=exactly(f"`distribution` must be one of {NAMES}, got 'gauss'.")):
        parse_weight("gauss=1")
    for bad in ("normal=", "normal=x", "normal=-1", "normal=inf", "normal=nan", "normal=1=2"):
        message = f"`distribution` must be NAME=WEIGHT with a weight of at least 0, got {bad!r}. For example normal=3."
        with pytest.raises(ValueError, match=exactly(message)):
            parse_weight(bad)


# ---- a user's own scores ---------------------------------------------------------------------------------------------


def test_longer_lists_are_subsets_in_order():
    rows = [np.arange(10.0), 100 + np.arange(6.0)]
    scores = UserScores(rows).draw(2000, 4, seeded())
    assert (scores.diff(dim=-1) > 0).all()  # each item at most once, in the list's own order
    first = scores[:, 0] < 50
    assert 900 < first.sum() < 1100
    assert (first == (scores < 50).all(-1)).all()  # no list mixes two rows
    picked = scores[first].flatten().long().bincount(minlength=10).numpy()
    assert stats.chisquare(picked).pvalue > 0.01


def test_shorter_lists_are_drawn_with_replacement():
    for rows in ([[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0], np.arange(10, 30.0)]):
        scores = UserScores(rows).draw(3000, 8, seeded())
        short = scores[scores[:, 0] < 5]
        assert stats.chisquare(short.flatten().long().bincount(minlength=4)[1:].numpy()).pvalue > 0.01


def test_whole_lists_of_the_right_length_are_taken_as_they_are():
    rows = torch.randn(5, 7, generator=seeded())
    scores = UserScores(rows.numpy()).draw(50, 7, seeded())
    assert all(any(torch.equal(drawn, row) for row in rows) for drawn in scores)


def test_user_scores_in_a_mixture():
    user_scores = UserScores([[10.0, 11.0, 12.0, 13.0]])
    scores = draw({"user": 1, "uniform": 3}, 4000, 3, seeded(), user_scores=user_scores)
    assert abs((scores[:, 0] > 5).double().mean().item() - 0.25) < 0.03
    assert torch.equal(scores, draw({"user": 1, "uniform": 3}, 4000, 3, seeded(), user_scores=user_scores))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "`rows` must hold at least one list, got none."),
        ([[1.0, 2.0], [3.0]], "`rows` must hold lists of two or more numbers, got shape (1,) in row 2."),
        ([[1.0, math.nan]], "`rows` must be finite in float32, got nan in row 1."),
        ([[1.0, math.inf]], "`rows` must be finite in float32, got inf in row 1."),
    ],
)
def test_bad_rows(rows, message):
    with pytest.raises(ValueError, match=exactly(message)):
        UserScores(rows)


def lists(user_scores):
    return [row[:length].tolist() for row, length in zip(user_scores.values, user_scores.lengths, strict=True)]


@pytest.mark.parametrize("suffix", [".csv", ".txt"])
@pytest.mark.parametrize(
    "text",
    [
        "0.5,1,-2\n3,4e-1\n",
        "0.5, 1, -2\r\n\r\n3, 4e-1,\r\n",
        "\ufeff0.5;1;-2\n3;0.4;;",
        "0.5\t1\t-2\n3\t0.4",
        "  0.5  1 -2\n\n3 0.4  \n",
    ],
    ids=["comma", "crlf", "semicolon", "tab", "space"],
)
def test_read_text(tmp_path, text, suffix):
    path = tmp_path / f"scores{suffix}"
    path.write_text(text, encoding="utf-8", newline="")
    user_scores = read_scores_file(path)
    np.testing.assert_allclose(list(itertools.chain(*lists(user_scores))), [0.5, 1, -2, 3, 0.4], rtol=1e-6)
    assert user_scores.lengths.tolist() == [3, 2]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64])
def test_read_npy(tmp_path, dtype):
    array = np.array([[1, 2, 3], [4, 6, 5]], dtype=dtype)
    np.save(tmp_path / "scores.npy", array)
    assert lists(read_scores_file(tmp_path / "scores.npy")) == array.tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.5\n1\n-2\n", [[0.5, 1, -2]]),
        ("score\n0.5\n\n1\n-2\n", [[0.5, 1, -2]]),
        ("s1;s2;s3\n0.5;1;-2\n3;4\n", [[0.5, 1, -2], [3, 4]]),
    ],
    ids=["column", "named column", "numbered places"],
)
def test_a_column_is_one_list_and_names_may_stand_above(tmp_path, text, expected):
    path = tmp_path / "scores.csv"
    path.write_text(text)
    assert lists(read_scores_file(path)) == expected


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_a_column_of_an_array_is_one_list(tmp_path, shape):
    np.save(tmp_path / "scores.npy", np.array([0.5, 1, -2]).reshape(shape))
    assert lists(read_scores_file(tmp_path / "scores.npy")) == [[0.5, 1, -2]]


def test_bad_text_names_file_and_line(tmp_path):
    path = tmp_path / "scores.csv"
    for text, message in [
        (
            "film,score\n1,2\n",
            "it must hold lists of scores, one a row, or one column of scores, got a table with the columns film, "
            "score. Write its scores to a file of their own.",
        ),
        ("1,2\n\n3,,4\n", "line 3, column 2 must be a number, got ''. One list a row, or one column."),
        ("1,2\na,b\n", "line 2, column 1 must be a number, got 'a'. One list a row, or one column."),
        (",0,1\n0,.5,.1\n", "line 1, column 1 must be a number, got ''. One list a row, or one column."),
        ("1,2\n3\n", "line 2 must hold two or more numbers, as other lines do, got [3.0]."),
        ("1,2\n3,nan\n", "line 2 must hold finite numbers, got [3.0, nan]."),
        ("score\n3\n", "`rows` must hold lists of two or more numbers, got shape (1,) in row 1."),
        ("1,2\n3,1e60\n", "`rows` must be finite in float32, got inf in row 2."),
        ("\n", "`rows` must hold at least one list, got none."),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=exactly(f"{path}: {message}")):
            read_scores_file(path)


def test_bad_npy_names_file_and_fault(tmp_path):
    path = tmp_path / "scores.npy"
    for array, got in [
        (np.ones((2, 2, 2)), "shape (2, 2, 2), dtype float64"),
        (np.ones((2, 2), complex), "shape (2, 2), dtype complex128"),
    ]:
        np.save(path, array)
        message = f"{path}: the array must be real and 2-D, one list a row, or 1-D, one list, got {got}."
        with pytest.raises(ValueError, match=exactly(message)):
            read_scores_file(path)
    np.save(path, np.array([[1, None]], dtype=object))
    with pytest.raises(ValueError, match="it holds Python objects, which are not unpickled"):  # nothing is unpickled
        read_scores_file(path)
    path.write_bytes(b"<html>")
    with pytest.raises(ValueError, match=re.escape(str(path))):
        read_scores_file(path)


def test_missing_file(tmp_path):
    path = tmp_path / "none.csv"
    message = f"`path` must be a file of scores (.npy or .csv), got {str(path)!r}: no such file."
    with pytest.raises(FileNotFoundError, match=exactly(message)):
        read_scores_file(path)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_draws_on_the_device_of_the_generator():
    generator = torch.Generator("cuda").manual_seed(0)
    user_scores = UserScores([[1.0, 2.0, 3.0]])
    scores = draw({**DEFAULT, **SODEEP2019, "user": 1}, 500, 30, generator, user_scores=user_scores)
    assert scores.device.type == "cuda"
    assert scores.isfinite().all()
