"""A user's encoder in a comparison: its images, memory, precision, optimiser groups and frozen backbone."""

import dataclasses
import multiprocessing
import pickle
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sodeep.comparison import compare
from sodeep.datasets.image_files import ImageFiles
from sodeep.datasets.types import CrossModalData, MultiLabelData, RetrievalData
from sodeep.losses import NTXentLoss
from sodeep.tasks import CrossModal, MultiLabel, Retrieval
from sodeep.tasks.encoders import FeatureNet, TextNet, encode, parameter_groups
from sodeep.tasks.own_encoder import OwnEncoder


def to_tensor(image):
    return torch.from_numpy(np.array(image.resize((8, 8)))).permute(2, 0, 1) / 255


def jittered(image):
    return to_tensor(image) + 0.1 * torch.randn(3, 8, 8)


class Net(nn.Module):
    """Two layers on images of 8 by 8."""

    transform = staticmethod(to_tensor)

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU())
        self.head = nn.Linear(16, 4)

    def forward(self, images):
        return self.head(self.backbone(images))


def jittering():
    net = Net()
    net.train_transform = jittered
    return net


def frozen():
    net = Net()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net.backbone[1].reset_parameters()
    net.backbone.requires_grad_(False)
    return net


def grouped():
    net = Net()
    net.parameter_groups = lambda lr: [
        {"params": net.head.parameters()},
        {"params": net.backbone.parameters(), "lr": lr / 10, "weight_decay": 0.0},
    ]
    return net


def on_features():
    return nn.Linear(6, 3)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of 12 classes with 6 noisy images of a colour each."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for split, classes in (("train", range(8)), ("test", range(8, 12))):
        for number in classes:
            (folder / split / f"c{number}").mkdir(parents=True)
            colour = rng.integers(60, 200, 3)
            for i in range(6):
                pixels = (colour + rng.normal(0, 30, (20, 24, 3))).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / f"c{number}" / f"{i}.png")
    return folder


def task(photos, encoder, **options):
    return Retrieval.load(photos, 0, encoder=encoder, batch_size=16, **options)


def test_images_are_read_from_their_files_through_the_transform(photos):
    loaded = task(photos, Net)
    assert isinstance(loaded.items, ImageFiles)
    assert loaded.data_name.endswith(f", {Net.__module__}:Net")
    index = loaded.index["test"]
    images = torch.stack([to_tensor(Image.open(loaded.items.images.sources[i]).convert("RGB")) for i in index])
    torch.testing.assert_close(torch.cat([*loaded.items.chunks([index])]), images, rtol=0, atol=0)
    model = loaded.model()
    torch.testing.assert_close(encode(model, loaded.items, index), model(images))
    assert encode(model, loaded.items, index[:9]).shape == (9, 4)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_whatever_reads_them(photos, workers):
    """Those of the samplers, each with draws of its own; the draws of the training itself are left alone."""
    loaded = task(photos, jittering, workers=workers)
    torch.manual_seed(5)
    seen = [(batch.tolist(), loaded.items.batch(batch)) for epoch in (0, 1) for batch in loaded.batches(epoch)]
    assert torch.initial_seed() == 5
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert [batch for batch, _ in seen] == [b.tolist() for epoch in (0, 1) for b in task(photos, Net).batches(epoch)]
    for batch, images in seen:
        plain = torch.cat([*loaded.items.chunks([torch.tensor(batch)])])
        noise = (images - plain).flatten(1)
        assert 0.08 < noise.std() < 0.12
        assert noise.unique(dim=0).shape[0] == len(batch)
    again = [loaded.items.batch(batch) for batch in task_batches(loaded)]
    torch.testing.assert_close(again, [images for _, images in seen], rtol=0, atol=0)
    if workers:
        alone = task(photos, jittering)
        here = [alone.items.batch(batch) for batch in task_batches(alone)]
        torch.testing.assert_close(here, again, rtol=0, atol=0)


def task_batches(loaded):
    return (batch for epoch in (0, 1) for batch in loaded.batches(epoch))


def test_chunks_have_the_gradient_of_the_batch():
    torch.manual_seed(0)
    net, x = Net().double(), torch.rand(7, 3, 8, 8, dtype=torch.float64)
    net.forward = lambda images: net.head(net.backbone(images)).float()
    gradients = []
    for chunk_size in (None, 3, 7, 100):
        net.zero_grad()
        NTXentLoss()(*scores_of(OwnEncoder(net, chunk_size)(x))).backward()
        gradients.append([p.grad.clone() for p in net.parameters()])
    for others in gradients[1:]:
        torch.testing.assert_close(others, gradients[0])


def scores_of(vectors):
    return vectors @ vectors.T, torch.arange(7).unsqueeze(1) % 3 == torch.arange(7) % 3


def test_chunks_keep_less(photos):
    """No more activations are kept for the gradient than those of the vectors."""

    def kept(chunk_size):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
            OwnEncoder(Net(), chunk_size)(torch.rand(16, 3, 8, 8))
        return sum(saved)

    assert kept(4) < kept(None)


def test_bfloat16_gives_float32_vectors_near_those(photos):
    torch.manual_seed(0)
    net, x = Net(), torch.rand(5, 3, 8, 8)
    low = OwnEncoder(net, precision="bfloat16")(x)
    assert low.dtype == torch.float32
    assert not torch.equal(low, net(x))
    torch.testing.assert_close(low, net(x), rtol=0.05, atol=0.02)


def test_groups_of_the_optimiser_are_the_users():
    groups = parameter_groups(OwnEncoder(grouped()), rate=0.01)
    assert [(g["lr"], g.get("weight_decay"), len(g["params"])) for g in groups] == [(0.01, None, 2), (0.001, 0.0, 2)]
    assert [g["lr"] for g in parameter_groups(OwnEncoder(Net()), rate=0.01)] == [0.01]
    wrong = Net()
    wrong.parameter_groups = lambda lr: wrong.parameters()
    with pytest.raises(TypeError, match=r"^`parameter_groups` of the encoder must return a list of dicts with"):
        parameter_groups(OwnEncoder(wrong), rate=0.01)


def test_a_frozen_backbone_is_computed_once(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("SODEEP_CACHE", str(tmp_path))
    loaded = task(photos, frozen)
    (file,) = tmp_path.iterdir()
    assert loaded.items.shape == (72, 16)
    images = next(task(photos, Net).items.chunks([torch.arange(72)]))
    torch.testing.assert_close(loaded.items, frozen().backbone(images))
    assert [name for name, _ in loaded.model().named_parameters()] == ["net.weight", "net.bias"]
    written = file.stat().st_mtime_ns
    task(photos, frozen)
    assert (file.stat().st_mtime_ns, len([*tmp_path.iterdir()])) == (written, 1)
    task(photos, frozen, precision="bfloat16")
    assert len([*tmp_path.iterdir()]) == 2


def test_an_encoder_of_features():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 6)
    data = RetrievalData("made up", rng.normal(size=(72, 6)), labels, np.where(labels < 8, "train", "test"))
    loaded = Retrieval(data, encoder=on_features, batch_size=16)
    assert loaded.evaluate(loaded.model(), "test").metrics["mAP"] > 0


# ---- captions and labels ---------------------------------------------------------------------------------------------


def letters(text):
    return torch.tensor([ord(letter) % 32 for letter in text[:12].ljust(12)])


class Letters(nn.Module):
    """A text by its letters."""

    transform = staticmethod(letters)

    def __init__(self, width=4):
        super().__init__()
        self.backbone = nn.EmbeddingBag(32, 8)
        self.head = nn.Linear(8, width)

    def forward(self, texts):
        return self.head(self.backbone(texts))


class WideLetters(Letters):
    def __init__(self):
        super().__init__(5)


class FrozenLetters(Letters):
    def __init__(self):
        super().__init__()
        nn.init.eye_(self.backbone.weight).requires_grad_(False)


COLOURS = ["red", "green", "blue", "white", "grey", "black"]


def captioned(n=60, **more):
    """Images of a colour each, with two captions."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 6, n)
    items = (rng.integers(0, 40, (n, 8, 8, 3)) + 30 * kinds[:, None, None, None]).astype(np.uint8)
    captions = [f"{word} {COLOURS[kind]} {i}" for i, kind in enumerate(kinds) for word in ("a", "so")]
    split = np.repeat(["train", "val", "test"], [n - 20, 10, 10])
    return CrossModalData("colours", items, captions, np.repeat(np.arange(n), 2), split, **more)


@pytest.mark.parametrize("count", [1, 2])
def test_images_of_captions_are_read_once_a_batch(count):
    loaded = CrossModal(captioned(), encoder=jittering, batch_size=16, captions_per_item=count)
    plain = CrossModal(captioned(), batch_size=16, captions_per_item=count)
    seen = []
    for batch, expected in zip(loaded.batches(0), plain.batches(0), strict=True):
        np.testing.assert_array_equal(batch, expected)
        images = loaded.items.batch(batch)
        assert images.shape == (16, 3, 8, 8)
        near = next(loaded.items.chunks([torch.from_numpy(np.unique(batch[:, 0]))]))
        torch.testing.assert_close(images[np.argsort(batch[::count, 0])], near, atol=0.6, rtol=0)
        value = loaded.forward(loaded.model(), batch)["relevant"](NTXentLoss())
        seen.append(value.item())
    assert len(seen) == 2
    assert np.isfinite(seen).all()


def test_the_small_encoder_gets_the_width_of_the_other_side():
    images, texts, both = (
        CrossModal(captioned(), batch_size=16, **given)
        for given in ({"encoder": Net}, {"text_encoder": Letters}, {"encoder": Net, "text_encoder": Letters})
    )
    assert isinstance(images.model().captions, TextNet)
    assert images.data_name == f"colours, {__name__}:Net"
    assert texts.data_name == f"colours, captions by {__name__}:Letters"
    torch.testing.assert_close(texts.captions[3], letters(texts.texts[3]))
    for loaded in (images, texts, both):
        towers = loaded.model()
        x = encode(towers.images, loaded.items, loaded.index["val"])
        assert x.shape == (10, 4)
        assert encode(towers.captions, loaded.captions, torch.arange(6)).shape == (6, 4)
        assert loaded.evaluate(towers, "test").metrics["R@1 mean"] >= 0
    towers = CrossModal(captioned(), encoder=grouped, text_encoder=Letters, batch_size=16).model()
    assert [(g["lr"], len(g["params"])) for g in parameter_groups(towers, 0.01)] == [(0.01, 2), (0.001, 2), (0.01, 3)]
    message = "`text_encoder` must give vectors as wide as those of `encoder`, got 5 and 4."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        CrossModal(captioned(), encoder=Net, text_encoder=WideLetters)


def test_a_frozen_backbone_of_texts(tmp_path, monkeypatch):
    monkeypatch.setenv("SODEEP_CACHE", str(tmp_path))
    loaded = CrossModal(captioned(), text_encoder=FrozenLetters, batch_size=16)
    assert loaded.captions.shape == (120, 8)
    assert len([*tmp_path.iterdir()]) == 1
    torch.testing.assert_close(
        loaded.captions[:2], FrozenLetters().backbone(torch.stack([*map(letters, loaded.texts[:2])]))
    )


def labelled(**of):
    labels = np.random.default_rng(1).random((60, 3)) < 0.4
    return MultiLabelData("labels", labels, ["a", "b", "c"], split=captioned().split, **of)


@pytest.mark.parametrize(
    ("data", "encoder"),
    [
        (labelled(items=captioned().items), jittering),
        (labelled(texts=captioned().captions[::2]), Letters),
        (labelled(features=np.random.default_rng(0).normal(size=(60, 6))), on_features),
    ],
    ids=["images", "texts", "features"],
)
def test_labels_of_images_texts_and_features(data, encoder):
    loaded = MultiLabel(data, encoder=encoder, chunk_size=5, batch_size=16)
    assert loaded.data_name == f"labels, {__name__}:{encoder.__name__} in chunks of 5"
    model = loaded.model()
    for batch in loaded.batches(0):
        value = loaded.forward(model, batch)["relevant"](lambda scores, relevant: scores.square().mean())
        value.backward()
    assert all(p.grad is not None for p in model.parameters())
    assert encode(model, loaded.inputs, loaded.index["val"]).shape == (10, 3)
    assert 0 < loaded.evaluate(model, "test").metrics["mAP"] <= 1
    assert (loaded.lacks("ridge") is None) == (encoder is on_features)
    assert sum(len(g["params"]) for g in parameter_groups(model, 0.1)) == len([*model.parameters()])


def test_what_has_no_texts_takes_no_transform_of_texts():
    data = dataclasses.replace(captioned(), captions=np.random.default_rng(0).normal(size=(120, 6)))
    message = f"`text_encoder` must not have a transform for data without texts, got {__name__}:Letters with one for"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        CrossModal(data, text_encoder=Letters)
    loaded = CrossModal(data, text_encoder=on_features, batch_size=16)
    assert isinstance(loaded.model().images, nn.Module)
    assert not isinstance(loaded.model().captions, FeatureNet)


def uneven(text):
    return letters(text)[: len(text)]


class Uneven(Letters):
    transform = staticmethod(uneven)


class NoTensor(Letters):
    transform = staticmethod(str.upper)


@pytest.mark.parametrize(
    ("error", "options", "message"),
    [
        (ValueError, {"text_encoder": Uneven}, "`transform` of the encoder must give all texts one shape, got ("),
        (TypeError, {"text_encoder": NoTensor}, "`transform` of the encoder must turn a text into a tensor, got 'A "),
        (ValueError, {"text_encoder": "nowhere"}, "`text_encoder` must be module:callable, got 'nowhere'."),
        (ValueError, {"text_encoder": Letters, "workers": 2}, "`encoder` must be given with `workers`, got None."),
        (ValueError, {"chunk_size": 2}, "`encoder` must be given with `chunk_size`, got None."),
    ],
)
def test_errors_of_texts(error, options, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        CrossModal(captioned(), **options)


def test_comparisons_with_it(tmp_path):
    """From Python; the options are those of the command."""
    given = {"seeds": 1, "trials": 1, "max_steps": 4, "validate_every": 2}
    path = tmp_path / "labels.npz"
    rng = np.random.default_rng(0)
    arrays = {f"{s}_{x}": rng.random((40, n)) for s in ("train", "test") for x, n in (("features", 6), ("labels", 3))}
    np.savez(path, **{name: x > 0.5 if "labels" in name else x for name, x in arrays.items()})
    runs = compare("multi-label", ["bce"], data=path, out=tmp_path / "a", encoder=on_features, chunk_size=7, **given)
    assert [(run.stage, run.status) for run in runs] == [("tuning", "ok"), ("test", "ok")]
    runs = compare("cross-modal", ["nt-xent"], out=tmp_path / "b", text_encoder=Letters, precision="bfloat16", **given)
    assert [(run.stage, run.status) for run in runs] == [("tuning", "ok"), ("test", "ok")]
    with pytest.raises(ValueError, match=r"^`text_encoder` must not be given for the retrieval task, which has no enc"):
        compare("retrieval", ["nt-xent"], out=tmp_path / "c", text_encoder=Letters, **given)


def test_a_comparison_with_it(photos, tmp_path, monkeypatch):
    """By name or as it is, one result; other code under its name is refused."""
    (tmp_path / "my_own_encoder.py").write_text(
        "import numpy as np, torch\n"
        "def transform(image):\n"
        "    return torch.from_numpy(np.array(image.resize((8, 8)))).permute(2, 0, 1) / 255\n"
        "def build():\n"
        "    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4))\n"
        "    net.transform = transform\n"
        "    return net\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = {"data": photos, "seeds": 1, "trials": 1, "max_steps": 6, "validate_every": 3, "batch_size": 16}
    by_name = compare("retrieval", ["nt-xent", "raw"], out="a", encoder="my_own_encoder:build", chunk_size=5, **given)
    assert [(run.loss, run.stage, run.status) for run in by_name] == [
        ("nt-xent", "tuning", "ok"),
        ("nt-xent", "test", "ok"),
        ("raw", "tuning", "ok"),
        ("raw", "test", "ok"),
    ]
    import my_own_encoder

    assert pickle.loads(pickle.dumps(my_own_encoder.build)) is my_own_encoder.build  # as other processes get it
    as_it_is = compare("retrieval", ["nt-xent"], out="b", encoder=my_own_encoder.build, chunk_size=5, **given)
    assert [run.metrics for run in as_it_is] == [run.metrics for run in by_name[:2]]
    source = tmp_path / "my_own_encoder.py"
    source.write_text(source.read_text() + "# changed\n")
    del sys.modules["my_own_encoder"]
    with pytest.raises(ValueError, match="holds runs of my_own_encoder:build with other code under that name"):
        compare("retrieval", ["nt-xent"], out="a", encoder="my_own_encoder:build", chunk_size=5, **given)


def no_module():
    return "net"


def no_vectors():
    net = nn.Conv2d(3, 4, 3)
    net.transform = to_tensor
    return net


def untrainable():
    return Net().requires_grad_(False)


def all_shapes():
    net = Net()
    net.transform = lambda image: torch.rand(3, 8, 8 + sum(image.getpixel((0, 0))) % 2)
    return net


def no_tensor():
    net = Net()
    net.transform = lambda image: image
    return net


@pytest.mark.parametrize(
    ("error", "options", "message"),
    [
        (ValueError, {"encoder": "nowhere"}, "`encoder` must be module:callable, got 'nowhere'."),
        (ValueError, {"encoder": "no_such_module_here:build"}, "`encoder` must name a module that is installed or in "),
        (
            ValueError,
            {"encoder": "math:nothing"},
            "`encoder` must name something in math, got math:nothing, not there.",
        ),
        (TypeError, {"encoder": 3}, "`encoder` must be module:callable, or a callable without arguments that returns"),
        (TypeError, {"encoder": Net()}, "`encoder` must be a callable that builds the module anew for each training"),
        (TypeError, {"encoder": no_module}, "`encoder` must return a torch.nn.Module, got 'net' from "),
        (
            ValueError,
            {"encoder": no_vectors},
            "`encoder` must turn inputs (2, 3, 8, 8) into vectors (2, d), got shape (2, 4, 6, 6) from ",
        ),
        (ValueError, {"encoder": untrainable}, "`encoder` must have weights to train, got "),
        (ValueError, {"encoder": all_shapes}, "`transform` of the encoder must give all images one shape, got (3, 8, "),
        (TypeError, {"encoder": no_tensor}, "`transform` of the encoder must turn a PIL.Image into a tensor, got "),
        (ValueError, {"encoder": Net, "precision": "float16"}, "`precision` must be one of float32, bfloat16"),
        (ValueError, {"encoder": Net, "chunk_size": 0}, "`chunk_size` must be a whole number of at least 1, got 0."),
        (ValueError, {"chunk_size": 5}, "`encoder` must be given with `chunk_size`, got None."),
        (ValueError, {"workers": 0}, "`encoder` must be given with `workers`, got None."),
        (
            ValueError,
            {"encoder": Net, "image_features": "efficientnet-lite0"},
            "`image_features` must not be given with an encoder of your own, got 'efficientnet-lite0'.",
        ),
    ],
)
def test_errors(photos, error, options, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        task(photos, **{"encoder": None, **options})


def test_a_transform_needs_images():
    labels = np.repeat(np.arange(12), 6)
    data = RetrievalData("numbers", np.ones((72, 6)), labels, np.where(labels < 8, "train", "test"))
    message = (
        f"`encoder` must not have a transform for data without images, got {Net.__module__}:Net with one for numbers."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Retrieval(data, encoder=Net)


def test_a_damaged_image_is_named(photos, tmp_path):
    copy = shutil.copytree(photos, tmp_path / "photos")
    loaded = task(copy, Net)
    (broken,) = [source for source in loaded.items.images.sources if str(source).endswith("test/c9/3.png")]
    broken.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"3\.png must be an image, got a file that Pillow cannot read"):
        loaded.evaluate(loaded.model(), "test")


def test_wide_images_are_refused(tmp_path):
    file = tmp_path / "x.png"
    Image.fromarray(np.full((4, 4), 60000, dtype=np.uint16)).save(file)
    with pytest.raises(ValueError, match=r"x\.png must have at most 8 bits a channel for an encoder with a transform"):
        next(ImageFiles([file], to_tensor).chunks([torch.tensor([0])]))


def test_images_of_an_array(photos):
    data = Retrieval.read(photos, 0)
    loaded = Retrieval(dataclasses.replace(data, files=None), encoder=Net, batch_size=16)
    expected = to_tensor(Image.fromarray(data.items[3]))
    torch.testing.assert_close(next(loaded.items.chunks([torch.tensor([3])]))[0], expected)


def test_processes_that_read_are_started_once_and_go_on_after_an_error(photos, tmp_path, monkeypatch):
    """An evaluation in the middle of an epoch has its own; what an image breaks is begun anew."""
    copy = shutil.copytree(photos, tmp_path / "photos")
    alone, loaded = task(copy, Net), task(copy, Net, workers=1)
    epochs = [[alone.items.batch(batch) for batch in alone.batches(epoch)] for epoch in (0, 1)]
    index = loaded.index["test"][:9]
    (expected,) = alone.items.chunks([index])
    for epoch in (0, 1):
        seen = []
        for batch in loaded.batches(epoch):
            seen.append(loaded.items.batch(batch))
            torch.testing.assert_close(next(loaded.items.chunks([index])), expected, rtol=0, atol=0)
        torch.testing.assert_close(seen, epochs[epoch], rtol=0, atol=0)
        next(loaded.batches(5))  # one that is left off
    assert len(multiprocessing.active_children()) >= 2
    file = next(file for file in map(str, loaded.items.images.sources) if file.endswith("test/c9/3.png"))
    content = Path(file).read_bytes()
    Path(file).write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"3\.png must be an image, got a file that Pillow cannot read"):
        list(loaded.items.chunks([loaded.index["test"]]))
    Path(file).write_bytes(content)
    assert len(next(loaded.items.chunks([loaded.index["test"]]))) == 24


def test_a_transform_that_no_other_process_can_have(photos):
    sources = task(photos, Net).items.images.sources
    workers = ImageFiles(sources, lambda image: to_tensor(image), workers=2)
    with pytest.raises(
        ValueError, match=r"^`workers` must be 0 for a transform that no other process can have, got 2 \("
    ):
        next(workers.chunks([torch.tensor([0])]))


def test_no_process_is_a_copy_of_this_one(photos):
    """Python 3.12 warns of fork where there are threads."""
    loader, _ = task(photos, Net, workers=1).items._new_loader()
    assert loader.multiprocessing_context.get_start_method() in ("forkserver", "spawn")
    assert loader.persistent_workers
