"""The ranking task: groups in splits, batches and metrics, against plain loops and scikit-learn."""

import re

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import ndcg_score

import sodeep
from sodeep.cli import main
from sodeep.comparison import compare
from sodeep.comparison.losses_by_name import default_losses, loss_by_name
from sodeep.comparison.read import read_comparison
from sodeep.datasets.splits import SPLITS, split_of_groups, with_train_fraction
from sodeep.tasks import TASKS, Ranking, RankingData
from sodeep.tasks.encoders import ListScorer

RNG = np.random.default_rng


def made_up(n=300, groups=40, seed=0, **fields):
    rng = RNG(seed)
    group = rng.permutation(np.arange(n) % groups)  # the items of a group do not stand together
    features = rng.normal(size=(n, 5))
    relevance = rng.integers(0, 4, n).astype(float)
    return RankingData("made up", features, relevance, group, **fields)


@pytest.fixture(scope="module")
def task():
    return Ranking(made_up())


# ---- splits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"folds": 4}])
def test_groups_stay_whole(fields):
    data = made_up(**fields)
    split = Ranking.split_of(data, 0)
    for which in np.unique(data.group):
        assert len(set(split[data.group == which])) == 1
    assert set(split) == set(SPLITS)
    assert not np.array_equal(split, Ranking.split_of(data, 1))


def test_folds_are_a_cross_validation():
    data = made_up(groups=41, folds=4)
    for first in (0, 4):
        splits = [Ranking.split_of(data, seed) for seed in range(first, first + 4)]
        np.testing.assert_array_equal(sum((split == "test").astype(int) for split in splits), 1)
        np.testing.assert_array_equal(sum((split == "val").astype(int) for split in splits), 1)
        for this, following in zip(splits, [*splits[1:], splits[0]], strict=True):
            np.testing.assert_array_equal(this == "val", following == "test")
    assert not np.array_equal(Ranking.split_of(data, 0), Ranking.split_of(data, 4))


def test_a_given_split_keeps_its_groups_and_gives_some_for_validation():
    group = np.repeat(np.arange(20), 3)
    split = np.where(group < 14, "train", "test")
    target = np.tile([0, 1, 2], 20)
    found = split_of_groups(split, group, target, 0)
    np.testing.assert_array_equal(found == "test", split == "test")
    assert len(set(group[found == "val"])) == 2  # 15 % of 14
    np.testing.assert_array_equal(split_of_groups(found, group, target, 1), found)


def test_a_group_in_two_splits_is_refused():
    message = (
        "`group` must be in one split, got b in 'train' and 'test'. Give the groups of each split ids of their own."
    )
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        split_of_groups(np.array(["train", "train", "test"]), np.array(["a", "b", "b"]), np.arange(3), 0)


@pytest.mark.parametrize("fields", [{}, {"folds": 4}])
@pytest.mark.parametrize("seed", range(12))
def test_every_part_has_groups_whose_grades_differ(fields, seed):
    group = np.repeat(np.arange(40), 4)
    relevance = np.where(group < 6, np.arange(160) % 3, 1.0)  # of six alone
    split = Ranking.split_of(RankingData("made up", relevance[:, None], relevance, group, **fields), seed)
    for part in SPLITS:
        assert set(group[split == part]) & set(range(6))


@pytest.mark.parametrize(
    ("split", "folds", "message"),
    [
        (None, None, "at least 5 groups whose items differ in relevance, got 2 of 3 groups. Nothing can be ranked by "),
        (None, 4, "at least 4 groups whose items differ in relevance for 4 folds, got 2 of 3 groups."),
        (["train"] * 2 + ["test"] * 4, None, "at least 2 groups whose items differ in relevance in train, got 1 of 3 "),
    ],
)
def test_too_few_groups_are_refused(split, folds, message):
    group, target = np.repeat(np.arange(3), 2), np.array([0, 1, 0, 1, 0, 0])
    with pytest.raises(ValueError, match="^" + re.escape(f"`data` must have {message}")):
        split_of_groups(None if split is None else np.array(split), group, target, 0, folds)


def test_folds_of_files_whose_ids_start_again_are_refused(tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{i % 3} qid:{i // 3} 1:{i}\n" for i in range(30)))
    with pytest.raises(ValueError, match=r"^`group` must be in one split, got 0 in 'train' and 'test'\."):
        Ranking.load(tmp_path, folds=3)
    with pytest.raises(
        ValueError, match=r"^`folds` must be given with data, got 3 without: every seed draws new ones\."
    ):
        Ranking.load(folds=3)


def test_a_fraction_of_the_training_groups():
    data = made_up()
    whole, half = Ranking(data), Ranking(data, train_fraction=0.5)
    train, kept = (set(data.group[one.index["train"]].tolist()) for one in (whole, half))
    assert kept < train
    assert len(kept) == round(0.5 * len(train))
    assert not kept & {*data.group[half.index["val"]].tolist(), *data.group[half.index["test"]].tolist()}
    split = np.array(["train"] * 6)
    cut = with_train_fraction(split, 0, 0.5, np.array([0, 1, 0, 1, 0, 1]))
    assert cut[0] == cut[2] == cut[4] != cut[1] == cut[3] == cut[5]


# ---- training --------------------------------------------------------------------------------------------------------


def test_batches_are_whole_groups(task):
    group = task.group
    seen = []
    for batch in task.batches(0):
        ids, counts = np.unique(group[batch], return_counts=True)
        assert len(ids) * counts.max() <= task.batch_size
        np.testing.assert_array_equal(counts, [np.count_nonzero(group == which) for which in ids])
        seen += batch.tolist()
    assert sorted(seen) == task.index["train"].tolist()


def test_losses_are_the_mean_of_one_call_for_each_group(task):
    torch.manual_seed(0)
    model = task.model().eval()
    batch = next(task.batches(0))
    apply = task.forward(model, batch)
    scores = model(task.features[batch]).squeeze(-1).detach()
    ids = task.group[batch]
    scale, middle = torch.std_mean(task.relevance[task.index["train"]])
    for signature, loss, target in (
        ("graded", sodeep.NDCGLoss(sodeep.laplace_rank), task.relevance[batch]),
        ("graded", sodeep.SoftmaxLoss(), task.relevance[batch]),
        ("target", sodeep.SpearmanLoss(sodeep.laplace_rank), (task.relevance[batch] - middle) / scale),
        ("target", sodeep.RankNetLoss(), task.relevance[batch]),
        ("relevant", sodeep.MAPLoss(sodeep.laplace_rank), task.relevance[batch] > 0),
    ):
        alone = [loss(scores[ids == which], target[ids == which]) for which in dict.fromkeys(ids.tolist())]
        torch.testing.assert_close(apply[signature](loss).detach(), torch.stack(alone).mean(), rtol=1e-4, atol=1e-6)
    flat = torch.nn.functional.mse_loss(scores, (task.relevance[batch] - middle) / scale)
    torch.testing.assert_close(apply["target"](torch.nn.MSELoss()).detach(), flat)


@pytest.mark.parametrize("signature", ["graded", "target", "relevant"])
@pytest.mark.parametrize("scorer", ["item", "list"])
def test_every_form_reaches_every_weight(signature, scorer):
    task = Ranking(made_up(), scorer=scorer)
    model = task.model()
    losses = {"graded": sodeep.SoftmaxLoss(), "target": torch.nn.MSELoss(), "relevant": sodeep.SmoothAPLoss()}
    task.forward(model, next(task.batches(0)))[signature](losses[signature]).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name


def test_a_scorer_of_lists_sees_its_group_alone_and_no_order():
    task = Ranking(made_up(), scorer="list")
    torch.manual_seed(0)
    model = task.model().eval()
    assert isinstance(model, ListScorer)
    ids = torch.tensor([0, 0, 0, 1, 1])
    x = torch.randn(5, 5)
    with torch.no_grad():
        scores = model(x, sodeep.Groups(ids))
        order = torch.tensor([3, 1, 0, 4, 2])
        torch.testing.assert_close(model(x[order], sodeep.Groups(ids[order])), scores[order])
        alone = model(x[3:], sodeep.Groups(ids[3:]))
        torch.testing.assert_close(alone, scores[3:])
        other = x.clone()
        other[0] += 1
        changed = (model(other, sodeep.Groups(ids)) - scores).abs().squeeze(-1) > 1e-6
    assert changed.tolist() == [True, True, True, False, False]


def test_logarithms_of_features():
    data = made_up()
    plain, log = Ranking(data), Ranking(data, transform="log1p")
    x = plain.features.numpy()
    np.testing.assert_allclose(log.features.numpy(), np.sign(x) * np.log1p(np.abs(x)), rtol=1e-6)
    assert log.data_name == "made up, log1p"


@pytest.mark.parametrize("loss", [loss for loss in default_losses(Ranking) if not loss_by_name(loss).method])
def test_default_losses_take_lists_of_unequal_length(loss, task):
    torch.manual_seed(0)
    model = task.model()
    apply = task.forward(model, next(task.batches(0)))
    for weight, signature, term in loss_by_name(loss).terms({}, "graded"):
        value = apply[signature](term)
        assert weight == 1.0
        assert value.isfinite()


# ---- evaluation ------------------------------------------------------------------------------------------------------


class Given(torch.nn.Module):
    """Scores that are given, looked up by the first feature."""

    def forward(self, features):
        return features[:, :1]


@pytest.mark.parametrize("rounded", [False, True])
def test_metrics_against_scikit_learn_and_scipy(rounded):
    data = made_up()
    if rounded:
        data.features[:, 0] = data.features[:, 0].round()  # ties
    task = Ranking(data)
    found = task.evaluate(Given(), "test", details=True)
    expected = {name: [] for name in task.metrics}
    for which in dict.fromkeys(data.group[task.index["test"]].tolist()):
        where = [i for i in task.index["test"].tolist() if data.group[i] == which]
        scores, grades = data.features[where, 0], data.relevance[where]
        if grades.max() > 0:
            for k in (10, 5, 1):
                expected[f"nDCG@{k}"].append(ndcg_score([2**grades - 1], [scores], k=k))
        if len(set(grades)) > 1:
            equal = len(set(scores)) == 1
            expected["Kendall"].append(0 if equal else kendalltau(scores, grades).statistic)
            expected["Spearman"].append(0 if equal else spearmanr(scores, grades).statistic)
    for name, values in expected.items():
        if name != "MRR":
            np.testing.assert_allclose(found.metrics[name], np.mean(values), rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(np.nanmean(found.details["ndcg"]), found.metrics["nDCG@10"], rtol=1e-6)
    assert found.details["items"].sum() == len(task.index["test"])
    for name, count in zip(found.details["group"], found.details["items"], strict=True):
        assert np.count_nonzero(data.group == int(name)) == count


def test_the_reciprocal_rank_of_the_first_relevant():
    group, relevance = np.repeat(np.arange(6), 3), np.tile([0.0, 2, 1], 6)
    features = np.tile([[3.0], [2.0], [1.0]], (6, 1))
    split = np.repeat(["train", "val", "test"], 6)
    task = Ranking(RankingData("six", features, relevance, group, split), batch_size=4)
    assert task.evaluate(Given(), "test").metrics["MRR"] == 0.5


def test_a_feature_that_is_constant_in_training_counts_nothing():
    group, split = np.repeat(np.arange(30), 4), np.repeat(["train", "val", "test"], 40)
    relevance = np.tile([0.0, 1, 2, 3], 30)
    features = np.stack([relevance, np.where(split == "train", 1.7e9, RNG(0).normal(size=120))], -1)
    task = Ranking(RankingData("thirty", features, relevance, group, split), batch_size=8)
    for model in (task.fit("ridge", penalty=0.1), task.fit("untrained")):
        scores = model.eval()(task.features)
        assert scores[split == "train"].abs().max() > 0.01
        torch.testing.assert_close(scores[split == "test"], scores[:40])
    assert task.evaluate(task.fit("ridge", penalty=0.1), "test").metrics["nDCG@10"] == 1


@pytest.mark.parametrize("scorer", ["item", "list"])
def test_groups_alone_in_their_chunk(scorer):
    group = np.array([0, 0, 1, 1, *([2] * 400), 3, 4, 4])
    split = np.where(group < 1, "train", np.where(group < 2, "val", "test"))
    relevance = (np.arange(len(group)) % 3).astype(float)
    task = Ranking(RankingData("a giant", relevance[:, None], relevance, group, split), scorer=scorer, batch_size=4)
    found = task.evaluate(task.model(), "test", details=True)
    assert found.details["items"].tolist() == [400, 1, 2]
    assert task.size_of("test") == 3


def test_equal_scores_have_no_correlation(task):
    class Equal(torch.nn.Module):
        def forward(self, features):
            return torch.zeros(len(features), 1)

    found = task.evaluate(Equal(), "test").metrics
    assert found["Spearman"] == found["Kendall"] == 0
    assert 0.3 < found["nDCG@10"] < 0.9


def test_undefined_groups_are_left_out():
    group, split = np.repeat(np.arange(9), 3), np.repeat(["train", "val", "test"], 9)
    relevance = np.tile([0.0, 1, 2], 9)
    relevance[18:21] = 0  # no relevant item: no nDCG, no correlation
    relevance[21:24] = 1  # equal grades: an nDCG of 1, no correlation
    task = Ranking(RankingData("nine", relevance[:, None] + 0.0, relevance, group, split), batch_size=4)
    found = task.evaluate(Given(), "test", details=True)
    assert found.metrics["nDCG@10"] == found.metrics["Spearman"] == 1
    np.testing.assert_array_equal(np.isnan(found.details["ndcg"]), [True, False, False])


# ---- data ------------------------------------------------------------------------------------------------------------


def test_a_split_without_differing_grades_is_refused():
    group, split = np.repeat(np.arange(6), 2), np.repeat(["train", "val", "test"], 4)
    relevance = np.array([0.0, 1] * 4 + [1, 1, 0, 0])
    with pytest.raises(ValueError, match=r"must have a group in 'test' whose items differ in relevance, got none\."):
        Ranking(RankingData("six", np.ones((12, 1)), relevance, group, split))


@pytest.mark.parametrize(("option", "value"), [("scorer", "set"), ("transform", "sqrt"), ("metric", "mAP")])
def test_an_unknown_option_names_the_choices(option, value):
    with pytest.raises(ValueError, match=rf"^`{option}` must be "):
        Ranking(made_up(), **{option: value})


def test_methods(task):
    assert set(Ranking.methods) == {"untrained", "ridge", "lightgbm"}
    ridge = task.fit("ridge", penalty=1.0)
    x = task.features[task.index["train"]].double()
    y = task.relevance[task.index["train"]].double()
    y = (y - y.mean()) / y.std()
    x = (x - x.mean(0)) / x.std(0, correction=0)
    weights = torch.linalg.solve(x.T @ x + torch.eye(5), x.T @ y)
    np.testing.assert_allclose(ridge.linear.weight.detach()[0], weights, rtol=1e-4, atol=1e-6)


# ---- in a comparison -------------------------------------------------------------------------------------------------


def test_another_metric_chooses_and_stands_first(tmp_path):
    options = ["--loss=mse", "--loss=softmax", "--seeds=2", "--trials=2", "--max-steps=4", "--jobs=1"]
    command = ["compare", "ranking", *options, "--metric", "Kendall", "--out", str(tmp_path)]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert len(re.findall(r"^(mse|softmax), seed [01]: Kendall -?0\.\d+ \(lr ", result.stdout, re.MULTILINE)) == 4
    assert re.search(r"^loss +Kendall ↑ .* Kendall - mse +ms/step$", result.stdout, re.MULTILINE)
    comparison = read_comparison(tmp_path)
    assert comparison.primary_metric == next(iter(comparison.summary.metrics)) == "Kendall"
    for loss in ("mse", "softmax"):
        tuned = [run for run in comparison.runs if (run.loss, run.seed, run.stage) == (loss, 0, "tuning")]
        (tested,) = (run for run in comparison.runs if (run.loss, run.seed, run.stage) == (loss, 0, "test"))
        assert tested.settings == max(tuned, key=lambda run: run.metrics["Kendall"]).settings
    assert " test groups)." in (tmp_path / "report.md").read_text()
    expected = "whose settings are chosen by Kendall, not whose settings are chosen by the first metric of the task."
    with pytest.raises(ValueError, match=expected):
        compare("ranking", ["mse"], out=tmp_path, seeds=2, search_seeds=1, metric="nDCG@10", max_steps=4)


def test_a_metric_that_validation_lacks_is_refused(tmp_path):
    message = r"^`metric` must be one that the validation split of synthetic shapes .* has, got 'i2t R@1 in folds'\.$"
    with pytest.raises(ValueError, match=message):
        compare("cross-modal", ["nt-xent"], out=tmp_path, metric="i2t R@1 in folds", fold_size=50)


# ---- LightGBM --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def boosted():
    pytest.importorskip("lightgbm")
    task = TASKS["ranking"].load(seed=0)
    return task, task.fit("lightgbm", learning_rate=0.1, num_leaves=15, min_data_in_leaf=20)


def test_lambda_mart_learns_and_is_the_same_again(boosted):
    task, model = boosted
    value = task.evaluate(model, "test").metrics["nDCG@10"]
    assert value > task.evaluate(task.fit("untrained"), "test").metrics["nDCG@10"] + 0.1
    again = task.fit("lightgbm", learning_rate=0.1, num_leaves=15, min_data_in_leaf=20)
    torch.testing.assert_close(again.trees, model.trees)


def test_lambda_mart_needs_whole_grades_and_short_groups(monkeypatch):
    task = Ranking(made_up())
    assert task.lacks("lightgbm") is None
    data = made_up()
    data.relevance[0] = 0.5
    assert "whole grades up to 30" in Ranking(data).lacks("lightgbm")
    data.relevance[0] = 31
    assert Ranking(data).lacks("lightgbm").endswith("others, up to 31")
    monkeypatch.setattr("sodeep.tasks.ranking._LONGEST", 6)
    assert Ranking(data).lacks("lightgbm") == "groups of at most 6 items, and made up has one of 8"


def test_lambda_mart_in_a_comparison(tmp_path):
    pytest.importorskip("lightgbm")
    runs = compare("ranking", ["mse", "peer:lightgbm"], out=tmp_path, seeds=1, trials=1, max_steps=2)
    assert [(run.loss, run.stage, run.status) for run in runs if run.stage == "test"] == [
        ("mse", "test", "ok"),
        ("peer:lightgbm", "test", "ok"),
    ]
    assert runs[-1].metrics["nDCG@10"] > 0.6
