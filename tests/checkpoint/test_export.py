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


def unequal(shape, generator):
    """Scores, and a mask of which a row has every item, one some, one a single item and one none."""
    scores = 5 * torch.randn(shape, generator=generator)
    mask = torch.rand(shape, generator=generator) < 0.6
    mask[0], mask[2], mask[3] = True, False, False
    mask[2, shape[1] // 2] = True
    return scores.masked_fill(~mask, torch.nan), mask


@pytest.mark.parametrize(("n", "shapes"), [(None, [(5, 33), (4, 2)]), (9, [(6, 9)])])
def test_program_with_a_mask(tmp_path, n, shapes, generator):
    sorter = build_sorter("set", frequencies=[4], condition=4).freeze()
    export_sorter(tmp_path / "s.pt2", sorter, n, mask=True)
    program = torch.export.load(tmp_path / "s.pt2").module()
    for shape in shapes:
        scores, mask = unequal(shape, generator)
        results = []
        for function in (sorter, program):
            leaf = scores.clone().requires_grad_()
            ranks = function(leaf, mask)
            ranks.square().sum().backward()
            results.append((ranks, leaf.grad))
        torch.testing.assert_close(results[0], results[1])
        ranks, gradient = results[1]
        assert not ranks[~mask].any()
        assert not gradient[~mask].any()
        assert ranks[2].sum() == 1


class OddSorter(sodeep.sorters.Sorter):
    """A network of a user that reads masks."""

    name = "odd"
    reads_masks = True

    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor(-1.0))

    def network(self, x, where=None):
        return torch.sigmoid(self.gain * x)


@pytest.mark.skipif(torch.__version__.startswith("2.4."), reason="torch 2.4 cannot load it")
def test_every_network_that_reads_masks_can_have_one(tmp_path, generator):
    sorter = OddSorter().freeze()
    export_sorter(tmp_path / "s.pt2", sorter, mask=True)
    scores, mask = unequal((5, 8), generator)
    torch.testing.assert_close(torch.export.load(tmp_path / "s.pt2").module()(scores, mask), sorter(scores, mask))


@pytest.mark.parametrize("name", [name for name, kind in sodeep.SORTERS.items() if not kind.reads_masks])
@pytest.mark.parametrize("ending", ["pt2", "onnx"])
def test_a_mask_for_a_network_that_reads_none(tmp_path, name, ending):
    message = (
        f"`mask` must be False for the {name} sorter, whose network reads no masks, got True. Export one that does, "
        "such as 'set', or give the program lists of one length at a time."
    )
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        export_sorter(tmp_path / f"s.{ending}", build_sorter(name, 40), 40, mask=True)
    with pytest.raises(ValueError, match=r"^`mask` must be True or False, got 'yes'\.$"):
        export_sorter(tmp_path / f"s.{ending}", build_sorter("set"), mask="yes")
    assert not list(tmp_path.iterdir())


def test_programs_take_float32_alone(tmp_path, generator):
    """And half precision, cast to it, has the ranks of the sorter."""
    sorter = build_sorter("set", frequencies=[4], condition=4).freeze()
    export_sorter(tmp_path / "s.pt2", sorter)
    program = torch.export.load(tmp_path / "s.pt2").module()
    for dtype, tolerance in ((torch.float16, 1e-6), (torch.bfloat16, 1e-6), (torch.float64, 1e-5)):
        scores = torch.randn((3, 8), generator=generator).to(dtype)
        torch.testing.assert_close(program(scores.float()), sorter(scores).float(), rtol=tolerance, atol=tolerance)
        if torch.torch_version.TorchVersion(torch.__version__) >= "2.9":  # whose programs check it
            with pytest.raises(RuntimeError, match="dtype"):
                program(scores)


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
    message = (
        "`sorter` must be a sodeep Sorter, got function. Export the sorter itself, not its name (load_sorter gives it) "
        "nor a compiled or wrapped one."
    )
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


def onnx_runtime():
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    if torch.torch_version.TorchVersion(torch.__version__) < "2.9":
        pytest.skip("its exporter is not the one of today")
    return runtime


class Ranked(torch.nn.Module):
    """A model of a user: features (lists, n, 2) and a mask -> ranks."""

    def __init__(self, rank_fn):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
        self.rank_fn = rank_fn

    def forward(self, features, mask):
        return self.rank_fn(self.net(features).squeeze(-1), where=mask)


def features_and_mask(shape, generator):
    """An item is far from all others, and another list has no item."""
    features, mask = torch.randn((*shape, 2), generator=generator), torch.rand(shape, generator=generator) < 0.7
    features[0, 0], mask[0, 0], mask[1] = 1e4, True, False
    return features, mask


DIMS = ({0: torch.export.Dim("lists"), 1: torch.export.Dim("n", min=3)},) * 2


@pytest.mark.skipif(
    torch.__version__.startswith("2.4."), reason="torch 2.4 cannot load its own program of a module within a module"
)
@pytest.mark.parametrize("name", ["set", "laplace"])
def test_torch_exports_a_model_that_holds_a_rank_function(tmp_path, name, generator):
    rank_fn = build_sorter("set", frequencies=[4], condition=4).freeze() if name == "set" else sodeep.laplace_rank
    model = Ranked(rank_fn)
    program = torch.export.export(model, features_and_mask((3, 7), generator), dynamic_shapes=DIMS)
    torch.export.save(program, tmp_path / "m.pt2")
    program = torch.export.load(tmp_path / "m.pt2").module()
    features, mask = features_and_mask((4, 11), generator)
    torch.testing.assert_close(program(features, mask), model(features, mask))


@pytest.mark.filterwarnings("ignore")  # of torch's exporter
@pytest.mark.parametrize("name", ["set", "laplace", "sigmoid"])
def test_onnx_of_a_model_that_holds_a_rank_function(name, generator):
    """The running sums of `laplace_rank` are not those of onnxruntime, which lose what is far below the largest."""
    runtime = onnx_runtime()
    handcrafted = {"laplace": sodeep.laplace_rank, "sigmoid": sodeep.sigmoid_rank}
    model = Ranked(handcrafted.get(name) or build_sorter("set", frequencies=[4], condition=4).freeze()).eval()
    inputs = features_and_mask((3, 7), generator)
    file = torch.onnx.export(
        model, inputs, dynamo=True, dynamic_shapes=DIMS, input_names=["features", "mask"], verbose=False
    )
    session = runtime.InferenceSession(file.model_proto.SerializeToString())
    features, mask = features_and_mask((4, 11), generator)
    (ranks,) = session.run(None, {"features": features.numpy(), "mask": mask.numpy()})
    torch.testing.assert_close(torch.from_numpy(ranks), model(features, mask).detach(), rtol=1e-4, atol=1e-4)


def onnx_file(path, sorter, n=None, mask=False):
    """The ranks that an exported file gives, and its metadata."""
    runtime = onnx_runtime()
    export_sorter(path, sorter, n, mask=mask)
    session = runtime.InferenceSession(str(path))
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata.pop("sodeep.version") == sodeep.__version__

    def program(scores, mask=None):
        inputs = {"scores": scores.numpy()} if mask is None else {"scores": scores.numpy(), "mask": mask.numpy()}
        return torch.from_numpy(session.run(["ranks"], inputs)[0])

    return program, metadata


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


def test_onnx_with_a_mask(tmp_path, generator):
    """Of a sorter in float64, in which onnxruntime lacks some functions, the file computes in float32."""
    sorter = build_sorter("set", frequencies=[4], condition=4).double()
    program, metadata = onnx_file(tmp_path / "s.onnx", sorter, mask=True)
    assert metadata == {"sodeep.sorter": "set", "sodeep.length": "any"}

    def compare(scores, mask):
        ranks = program(scores, mask)
        torch.testing.assert_close(ranks, sorter(scores, mask).float(), rtol=1e-4, atol=1e-4)
        return ranks

    for shape in ((4, 2), (5, 33), (64, 8)):
        scores, mask = unequal(shape, generator)
        ranks = compare(scores, mask)
        assert not ranks[~mask].any()
        assert ranks[2].sum() == 1
        compare(scores.nan_to_num(0), torch.ones_like(mask))
        compare(scores, torch.zeros_like(mask))
    for inputs in ((scores.double(), mask), (scores.half(), mask), (scores, mask.float())):
        with pytest.raises(Exception, match="Unexpected input data type"):
            program(*inputs)


def test_onnx_of_one_length(tmp_path, generator):
    sorter = build_sorter("mlp", 6, hidden=8, normalize=False).double()
    sorter.trained = {"scores": [-1, 1]}
    program, metadata = onnx_file(tmp_path / "s.onnx", sorter)
    assert metadata == {"sodeep.sorter": "mlp", "sodeep.length": "6", "sodeep.scores": "-1 to 1"}
    for lists in (1, 7):
        scores = 2 * torch.rand((lists, 6), generator=generator) - 1
        torch.testing.assert_close(program(scores), sorter(scores).float(), rtol=1e-5, atol=1e-5)
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
