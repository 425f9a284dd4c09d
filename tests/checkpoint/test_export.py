"""Exported programs give the ranks and the gradients of the sorter they were made from."""

import re

import pytest
import torch

import sodeep
from sodeep import build_sorter, export_sorter
from sodeep._core.extras import MissingPackageError


@pytest.mark.parametrize(
    ("name", "seq_len", "n", "shape"),
    [("set", None, None, (5, 33)), ("set", None, 9, (2, 9)), ("mlp", 6, None, (4, 6)), ("gru", None, 5, (2, 5))],
)
def test_program_is_the_sorter(tmp_path, name, seq_len, n, shape):
    sorter = sodeep.build_sorter(name, seq_len).freeze()
    with torch.set_grad_enabled(name != "set" or n is None):  # a program made without gradients has them all the same
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


def onnx_file(path, sorter, n=None):
    """The ranks that an exported file gives, and its metadata."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    if torch.torch_version.TorchVersion(torch.__version__) < "2.9":
        pytest.skip("its exporter is not the one of today")
    export_sorter(path, sorter, n)
    session = runtime.InferenceSession(str(path))
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata.pop("sodeep.version") == sodeep.__version__
    return lambda scores: torch.from_numpy(session.run(["ranks"], {"scores": scores.numpy()})[0]), metadata


def test_onnx_of_any_length(tmp_path, generator):
    sorter = build_sorter("set", frequencies=[4], condition=4)
    sorter.trained = {"lengths": [2, 50], "known_lengths": [2, 70]}
    program, metadata = onnx_file(tmp_path / "s.onnx", sorter)
    assert metadata == {"sodeep.sorter": "set", "sodeep.length": "any", "sodeep.lengths": "2 to 70"}
    for shape in ((1, 2), (5, 33), (2, 70), (64, 8), (1, 70)):
        scores = 10 * torch.randn(shape, generator=generator)
        torch.testing.assert_close(program(scores), sorter(scores), rtol=1e-4, atol=1e-4)
    equal = torch.full((2, 3), 0.25)
    torch.testing.assert_close(program(equal), torch.full((2, 3), 2.0))


def test_onnx_of_one_length(tmp_path, generator):
    sorter = build_sorter("mlp", 6, hidden=8, normalize=False).double()
    sorter.trained = {"scores": [-1, 1]}
    program, metadata = onnx_file(tmp_path / "s.onnx", sorter)
    assert metadata == {"sodeep.sorter": "mlp", "sodeep.length": "6", "sodeep.scores": "-1 to 1"}
    for lists in (1, 7):
        scores = 2 * torch.rand((lists, 6), generator=generator) - 1
        torch.testing.assert_close(program(scores), sorter(scores).float())
    with pytest.raises(Exception, match="Got invalid dimensions for input: scores"):
        program(torch.randn(2, 7))


def test_onnx_of_a_recurrent_sorter_at_the_length_given(tmp_path, generator):
    sorter = build_sorter("gru-sum", hidden=1, normalize=False)
    program, metadata = onnx_file(tmp_path / "s.onnx", sorter, n=3)
    assert metadata == {"sodeep.sorter": "gru-sum", "sodeep.length": "3"}
    scores = torch.randn((4, 3), generator=generator)
    torch.testing.assert_close(program(scores), sorter(scores))


def test_what_is_no_onnx_file(tmp_path, uninstall, monkeypatch):
    message = (
        "`path` must end in .pt2, a torch.export program, or .onnx, got s.tflite. For another format write one of "
        "them, and convert it."
    )
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        export_sorter("s.tflite", build_sorter("set"))
    with pytest.raises(ValueError, match=r"^`n` must be given for the gru sorter, whose loop"):
        export_sorter(tmp_path / "s.onnx", build_sorter("gru"))
    monkeypatch.setattr("sodeep.checkpoint.export.check_installed", lambda package, what: None)
    monkeypatch.setattr(torch, "__version__", "2.8.1")
    message = "An .onnx file needs torch 2.9 or newer, got 2.8.1. Update torch, or write a .pt2 file."
    with pytest.raises(MissingPackageError, match="^" + re.escape(message) + "$"):
        export_sorter(tmp_path / "s.onnx", build_sorter("set"))
    monkeypatch.undo()
    uninstall("onnxscript")
    uninstall("onnx")
    message = (
        "An .onnx file needs onnx, which is not installed. Install it: pip install onnx, or in a clone of sodeep: pip "
        'install ".[onnx]"'
    )
    with pytest.raises(MissingPackageError, match="^" + re.escape(message) + "$"):
        export_sorter(tmp_path / "s.onnx", build_sorter("set"))
    assert not list(tmp_path.iterdir())
