"""csv files as people have them."""

import re

import numpy as np
import pytest

from sodeep.datasets.tables import alike, column_names, read_csv


def file(tmp_path, content, name="my.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_stands_between_cells_is_seen(tmp_path, separator, start, end):
    lines = ['score, a,"b x"', "0.5,1,so", "", '0.25,2,"deep, or ; not"'.replace(", or", " or")]
    path = file(tmp_path, start + end.join(lines).replace(",", separator))
    found = read_csv(path)
    assert found.names == ["score", "a", "b x"]
    assert found.numbers("score") == [0.5, 0.25]
    assert found.texts("b x") == ["so", "deep or ; not"]
    assert found.places == [2, 4]
    assert found.separator == separator
    assert column_names(path) == (found.names, separator)


def test_a_line_that_names_the_separator(tmp_path):
    path = file(tmp_path, "sep=;\r\nscore;a,b\r\n1;2\r\n")
    assert (read_csv(path).names, read_csv(path).places) == (["score", "a,b"], [3])
    assert column_names(path) == (["score", "a,b"], ";")


def test_names_that_are_wanted_tell_the_separator(tmp_path):
    path = file(tmp_path, "score;size, weight, age\n1;2\n")
    assert read_csv(path, {"score"}).names == ["score", "size, weight, age"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,b\n1,2\n1,2,3\n", "got 3 in row 3. Put a cell in quotes that holds commas."),
        ("a;b\n\n1;2;\n", "got 3 in row 3. Put a cell in quotes that holds semicolons."),
        ("a,b\n1\n", "got 1 in row 2."),
    ],
)
def test_every_row_has_a_cell_for_each_column(tmp_path, content, expected):
    path = file(tmp_path, content)
    message = f"'{path}' must have a cell in each row for each of its 2 columns, {expected}"
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        read_csv(path)


@pytest.mark.parametrize(
    ("cell", "hint"),
    [("0,7", " A decimal comma? Write a point: 0.7."), ("1,234,567", ""), ("many", ""), ("", ""), ("inf", "")],
)
def test_cells_that_are_no_numbers(tmp_path, cell, hint):
    path = file(tmp_path, f"a;b\n1;2\n\n{cell};3\n")
    message = f"`path` must have a number in every cell, got {cell!r} for a in row 4 of '{path}'.{hint}"
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        read_csv(path).numbers("a")


def test_a_hundred_thousand_columns(tmp_path):
    names = [f"c{i}" for i in range(100_000)]
    path = file(tmp_path, "\n".join(",".join(row) for row in (names, ["1"] * len(names), ["2"] * len(names))))
    found = read_csv(path)  # seconds where every name is looked up among all
    total = np.sum([found.numbers(name) for name in found.names], axis=0)
    np.testing.assert_array_equal(total, [100_000, 200_000])
    assert found.description == "the columns c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 and 99988 more"


@pytest.mark.parametrize(
    ("name", "found"), [("Score", "Score"), ("SCORE", "SCORE"), ("scores", "scores"), ("rating", None)]
)
def test_names_that_are_alike(name, found):
    assert alike("score", ["a", name, "text"]) == found
    assert alike("score", []) is None
