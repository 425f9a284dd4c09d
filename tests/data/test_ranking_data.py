"""Readers of items in groups: tables, svmlight files with query ids, LightGBM's with group sizes, npz."""

import re

import numpy as np
import pytest

from sodeep.datasets.ranking import RANKING, read_group_table
from sodeep.tasks import TASKS, read_data


def read(path):
    return read_data(path, RANKING, "ranking")


# ---- tables ----------------------------------------------------------------------------------------------------------

TABLE = "group,relevance,a,b,split\nq1,2,0.5,1,train\nq2,0,0.1,2,test\nq1,0,0.2,3,train\n"


def test_a_table(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text(TABLE.replace("q2", " q2 "))
    data = read(path)
    np.testing.assert_array_equal(data.group, ["q1", "q2", "q1"])
    np.testing.assert_array_equal(data.relevance, [2, 0, 0])
    np.testing.assert_allclose(data.features, [[0.5, 1], [0.1, 2], [0.2, 3]], rtol=1e-6)
    np.testing.assert_array_equal(data.split, ["train", "test", "train"])


def test_columns_by_name(tmp_path):
    path = tmp_path / "my.tsv"
    path.write_text("query\tclicks\ta\tb\n1\t2\t0.5\t1\n")
    data = read_group_table(path, target="clicks", group="query", predictors=["b"])
    assert (data.group.tolist(), data.relevance.tolist(), data.features.tolist()) == (["1"], [2.0], [[1.0]])
    assert data.split is None


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("query,relevance,a\n1,2,3\n", {}, "`group` must be a column of '{}', got 'group' for the columns query, "),
        ("group,Relevance,a\n1,2,3\n", {}, "got 'relevance' for the columns group, Relevance, a. Is it 'Relevance'?"),
        ("group,relevance,a\n", {}, "`path` must be a csv table with rows, got none in '{}'."),
        ("group,relevance\n1,2\n", {}, "`path` must have columns of numbers to predict from, got the columns group, "),
        ("group,relevance,a\n1,-1,3\n", {}, "`data` must have a relevance of 0 or more for each item, got -1 in '{}'."),
        ("group,relevance,a\n1,x,3\n", {}, "`path` must have a number in every cell, got 'x' for relevance in row 2 "),
        (
            "group,relevance,a\n1,1e39,3\n",
            {},
            "`data` must have finite numbers up to 1e+18, got others as relevance in ",
        ),
        (
            "group,relevance,a\n1,2,1e39\n",
            {},
            "`data` must have finite numbers up to 1e+18, got others as features in ",
        ),
        ("group,relevance,a\n ,2,3\n", {}, "`data` must have the group of each item, got '' for group in row 2 of "),
        (
            "group,relevance,a\nNaN,2,3\n",
            {},
            "`data` must have the group of each item, got 'NaN' for group in row 2 of ",
        ),
        ("group,relevance,a\n1,2,red\n", {}, "got 'red' for a in row 2 of '{}'. Name the columns of numbers: "),
        ("group,relevance,a\n1,2,3\n", {"predictors": ["group"]}, "`predictors` must be other columns of '{}' than "),
        (
            "group,relevance,a\n1,2,3\n",
            {"target": "group"},
            "`group` must be another column than `target`, got 'group' ",
        ),
        (
            "group,relevance,a,split\n1,2,3,train\n1,2,3,rest\n",
            {},
            "in each row of split, got 'rest' in row 3 of '{}'.",
        ),
    ],
)
def test_what_a_table_lacks(tmp_path, text, options, message):
    path = tmp_path / "my.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message.format(path))):
        read_group_table(path, **options)


# ---- svmlight --------------------------------------------------------------------------------------------------------

LETOR = "# a comment\n2 qid:7 1:0.5 3:1.5 # doc\n0 qid:7 2:1\n1 qid:9 1:2\n0 qid:9 1:1\n"


def test_a_file_with_query_ids(tmp_path):
    (tmp_path / "all.txt").write_text(LETOR)
    data = read(tmp_path / "all.txt")
    np.testing.assert_array_equal(data.group, [7, 7, 9, 9])
    np.testing.assert_array_equal(data.relevance, [2, 0, 1, 0])
    np.testing.assert_array_equal(data.features, [[0.5, 0, 1.5], [0, 1, 0], [2, 0, 0], [1, 0, 0]])
    assert data.split is None


def test_a_folder_of_letor(tmp_path):
    (tmp_path / "train.txt").write_text(LETOR)
    (tmp_path / "vali.txt").write_text("1 qid:11 5:1\n0 qid:11 1:1\n")
    (tmp_path / "test.txt").write_text("1 qid:12 1:1\n0 qid:12 1:1\n")
    (tmp_path / "README.md").write_text("1 qid:1 1:1\n")
    data = read(tmp_path)
    assert data.split.tolist() == ["train"] * 4 + ["val"] * 2 + ["test"] * 2
    assert data.features.shape == (8, 5)


def test_lightgbm_with_group_sizes(tmp_path):
    (tmp_path / "rank.train").write_text("1 1:1\n0 2:1\n2 1:3\n")
    (tmp_path / "rank.train.query").write_text("2\n1\n")
    (tmp_path / "rank.test").write_text("1 1:1\n0 2:1\n")
    (tmp_path / "rank.test.query").write_text("2\n")
    data = read(tmp_path)
    assert data.group.tolist() == [0, 0, 1, 2, 2]
    assert data.split.tolist() == ["train"] * 3 + ["test"] * 2
    alone = read(tmp_path / "rank.train")
    assert (alone.group.tolist(), alone.split) == ([0, 0, 1], None)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("2\n2\n", "rank.train.query' must count the 3 items of rank.train, got 4 in all groups."),
        ("2\n99999999999999999999\n", "must hold a whole number in each line, the items of a group."),
        ("2\nx\n", "rank.train.query' must hold a whole number in each line, the items of a group."),
    ],
)
def test_group_sizes_that_do_not_fit(tmp_path, sizes, message):
    (tmp_path / "rank.train").write_text("1 1:1\n0 2:1\n2 1:3\n")
    (tmp_path / "rank.train.query").write_text(sizes)
    with pytest.raises(ValueError, match=re.escape(message)):
        read(tmp_path / "rank.train")


def test_a_line_without_a_query(tmp_path):
    (tmp_path / "all.txt").write_text("1 qid:1 1:2\n0 1:3\n1 qid:2 1:1\n")
    with pytest.raises(
        ValueError, match=r"all.txt' must have a query id \(qid:\) in each line, got 2 of them in 3 lines\.$"
    ):
        read(tmp_path / "all.txt")


def test_a_first_line_without_features(tmp_path):
    (tmp_path / "all.txt").write_text("1 qid:1\n0 qid:1 1:3\n")
    np.testing.assert_array_equal(read(tmp_path / "all.txt").features, [[0], [3]])


@pytest.mark.parametrize("line", ["1 qid:1 x:2", "1 qid:1 1:x", "1 qid:1 1:nan", "1 qid:1 2:1 1:1", "x qid:1 1:1"])
def test_a_damaged_line(tmp_path, line):
    (tmp_path / "all.txt").write_text(f"1 qid:1 1:2\n{line}\n")
    with pytest.raises(ValueError, match=r"must h(old|ave) .*all.txt"):
        read(tmp_path / "all.txt")


def test_a_negative_grade(tmp_path):
    (tmp_path / "all.txt").write_text("1 qid:1 1:2\n-1 qid:1 1:2\n")
    with pytest.raises(ValueError, match="must have a relevance of 0 or more for each item, got -1 in "):
        read(tmp_path / "all.txt")


def test_a_query_in_two_files(tmp_path):
    (tmp_path / "train.txt").write_text(LETOR)
    (tmp_path / "test.txt").write_text(LETOR)
    with pytest.raises(ValueError, match=r"^`group` must be in one split, got 7 in 'train' and 'test'\."):
        TASKS["ranking"].load(tmp_path)


def test_svmlight_without_groups_is_of_no_layout(tmp_path):
    (tmp_path / "all.txt").write_text("1 1:2\n0 1:3\n")
    with pytest.raises(ValueError, match="must be in a layout that the ranking task reads, got a file of 12 bytes"):
        read(tmp_path / "all.txt")


# ---- npz -------------------------------------------------------------------------------------------------------------


def test_an_npz(tmp_path):
    part = {"features": np.eye(4), "relevance": np.array([0, 1, 2, 0]), "group": np.array([1, 1, 2, 2])}
    other = {**part, "group": np.array([3, 3, 4, 4])}
    arrays = {
        f"{split}_{name}": value
        for split, values in (("train", part), ("test", other))
        for name, value in values.items()
    }
    np.savez(tmp_path / "my.npz", **arrays)
    data = read(tmp_path / "my.npz")
    assert data.group.tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert data.relevance.tolist() == [0, 1, 2, 0] * 2
    arrays["test_group"] = np.ones((4, 2))
    np.savez(tmp_path / "my.npz", **arrays)
    with pytest.raises(
        ValueError, match=r"test_group of shape \(4, 2\) and type float64, not numbers or strings \(n,\)"
    ):
        read(tmp_path / "my.npz")
