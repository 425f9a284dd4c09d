"""retrieval_metrics against the functions of whole lists."""

import math
import re
import warnings

import pytest
import torch

import sodeep
from sodeep.metrics import UndefinedMetricWarning

DENSE = {
    "mAP": sodeep.average_precision,
    "mAP@7": lambda s, r, where: sodeep.average_precision(s, r, k=7, where=where),
    "mAP@R": sodeep.map_at_r,
    "R-precision": sodeep.r_precision,
    "R@1": lambda s, r, where: sodeep.hit_rate_at_k(s, r, k=1, where=where),
    "R@9": lambda s, r, where: sodeep.hit_rate_at_k(s, r, k=9, where=where),
    "R@1000": lambda s, r, where: sodeep.hit_rate_at_k(s, r, k=1000, where=where),
    "recall@5": lambda s, r, where: sodeep.recall_at_k(s, r, k=5, where=where),
    "P@6": lambda s, r, where: sodeep.precision_at_k(s, r, k=6, where=where),
    "MRR": sodeep.reciprocal_rank,
    "median rank": sodeep.median_rank,
    "nDCG": lambda s, r, where: sodeep.ndcg(s, r.float(), where=where),
    "nDCG@8": lambda s, r, where: sodeep.ndcg(s, r.float(), k=8, where=where),
}


def rows(n, tied=False, d=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return x[7 * torch.arange(n) % 11] if tied else x  # copies: scores that are equal by chance differ in a last bit


def dense(scores, relevant, where):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        return {name: function(scores, relevant, where=where) for name, function in DENSE.items()}


def check(found, expected):
    assert list(found) == list(expected)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-9, atol=1e-12, equal_nan=True, msg=name)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_queries_that_search_each_other(tied, block, similarity):
    x, labels = rows(60, tied), torch.arange(60) % 13
    labels[:3] = torch.tensor([100, 101, 102])  # alone in their class
    scores, relevant = sodeep.pairwise_scores(x, labels, x.clone(), labels, similarity=similarity)
    expected = dense(scores, relevant, ~torch.eye(60, dtype=torch.bool))
    found = sodeep.retrieval_metrics(
        x, labels, metrics=list(DENSE), similarity=similarity, reduction="none", block_size=block
    )
    check(found, expected)
    means = sodeep.retrieval_metrics(x, labels, metrics=list(DENSE), similarity=similarity)
    for name, values in expected.items():
        mean = values.nanmedian() if name == "median rank" else values.nanmean()
        assert means[name] == pytest.approx(mean.item(), rel=1e-9)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["numbers", "strings", "multi-hot"])
def test_a_gallery_with_own_rows_and_cameras(tied, kind):
    n, m = 30, 50
    queries, gallery = rows(n, tied), rows(m, tied, seed=1)
    numbers, others = torch.arange(n) % 9, torch.arange(m) % 8
    cameras, other_cameras = torch.arange(n) % 3, torch.arange(m) % 2
    own = torch.where(torch.arange(n) % 4 == 0, torch.arange(n), -1)
    same = numbers[:, None] == others
    labels, gallery_labels = numbers, others
    if kind == "strings":
        labels, gallery_labels = ([f"class {i}" for i in x.tolist()] for x in (numbers, others))
    elif kind == "multi-hot":
        generator = torch.Generator().manual_seed(2)
        labels, gallery_labels = ((torch.rand(k, 5, generator=generator) < 0.3).long() for k in (n, m))
        same = labels.float() @ gallery_labels.float().T > 0
    scores, _ = sodeep.pairwise_scores(queries, same, gallery)
    where = ~(same & (cameras[:, None] == other_cameras)) & (torch.arange(m) != own[:, None])
    found = sodeep.retrieval_metrics(
        queries,
        labels,
        gallery,
        gallery_labels,
        metrics=list(DENSE),
        own=own,
        cameras=cameras,
        gallery_cameras=other_cameras,
        reduction="none",
        block_size=11,
    )
    check(found, dense(scores, same & where, where))


def test_equal_rows_tie_wherever_they_stand():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 64, generator=generator)
    gallery = x[torch.randint(9, (301,), generator=generator)]
    labels = torch.arange(301) % 5
    found = sodeep.retrieval_metrics(x, torch.arange(9) % 5, gallery, labels, metrics=("mAP", "R@1"), reduction="none")
    scores, relevant = sodeep.pairwise_scores(x, torch.arange(9) % 5, gallery, labels)
    for name, function in (("mAP", sodeep.average_precision), ("R@1", DENSE["R@1"])):
        torch.testing.assert_close(found[name], function(scores, relevant, where=None), rtol=1e-6, atol=1e-6)


def test_grades():
    x, gallery = rows(20), rows(35, seed=1)
    grades = (torch.arange(20)[:, None] + torch.arange(35)) % 4
    own = torch.arange(20)
    where = torch.arange(35) != own[:, None]
    scores, _ = sodeep.pairwise_scores(x, grades > 0, gallery)
    seen = []

    def some(which):
        seen.append(which.tolist())
        return grades[which]

    found = sodeep.retrieval_metrics(
        x,
        torch.zeros(20).long(),
        gallery,
        torch.arange(35) % 2,
        metrics=("nDCG@5", "ASP", "mAP"),
        own=own,
        grades=some,
        reduction="none",
        block_size=8,
    )
    assert list(found) == ["nDCG@5", "ASP", "mAP"]
    assert [i for part in seen for i in part] == list(range(20))
    torch.testing.assert_close(found["nDCG@5"], sodeep.ndcg(scores, grades, k=5, where=where))
    torch.testing.assert_close(found["ASP"], sodeep.asp(scores, grades, where=where))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision(dtype):
    x = rows(40).to(dtype)
    labels = torch.arange(40) % 6
    scores, relevant = sodeep.pairwise_scores(x.float(), labels)
    found = sodeep.retrieval_metrics(x, labels, reduction="none")["mAP"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, sodeep.average_precision(scores, relevant), rtol=1e-5, atol=1e-5)


def test_nothing_found_and_nothing_searched():
    x = rows(3)
    found = sodeep.retrieval_metrics(x, ["a", "b", "c"])
    assert all(math.isnan(value) for value in found.values())
    assert all(math.isnan(value) for value in sodeep.retrieval_metrics(x[:0], []).values())
    assert all(math.isnan(value) for value in sodeep.retrieval_metrics(x[:1], ["a"]).values())


def test_progress(capsys):
    sodeep.retrieval_metrics(rows(6), torch.arange(6) % 2, block_size=2, progress=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["map"]}, "`metrics` must be names of mAP, mAP@K, mAP@R, R-precision, R@K, recall@K, P@K, MRR, "),
        ({"metrics": ["R@"]}, "got 'R@'."),
        ({"metrics": ["R@0"]}, "got 'R@0'."),
        ({"metrics": ["ASP"]}, "got 'ASP' (ASP needs `grades`)."),
        ({"similarity": "l2"}, "`similarity` must be "),
        ({"own": torch.zeros(4).long()}, "`gallery` must be given with `own`, got None."),
        ({"gallery_labels": [1]}, "`gallery` must be given with `gallery_labels`, got None."),
        ({"gallery": torch.ones(2, 6)}, "`gallery_labels` must be given with `gallery`, got None."),
        (
            {"gallery": torch.ones(2, 5), "gallery_labels": [1, 1]},
            "`gallery` must have the width of `queries` (6), got ",
        ),
        ({"gallery": torch.ones(2, 6), "gallery_labels": [1]}, "`gallery_labels` must have shape (2,) or multi-hot "),
        (
            {"gallery": torch.ones(2, 6), "gallery_labels": [1, 1], "cameras": [1] * 4},
            "`cameras` and `gallery_cameras` must be given together, got one of them.",
        ),
        (
            {"gallery": torch.ones(2, 6), "gallery_labels": [1, 1], "own": torch.tensor([0, 1, 2, -1])},
            "`own` must be rows of the gallery, 0 to 1, or -1, got -1 to 2.",
        ),
        ({"cameras": [1, 2]}, "`cameras` must have shape (4,), one a row, got shape (2,)."),
        ({"block_size": 0}, "`block_size` must be a whole number of at least 1, got 0."),
    ],
)
def test_what_is_wrong(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        sodeep.retrieval_metrics(rows(4), [1, 1, 2, 2], **options)
