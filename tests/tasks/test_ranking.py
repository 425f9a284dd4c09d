"""The ranking task: groups in splits, batches and metrics, against plain loops and scikit-learn."""

import re

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import ndcg_score

import sodeep
from sodeep.comparison import compare
from sodeep.comparison.losses_by_name import default_losses, loss_by_name
from sodeep.datasets.splits import SPLITS, split_of_groups, with_train_fraction
from sodeep.tasks import TASKS, Ranking, RankingData
from sodeep.tasks.encoders import ListNet

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
    found = split_of_groups(split, group, 0)
    np.testing.assert_array_equal(found == "test", split == "test")
    assert len(set(group[found == "val"])) == 2  # 15 % of 14
    np.testing.assert_array_equal(split_of_groups(found, group, 1), found)


def test_a_group_in_two_splits_is_refused():
    message = (
        "`group` must be in one split, got b in 'train' and 'test'. Give the groups of each split ids of their own."
    )
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        split_of_groups(np.array(["train", "train", "test"]), np.array(["a", "b", "b"]), 0)


def test_more_folds_than_groups_are_refused():
    with pytest.raises(ValueError, match=r"^`folds` must be at most the number of groups, 2, got 3\.$"):
        split_of_groups(None, np.array([1, 2]), 0, folds=3)


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
    assert isinstance(model, ListNet)
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


def test_the_reciprocal_rank_of_the_first_relevant():
    group, relevance = np.repeat(np.arange(6), 3), np.tile([0.0, 2, 1], 6)
    features = np.tile([[3.0], [2.0], [1.0]], (6, 1))
    split = np.repeat(["train", "val", "test"], 6)
    task = Ranking(RankingData("six", features, relevance, group, split), batch_size=4)
    assert task.evaluate(Given(), "test").metrics["MRR"] == 0.5


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


def test_lambda_mart_needs_whole_grades():
    task = Ranking(made_up())
    assert task.lacks("lightgbm") is None
    data = made_up()
    data.relevance[0] = 0.5
    assert "whole grades up to 30" in Ranking(data).lacks("lightgbm")
    data.relevance[0] = 31
    assert Ranking(data).lacks("lightgbm").endswith("others, up to 31")


def test_lambda_mart_in_a_comparison(tmp_path):
    pytest.importorskip("lightgbm")
    runs = compare("ranking", ["mse", "peer:lightgbm"], out=tmp_path, seeds=1, trials=1, max_steps=2)
    assert [(run.loss, run.stage, run.status) for run in runs if run.stage == "test"] == [
        ("mse", "test", "ok"),
        ("peer:lightgbm", "test", "ok"),
    ]
    assert runs[-1].metrics["nDCG@10"] > 0.6
