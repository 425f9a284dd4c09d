"""Exported programs give the ranks and the gradients of the sorter they were made from."""

import re

import pytest
import torch

import sodeep
from sodeep import build_sorter, export_sorter


@pytest.mark.parametrize(
    ("name", "seq_len", "n", "shape"),
    [("set", None, None, (5, 33)), ("set", None, 9, (2, 9)), ("mlp", 6, None, (4, 6)), ("gru", None, 5, (2, 5))],
)
def test_program_is_the_sorter(tmp_path, name, seq_len, n, shape):
    sorter = sodeep.build_sorter(name, seq_len).freeze()
    sodeep.export_sorter(tmp_path / "s.pt2", sorter, n)
    program = torch.export.load(tmp_path / "s.pt2").module()
    results = []
    for function in (sorter, program):
        scores = torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
        ranks = function(scores)
        ranks.square().sum().backward()
        results.append((ranks, scores.grad))
    torch.testing.assert_close(results[0], results[1])


def test_recurrent_sorter_needs_a_length(tmp_path):
    message = (
        "^`n` must be given for the gru sorter, whose loop over the list is unrolled, got None. "
        "Name the length of your lists.$"
    )
    with pytest.raises(ValueError, match=message):
        sodeep.export_sorter(tmp_path / "s.pt2", sodeep.build_sorter("gru"))
    with pytest.raises(ValueError, match=r"^`n` must be 6, the length this mlp sorter was built for, got 7.$"):
        sodeep.export_sorter(tmp_path / "s.pt2", sodeep.build_sorter("mlp", 6), 7)
    assert not list(tmp_path.iterdir())


def test_export_of_what_is_no_sorter(tmp_path):
    message = "`sorter` must be a sodeep Sorter, got function. Export the sorter itself, not a compiled or wrapped one."
    with pytest.raises(TypeError, match="^" + re.escape(message) + "$"):
        export_sorter(tmp_path / "f.pt2", sodeep.laplace_rank)
    with pytest.raises(ValueError, match=r"^`n` must be a whole number of at least 1, got 0\.$"):
        export_sorter(tmp_path / "f.pt2", build_sorter("set"), n=0)


@pytest.mark.skipif(
    torch.__version__.startswith("2.4."), reason="torch 2.4 cannot load its own program of a module within a module"
)
def test_a_sorter_in_training_is_exported_as_it_will_be_used(tmp_path):
    sorter = build_sorter("cnn", 40)
    sorter(torch.randn(8, 40, generator=torch.Generator().manual_seed(0)))  # moves its batch statistics
    export_sorter(tmp_path / "cnn.pt2", sorter)
    assert not sorter.frozen
    program = torch.export.load(tmp_path / "cnn.pt2").module()
    scores = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(program(scores), sorter.freeze()(scores))


def test_a_program_made_without_gradients_has_one(tmp_path):
    with torch.no_grad():
        export_sorter(tmp_path / "s.pt2", build_sorter("set"))
    program = torch.export.load(tmp_path / "s.pt2").module()
    scores = torch.randn(2, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    program(scores).square().sum().backward()
    assert scores.grad.abs().sum() > 0
