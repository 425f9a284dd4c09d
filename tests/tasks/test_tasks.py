"""The tasks: data of every layout, the same for every loss, exact evaluation; losses by name."""

import csv
import io
import math
import re
import shutil
import sys
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from PIL import Image
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import sodeep
from sodeep._core.extras import remedy
from sodeep._core.search import trial_settings
from sodeep.comparison.losses_by_name import (
    LOSSES,
    PEERS,
    RANK_LOSSES,
    PaddedRank,
    default_losses,
    loss_by_name,
    rank_function,
)
from sodeep.datasets.splits import SPLITS
from sodeep.datasets.texts import tf_idf, wordllama_vectors
from sodeep.datasets.types import checksum
from sodeep.tasks import TASKS, CrossModalData, MemorabilityData, MultiLabelData, RetrievalData, encoders
from sodeep.tasks.cross_modal import CrossModal
from sodeep.tasks.memorability import Memorability
from sodeep.tasks.multi_label import MultiLabel
from sodeep.tasks.retrieval import Retrieval
from sodeep.tasks.semantics import SemanticScores

RNG = np.random.default_rng


def images(n, size=8, channels=()):
    return RNG(0).integers(0, 256, (n, size, size, *channels), dtype=np.uint8)


@pytest.fixture(scope="module", params=list(TASKS))
def task(request):
    return TASKS[request.param].load(seed=0)


# ---- what holds for every task ---------------------------------------------------------------------------------------


def test_splits_are_apart_and_made_by_the_seed(task):
    parts = [set(task.index[split].tolist()) for split in SPLITS]
    assert all(len(part) >= 100 for part in parts)
    assert not parts[0] & parts[1]
    assert not parts[2] & (parts[0] | parts[1])
    again, other = (TASKS[task.name].load(seed=seed) for seed in (0, 1))
    for split in SPLITS:
        torch.testing.assert_close(again.index[split], task.index[split], rtol=0, atol=0)
    batches = [[batch.tolist() for batch in one.batches(0)] for one in (task, again, other)]
    assert batches[0] == batches[1] != batches[2]
    assert batches[0] != [batch.tolist() for batch in task.batches(1)]


def test_a_share_of_the_training_split(task):
    half, most = (TASKS[task.name].load(seed=0, train_fraction=fraction) for fraction in (0.5, 0.8))

    def size(of):  # in groups, where there are some
        train = of.index["train"].numpy()
        return len(np.unique(of.group[train])) if task.name == "ranking" else len(train)

    for less, fraction in ((half, 0.5), (most, 0.8)):
        assert size(less) == round(fraction * size(task))
        assert less.data_name.startswith(task.data_name.split(",")[0])
        assert f", {fraction} of the training split" in less.data_name
        for split in ("val", "test"):
            torch.testing.assert_close(less.index[split], task.index[split], rtol=0, atol=0)
    kept = [set(which.index["train"].tolist()) for which in (half, most, task)]
    assert kept[0] < kept[1] < kept[2]
    other = TASKS[task.name].load(seed=1, train_fraction=0.5)
    assert set(other.index["train"].tolist()) != kept[0]
    assert {i for batch in half.batches(0) for i in np.atleast_2d(batch.T)[0].tolist()} <= kept[0]


@pytest.mark.parametrize("fraction", [0, -0.1, 1.5, math.nan, "half"])
def test_a_fraction_is_above_0_and_up_to_1(fraction):
    expected = f"`train_fraction` must be a number above 0, up to 1, got {fraction!r}."
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        TASKS["toy"].load(train_fraction=fraction)


def test_batches_are_of_the_training_split(task):
    train = set(task.index["train"].tolist())
    for batch in task.batches(3):
        items = batch if batch.ndim == 1 else batch[:, 0]
        assert set(items.tolist()) <= train
        assert len(items) == task.batch_size or (task.name == "ranking" and len(items) < task.batch_size)


def test_defaults_fit_the_task(task):
    assert task.baseline in task.losses
    assert task.primary_metric == next(iter(task.metrics))
    assert task.metrics[task.primary_metric]
    for loss in default_losses(type(task)):
        assert loss_by_name(loss).signatures <= set(task.accepts)


def test_every_form_reaches_every_weight_of_the_encoder(task):
    torch.manual_seed(0)
    model = task.model()
    batch = next(iter(task.batches(0)))
    losses = {
        **dict.fromkeys(("target", "ranks", "normal-scores"), torch.nn.MSELoss()),
        "relevant": sodeep.MAPLoss(sodeep.laplace_rank),
        "semantic": sodeep.ASPLoss(),
        "graded": sodeep.SoftmaxLoss(),
        "embeddings": sodeep.EmbeddingLoss(sodeep.SmoothAPLoss()),
    }
    apply = task.forward(model, batch)
    assert set(apply) == set(task.accepts)
    for form in task.accepts:
        model.zero_grad()
        task.forward(model, batch)[form](losses[form]).backward()
        for name, weight in model.named_parameters():
            assert weight.grad is not None, name
            assert weight.grad.isfinite().all(), name


def test_evaluation_is_repeatable_and_leaves_the_model_as_it_was(task):
    torch.manual_seed(0)
    model = task.model().train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    first, second = (task.evaluate(model, "test", details=details) for details in (False, True))
    assert first.metrics == second.metrics
    assert set(first.metrics) <= set(task.metrics)
    assert first.details == {}
    assert second.details
    assert all(np.isfinite(value) for value in first.metrics.values())
    assert model.training
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)


def test_losses_on_a_sorter_that_is_not_shipped_are_left_out(task, monkeypatch):
    monkeypatch.setattr("sodeep.comparison.losses_by_name.list_sorters", list)
    assert default_losses(type(task)) == [loss for loss in task.losses if not loss.endswith(":set")]


def test_a_model_is_made_by_the_seed_of_torch(task):
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(torch.cat([p.detach().flatten() for p in task.model().parameters()]))
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    assert not torch.equal(states[0], states[2])


@pytest.mark.parametrize(
    ("name", "content", "held"),
    [
        ("my.csv", "a;b\n1;2\n", "a file with the columns a, b (apart by semicolons)"),
        ("my.npz", {"x": np.eye(2), "y": np.eye(2)}, "a file with the arrays x, y"),
        ("my.txt", "nothing", "a file of 7 bytes"),
        ("my/a/b.txt", "", "a folder with a/"),
    ],
)
def test_data_of_no_layout_are_named(tmp_path, name, content, held):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **content) if isinstance(content, dict) else path.write_text(content)
    path = tmp_path / name.partition("/")[0]
    expected = f"`data` {path} must be in a layout that the multi-label task reads, got {held}. It reads:\n"
    with pytest.raises(ValueError, match="^" + re.escape(expected)):
        MultiLabel.load(path)


@pytest.mark.parametrize("name", [name for name in TASKS if name != "toy"])
def test_data_that_are_not_there_or_of_no_layout(name, tmp_path):
    help_has_it = "What it may be: sodeep compare --help."
    missing = f"`data` {tmp_path / 'gone'} does not exist. {help_has_it}"
    with pytest.raises(FileNotFoundError, match="^" + re.escape(missing) + "$"):
        TASKS[name].load(tmp_path / "gone")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / ".DS_Store").write_text("left behind")
    for what, path in (("file", tmp_path / "empty.csv"), ("folder", tmp_path / "folder")):
        with pytest.raises(ValueError, match="^" + re.escape(f"`data` {path} is an empty {what}. {help_has_it}") + "$"):
            TASKS[name].load(path)
    (tmp_path / "empty.csv").unlink()
    shutil.rmtree(tmp_path / "folder")
    (tmp_path / "readme.txt").write_text("nothing")
    expected = (
        f"`data` {tmp_path} must be in a layout that the {name} task reads, got a folder with readme.txt. It reads:\n"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        TASKS[name].load(tmp_path)


def test_the_toy_task_takes_no_data(tmp_path):
    expected = f"`data` must not be given for the toy task, which draws its own, got '{tmp_path}'."
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        TASKS["toy"].load(tmp_path)


# ---- retrieval -------------------------------------------------------------------------------------------------------


class Given(torch.nn.Module):
    """An encoder that gives back what it is given."""

    def forward(self, x):
        return x.float()


def retrieval_data(query=None):
    rng = RNG(0)
    labels = np.repeat(np.arange(10), 10)
    items = (np.eye(10)[labels] + rng.normal(0, 0.7, (100, 10))).astype(np.float32)
    split = np.repeat(["train", "val", "test"], [40, 20, 40])
    return RetrievalData("made up", items, labels, split, query)


def naive_ap(scores, relevant):
    order = np.argsort(-scores)
    hits = relevant[order]
    return (np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean()


def test_retrieval_metrics_against_loops():
    data = retrieval_data()
    task = Retrieval(data)
    found = task.evaluate(Given(), "test", details=True)
    x = data.items[60:] / np.linalg.norm(data.items[60:], axis=1, keepdims=True)
    labels = data.labels[60:]
    ap, first = [], []
    for i in range(40):
        others = np.arange(40) != i
        scores, relevant = (x @ x[i])[others], (labels == labels[i])[others]
        ap.append(naive_ap(scores, relevant))
        first.append(relevant[scores.argmax()])
    np.testing.assert_allclose(found.metrics["mAP"], np.mean(ap), rtol=1e-5)
    np.testing.assert_allclose(found.metrics["R@1"], np.mean(first), rtol=1e-5)
    np.testing.assert_allclose(np.sort(found.details["ap"]), np.sort(ap), rtol=1e-5)
    assert np.corrcoef(found.details["ap"], found.details["ap_quantized"])[0, 1] > 0.8


def test_items_that_do_not_ask_are_the_gallery():
    query = np.ones(100, dtype=bool)
    query[60:] = np.arange(40) % 2 == 0
    data = retrieval_data(query)
    found = Retrieval(data).evaluate(Given(), "test").metrics
    x = data.items[60:] / np.linalg.norm(data.items[60:], axis=1, keepdims=True)
    labels = data.labels[60:]
    ap = [naive_ap(x[1::2] @ x[i], labels[1::2] == labels[i]) for i in range(0, 40, 2)]
    np.testing.assert_allclose(found["mAP"], np.mean(ap), rtol=1e-5)


def test_strips_show_what_is_found_first():
    rng = RNG(1)
    labels = np.repeat(np.arange(6), 10)
    images = rng.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    data = RetrievalData("made up", images, labels, np.repeat(["train", "val", "test"], 20))
    task = Retrieval(data)
    torch.manual_seed(0)
    model = task.model()
    details = task.evaluate(model, "test", details=True).details
    assert details["strip_images"].shape == (16, 10, 8, 8, 3)
    assert list(details["strip_kind"]) == ["random"] * 8 + ["worst"] * 8
    test = images[40:]
    vectors = torch.nn.functional.normalize(encoders.encode(model, task.items, task.index["test"]))
    scores = (vectors @ vectors.T).fill_diagonal_(-2)
    for query, found, right in zip(
        details["strip_queries"], details["strip_images"], details["strip_right"], strict=True
    ):
        i = int(np.flatnonzero((test == query).all((1, 2, 3)))[0])
        best = scores[i].topk(10).indices.numpy()
        np.testing.assert_array_equal(found, test[best])
        np.testing.assert_array_equal(right, labels[40:][best] == labels[40 + i])
    assert (np.diff(details["strip_ap"][8:]) >= 0).all()


def test_strips_show_the_gallery_alone():
    labels = np.tile(np.arange(4), 10)
    images = RNG(1).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    query = np.repeat([True, False], [34, 6])  # the last six of the test split are the gallery
    data = RetrievalData("made up", images, labels, np.repeat(["train", "val", "test"], [12, 8, 20]), query)
    task = Retrieval(data)
    torch.manual_seed(0)
    details = task.evaluate(task.model(), "test", details=True).details
    assert details["strip_images"].shape == (16, 6, 8, 8)  # there are no ten
    for query, found, right in zip(
        details["strip_queries"], details["strip_images"], details["strip_right"], strict=True
    ):
        i = int(np.flatnonzero((images == query).all((1, 2)))[0])
        places = [int(np.flatnonzero((images == image).all((1, 2)))[0]) for image in found]
        assert 20 <= i < 34
        assert sorted(places) == list(range(34, 40))
        np.testing.assert_array_equal(right, labels[places] == labels[i])


@pytest.mark.parametrize("gallery", [False, True])
def test_a_split_in_which_nobody_has_anything_to_find(gallery):
    data = retrieval_data(np.repeat([True, False], [80, 20]) if gallery else None)
    labels = np.array(data.labels)
    labels[60:] = [*range(10, 30), *(range(30, 50) if gallery else range(50, 70))]
    labels[60:80] = 10 if gallery else labels[60:80]  # the queries' own class is not in the gallery
    expected = (
        "`data` made up must have a query in 'test' with another item of its class to find, got none. "
        "Have two items or more of a class there."
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        Retrieval(RetrievalData(data.name, data.items, labels, data.split, data.query))


def test_without_a_validation_split_whole_classes_are_taken_for_it():
    data = retrieval_data()
    split = np.where(data.split == "test", "test", "train")
    task = Retrieval(RetrievalData("made up", data.items, data.labels, split), seed=3)
    classes = [set(data.labels[task.index[part]].tolist()) for part in SPLITS]
    assert not classes[0] & classes[1]
    assert len(classes[1]) == 2
    assert classes[0] | classes[1] == set(range(6))


def test_a_split_with_other_names():
    expected = "`split` must hold train, val and test only, got 'dev'."
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        Memorability(MemorabilityData("x", np.arange(4.0), features=np.eye(4), split=np.array(["train", "dev"] * 2)))


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize("zipped", [True, False])
def test_omniglot(zipped, tmp_path):
    alphabets = {"small1": ["Greek", "Latin"], "small2": ["Greek", "Futurama"]}
    for part, names in alphabets.items():
        folder = f"images_background_{part}"
        files = {
            f"{folder}/{alphabet}/character0{c}/000{c}_0{i}.png": png(images(1, 21)[0])
            for alphabet in names
            for c in (1, 2, 3)
            for i in range(6)
        }
        files[f"{folder}/{names[0]}/character01/._0001_00.png"] = b"left by a system"
        files[f"__MACOSX/{folder}/{names[0]}/character01/._0001_00.png"] = b"likewise"
        if zipped:
            with zipfile.ZipFile(tmp_path / f"{folder}.zip", "w") as archive:
                for name, content in files.items():
                    archive.writestr(name, content)
        else:
            for name, content in files.items():
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_bytes(content)
    task = Retrieval.load(tmp_path, batch_size=12)
    assert tuple(task.items.shape) == (54, 1, 28, 28)
    assert set(task.class_names[task.index["test"]]) == {f"Futurama/character0{c}" for c in (1, 2, 3)}
    assert len(task.index["val"]) == 12  # two classes
    assert len(next(iter(task.batches(0)))) == 12


def test_jpegs_in_an_npz(tmp_path):
    parts = []
    for image in images(60, 16, (3,)):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "jpeg")
        parts.append(file.getvalue())
    np.savez(
        tmp_path / "clothes.npz",
        jpeg=np.frombuffer(b"".join(parts), dtype=np.uint8),
        offset=np.cumsum([0, *map(len, parts)]),
        label=np.repeat(["dress", "hat", "shirt", "shoes", "skirt", "tie"], 10),
    )
    for path in (tmp_path, tmp_path / "clothes.npz"):
        task = Retrieval.load(path, batch_size=12)
        assert task.data_name == "clothes, 2 of 6 classes unseen"
        assert tuple(task.items.shape) == (60, 3, 32, 32)
        assert len(task.index["test"]) == 20


# ---- cross-modal -----------------------------------------------------------------------------------------------------


def cross_modal_data(codes=True):
    rng = RNG(0)
    split = np.repeat(["train", "val", "test"], [30, 15, 15])
    items = rng.normal(size=(60, 6)).astype(np.float32)
    owner = np.repeat(np.arange(60), 2)
    captions = (items[owner] + rng.normal(0, 0.6, (120, 6))).astype(np.float32)
    return CrossModalData("made up", items, captions, owner, split, rng.random((60, 5)) < 0.4 if codes else None)


class GivenTowers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.images = self.captions = Given()


def test_cross_modal_metrics_against_loops():
    data = cross_modal_data()
    found = CrossModal(data).evaluate(GivenTowers(), "test").metrics
    x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (data.items[45:], data.captions[90:]))
    scores, owner = x @ y.T, np.repeat(np.arange(15), 2)
    first = [(owner[np.argsort(-scores[i])] == i).argmax() + 1 for i in range(15)]
    back = [(np.argsort(-scores[:, j]) == owner[j]).argmax() + 1 for j in range(30)]
    np.testing.assert_allclose(found["i2t R@1"], np.mean(np.array(first) <= 1), rtol=1e-6)
    np.testing.assert_allclose(found["i2t median rank"], np.median(first))
    np.testing.assert_allclose(found["t2i R@5"], np.mean(np.array(back) <= 5), rtol=1e-6)
    np.testing.assert_allclose(found["R@1 mean"], (found["i2t R@1"] + found["t2i R@1"]) / 2)
    codes = data.codes[45:]
    ratio = []
    for i in range(15):
        overlap = [
            1.0 if owner[j] == i else (codes[i] & codes[owner[j]]).sum() / max(1, (codes[i] | codes[owner[j]]).sum())
            for j in range(30)
        ]
        s = sodeep.exact_rank(torch.from_numpy(scores[i].copy()))
        m = sodeep.exact_rank(torch.tensor(overlap))
        ratio.append((torch.minimum(s, m) / torch.maximum(s, m)).mean().item())
    np.testing.assert_allclose(found["i2t ASP"], np.mean(ratio), rtol=1e-5)


def captioned(codes=True):
    """Images with captions in words: two in the first language, one in the second."""
    rng = RNG(0)
    captions = [
        " ".join(rng.choice(["red", "cat", "face", "big", "heart", "hat"], rng.integers(1, 5))) for _ in range(180)
    ]
    split = np.repeat(["train", "val", "test"], [30, 15, 15])
    return CrossModalData(
        "made up",
        rng.normal(size=(60, 6)).astype(np.float32),
        captions,
        np.repeat(np.arange(60), 3),
        split,
        rng.random((60, 5)) < 0.4 if codes else None,
        languages=["en", "en", "de"] * 60,
    )


def test_asp_by_captions_against_loops():
    data = captioned()
    task = CrossModal(data)
    model = task.model()
    found = task.evaluate(model, "test").metrics
    x = torch.nn.functional.normalize(encoders.encode(model.images, task.items, torch.arange(45, len(task.items))))
    y = torch.nn.functional.normalize(
        encoders.encode(model.captions, task.captions, torch.arange(135, len(task.captions)))
    )
    scores, owner = x @ y.T, np.repeat(np.arange(15), 3)
    alike = SemanticScores(data.captions, data.owner, data.languages)
    for name in ("cider", "bleu", "rouge-l"):
        table = alike(name, np.arange(45, 60), np.arange(45, 60))
        graded = torch.tensor([[1.0 if owner[j] == i else table[i, owner[j]] for j in range(45)] for i in range(15)])
        for way, s, m in (("i2t", scores, graded), ("t2i", scores.T, graded.T)):
            a, b = sodeep.exact_rank(s), sodeep.exact_rank(m)
            expected = (torch.minimum(a, b) / torch.maximum(a, b)).mean()
            np.testing.assert_allclose(found[f"{way} ASP {name}"], expected, rtol=1e-5)
    assert not [metric for metric in task.evaluate(model, "val").metrics if "ASP" in metric]
    assert "i2t ASP cider" in CrossModal(data, metric="t2i ASP").evaluate(model, "val").metrics


def test_equal_captions_tie():
    class Row(torch.nn.Module):
        def forward(self, x):
            return torch.randn(300, generator=torch.Generator().manual_seed(0)).expand(len(x), -1)

    class Rows(torch.nn.Module):
        def forward(self, x):
            return torch.randn(len(x), 300, generator=torch.Generator().manual_seed(1))

    task = CrossModal(replace(captioned(), split=np.repeat(["train", "val", "test"], [30, 27, 3])))
    found = task.evaluate(torch.nn.ModuleDict({"images": Rows(), "captions": Row()}), "test").metrics
    assert found["i2t median rank"] == 2.5  # of the first of 3 relevant among 9 equal ones
    np.testing.assert_allclose(found["i2t R@1"], 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("semantic", ["overlap", "cider", "bleu", "rouge-l", "mean"])
def test_semantic_scores_that_losses_are_trained_on(semantic):
    data = captioned()
    task = CrossModal(data, semantic=semantic)
    seen = []
    batch = next(task.batches(0))
    task.forward(task.model(), batch)["semantic"](lambda scores, graded: seen.append(graded) or scores.sum())
    if semantic == "overlap":
        codes = data.codes[batch[:, 0]].astype(float)
        both = codes @ codes.T
        expected = both / np.maximum(codes.sum(1)[:, None] + codes.sum(1) - both, 1)
    else:
        expected = SemanticScores(data.captions, data.owner, data.languages)(semantic, batch[:, 0], batch[:, 0])
    np.fill_diagonal(expected, 1)
    torch.testing.assert_close(seen[0], torch.from_numpy(expected).float())
    torch.testing.assert_close(seen[1], seen[0].T)
    other = "" if semantic == "overlap" else f", semantic scores by {semantic}"
    assert task.data_name == f"made up{other}"


def test_the_first_semantic_score_that_the_data_have_is_the_default():
    assert CrossModal(captioned()).semantic == "overlap"
    assert CrossModal(captioned(codes=False)).semantic == "cider"
    assert CrossModal(cross_modal_data(codes=False)).semantic is None
    needs = "overlap needs codes, class classes or codes; cider, bleu, rouge-l, mean need captions as texts."
    for data, semantic, has in (
        (captioned(codes=False), "overlap", "cider, bleu, rouge-l, mean"),
        (cross_modal_data(), "bleu", "overlap, class"),
        (cross_modal_data(codes=False), "meteor", "none"),
    ):
        expected = f"`semantic` must be a score that the data have ({has}), got '{semantic}'. {needs}"
        with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
            CrossModal(data, semantic=semantic)


def test_without_codes_there_is_no_semantic_metric():
    found = CrossModal(cross_modal_data(codes=False)).evaluate(GivenTowers(), "test").metrics
    assert not [name for name in found if "ASP" in name or "PMRP" in name]


def test_emoji(tmp_path):
    n = 30
    np.savez(tmp_path / "emoji.npz", google=images(n, 8, (3,)), twitter=images(n, 8, (3,)))
    columns = ["code", "category", "subcategory", "split", "en", "de", "fr", "es", "it", "tags_en"]
    with (tmp_path / "emoji.tsv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        rows.writerow(columns)
        for i in range(n):
            names = [f"{language} name {i}" for language in ("en", "de", "fr", "es", "it")]
            rows.writerow([f"1F{i}", "c", "s", "test" if i % 3 == 0 else "train", *names, f"face;{i % 4};own{i}"])
    task = CrossModal.load(tmp_path)
    assert len(task.captions) == 5 * n
    alike = task.text_scores("bleu", range(n), range(n))  # the names of a language have two words of three in common
    np.testing.assert_allclose(alike[0, 1:], alike[0, 1])
    assert 0 < alike[0, 1] < alike[0, 0] == 1
    assert tuple(task.codes.shape) == (n, 5)  # "face" and four numbers; a keyword of one emoji alone tells nothing
    assert len(task.index["test"]) == 10
    for batch in task.batches(0):
        np.testing.assert_array_equal(task.owner.numpy()[batch[:, 1]], batch[:, 0])
    with (tmp_path / "emoji.tsv").open("a", encoding="utf-8") as file:
        file.write("\t".join(["1F"] * 10) + "\n")
    expected = f"`data` {tmp_path} must have a row of emoji.tsv for each image (30), got 31."
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        CrossModal.load(tmp_path)


# ---- memorability ----------------------------------------------------------------------------------------------------


def test_the_checksum_is_of_everything_but_the_name():
    data = MemorabilityData("a", np.arange(4.0), ["p", "q", "r", "s"], np.eye(4), np.array(["train", "test"] * 2))
    mark = checksum(data)
    assert checksum(replace(data, name="b")) == mark
    others = (
        {"target": np.arange(4.0)[::-1]},
        {"target": np.arange(4.0).reshape(2, 2)},
        {"texts": ["p", "q", "r", "t"]},
        {"features": None},
        {"split": None},
        {"split": data.split[::-1]},
    )
    assert len({mark, *(checksum(replace(data, **other)) for other in others)}) == 7


class FirstColumn(torch.nn.Module):
    def forward(self, x):
        return x[:, :1]


def test_targets_are_standardised_for_the_losses_only():
    target = 5 + 2 * RNG(0).normal(size=100)
    task = Memorability(MemorabilityData("made up", target, features=np.eye(100)))
    train = task.index["train"].numpy()
    seen = task.forward(FirstColumn(), train)["target"](lambda scores, target: target)
    np.testing.assert_allclose(seen, (target[train] - target[train].mean()) / target[train].std(ddof=1), atol=1e-5)


def test_equal_predictions_are_fitted_by_the_mean():
    target = RNG(0).normal(size=100)
    task = Memorability(MemorabilityData("made up", target, features=np.ones((100, 1))))
    with pytest.warns(sodeep.metrics.UndefinedMetricWarning, match=r"^spearman_corr is NaN for 1 of 1 lists"):
        found = task.evaluate(FirstColumn(), "test").metrics
    val, test = (task.index[split].numpy() for split in ("val", "test"))
    assert found["Spearman"] == 0
    np.testing.assert_allclose(found["MAE fitted"], abs(target[test] - target[val].mean()).mean(), rtol=1e-5)


def test_memorability_metrics_against_scipy():
    rng = RNG(0)
    features = rng.normal(size=(100, 2)).astype(np.float32)
    target = 3 * features[:, 0] + 1 + rng.normal(0, 1, 100)
    task = Memorability(MemorabilityData("made up", target, features=features))
    found = task.evaluate(FirstColumn(), "test", details=True)
    train, val, test = (task.index[split].numpy() for split in SPLITS)
    predicted = features[:, 0] * target[train].std(ddof=1) + target[train].mean()
    np.testing.assert_allclose(
        found.metrics["Spearman"], spearmanr(features[test, 0], target[test]).statistic, rtol=1e-5
    )
    np.testing.assert_allclose(found.metrics["MAE"], abs(predicted[test] - target[test]).mean(), rtol=1e-5)
    line = np.polyfit(features[val, 0], target[val], 1)
    np.testing.assert_allclose(
        found.metrics["MAE fitted"], abs(np.polyval(line, features[test, 0]) - target[test]).mean(), rtol=1e-5
    )
    np.testing.assert_allclose(found.details["true"], target[test], rtol=1e-6)


def test_sentences(tmp_path):
    rng = RNG(0)
    words = ["red", "green", "blue", "small", "large", "dog", "cat", "runs", "sleeps", "sings"]
    with (tmp_path / "sentence_memorability_data.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["", "sentence", "target_hr", "fpr", "dprime", "acc", "mean_mem", "avg_log_freq", "condition"])
        for i in range(60):
            text = " ".join(rng.choice(words, 5)) + ', "he said".'
            rows.writerow([i, text, 0.5, 0.1, 0.4, i / 60, rng.normal(), rng.normal(), "high"])
    for path in (tmp_path, tmp_path / "sentence_memorability_data.csv"):
        task = Memorability.load(path)
        torch.testing.assert_close(task.target, torch.arange(60) / 60)
        assert task.features.shape[1] > 2
        assert task.data_name.startswith("sentence memorability, ")


def test_text_features_are_fitted_on_the_training_texts_alone():
    words = ["red", "green", "blue", "small", "large", "dog", "cat", "runs", "sleeps", "sings"]
    texts = [" ".join(RNG(i).choice(words, 4)) for i in range(40)]
    other = texts[:30] + ["entirely other words"] * 10
    first, second = (tf_idf(given, np.arange(30), width=8) for given in (texts, other))
    np.testing.assert_allclose(first[:30], second[:30], atol=1e-6)


def said(n=40):
    return MemorabilityData(
        "said",
        np.arange(n) / n,
        texts=[" ".join(RNG(i).choice(["the", "word", "red", "dog", "runs"], 4)) for i in range(n)],
    )


@pytest.fixture
def word_vectors(tmp_path, monkeypatch):
    """A small package wordllama: its two files, and a module that cannot be imported without a network."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path / "packages/wordllama"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise OSError('Failed to download')\n")
    words = {"[UNK]": 0, "the": 1, "word": 2, "a": 3}
    pieces = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    pieces.save(str(folder / "l2_supercat_tokenizer_config.json"))
    vectors = RNG(0).normal(size=(4, 6)).astype(np.float16)
    safetensors.numpy.save_file({"embedding.weight": vectors}, folder / "l2_supercat_256.safetensors")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.delitem(sys.modules, "wordllama", raising=False)
    return vectors.astype(np.float32)


def test_word_vectors_are_read_from_the_package_itself(word_vectors):
    found = wordllama_vectors(["the word", "", "a other"])
    expected = np.stack([word_vectors[[1, 2]].mean(0), np.zeros(6), word_vectors[[3, 0]].mean(0)])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    task = Memorability(said(), text_features="wordllama")
    assert (task.data_name, task.features.shape) == ("said, wordllama vectors", (40, 6))


def test_word_vectors_in_other_tasks(word_vectors):
    labels = RNG(0).random((60, 3)) < 0.5
    task = MultiLabel(MultiLabelData("said", labels, list("abc"), texts=["the word"] * 60), text_features="wordllama")
    assert (task.data_name, task.inputs.shape) == ("said, wordllama vectors", (60, 6))
    task.evaluate(task.model(), "test")
    crossed = CrossModal(captioned(), text_features="wordllama")
    assert (crossed.data_name, crossed.captions.shape) == ("made up, wordllama vectors", (180, 6))
    assert np.isfinite(crossed.evaluate(crossed.model(), "test").metrics["i2t ASP bleu"])


def test_the_vectors_are_those_of_wordllama():
    inference = pytest.importorskip("wordllama.inference")
    texts = ["So deep a network.", "Ranks, nothing but ranks", "été 7"]
    folder = Path(inference.__file__).parent
    weights = safetensors.numpy.load_file(folder / "weights/l2_supercat_256.safetensors")["embedding.weight"]
    pieces = pytest.importorskip("tokenizers").Tokenizer.from_file(
        str(folder / "tokenizers/l2_supercat_tokenizer_config.json")
    )
    theirs = inference.WordLlamaInference(weights, pieces).embed(texts)
    np.testing.assert_allclose(wordllama_vectors(texts), theirs, rtol=1e-4, atol=1e-5)


def test_text_features_need_no_network_unless_asked_for(uninstall, word_vectors):
    assert Memorability(said()).data_name == "said, tf-idf of n-grams"
    assert Memorability(said(), text_features="tf-idf").data_name == "said, tf-idf of n-grams"
    uninstall("wordllama")
    expected = "`text_features` wordllama needs wordllama, which is not installed. Install it: pip install wordllama"
    with pytest.raises(ModuleNotFoundError, match="^" + re.escape(expected) + "$"):
        Memorability(said(), text_features="wordllama")


def test_text_features_that_cannot_be():
    expected = "`text_features` must be one of tf-idf, wordllama, got 'bert'."
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        Memorability(said(), text_features="bert")
    expected = "`text_features` must not be given for data without texts, got 'tf-idf' for x."
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        Memorability(MemorabilityData("x", np.arange(20.0), features=np.eye(20)), text_features="tf-idf")


@pytest.mark.parametrize(("column", "argument"), [("target", "rt"), ("text", "said"), ("predictors", ["age"])])
def test_columns_are_those_of_a_table(tmp_path, column, argument):
    for data, shown in ((None, "no data"), (tmp_path, str(tmp_path))):
        expected = f"`{column}` must be given with a csv table, got {argument!r} for {shown}."
        with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
            Memorability.load(data, **{column: argument})


# ---- multi-label -----------------------------------------------------------------------------------------------------


def test_multi_label_metrics_against_scikit_learn():
    rng = RNG(0)
    features = rng.normal(size=(100, 4)).astype(np.float32)
    labels = features + rng.normal(size=(100, 4)) > 0.5
    labels[:, 3] = False  # a label without an example is left out
    known = rng.random((100, 4)) < 0.9
    task = MultiLabel(MultiLabelData("made up", labels, list("abcd"), features=features, known=known))
    found = task.evaluate(Given(), "test", details=True)
    test = task.index["test"].numpy()
    ap = []
    for c in range(3):
        rows = test[known[test, c]]
        ap.append(average_precision_score(labels[rows, c], features[rows, c]))
    np.testing.assert_allclose(found.metrics["mAP"], np.mean(ap), rtol=1e-5)
    np.testing.assert_allclose(found.details["ap"][:3], ap, rtol=1e-5)
    flat = known[test]
    micro = average_precision_score(labels[test][flat], features[test][flat])
    np.testing.assert_allclose(found.metrics["AP micro"], micro, rtol=1e-5)


def test_unknown_labels_do_not_move_the_loss():
    features = RNG(0).normal(size=(60, 3)).astype(np.float32)
    known = np.ones((60, 3), dtype=bool)
    known[:, 1] = False
    losses = []
    for flipped in (False, True):
        labels = features > 0
        labels[:, 1] ^= flipped
        task = MultiLabel(MultiLabelData("made up", labels, list("abc"), features=features, known=known), batch_size=20)
        apply = task.forward(Given(), np.arange(20))["relevant"]
        losses.append([apply(made(loss)) for loss in ("bce", "hinge", "map:laplace", "smooth-ap")])
    torch.testing.assert_close(*losses)


def test_goemotions(tmp_path):
    (tmp_path / "labels.txt").write_text("joy\nanger\nneutral\n")
    for name, n in (("train.tsv", 30), ("dev.tsv", 10), ("test.tsv", 10)):
        lines = [f"He said \"it's {i}\t{i % 3}{',0' if i % 3 == 1 else ''}\tid{i}" for i in range(n)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    task = MultiLabel.load(tmp_path)
    assert task.label_names == ["joy", "anger", "neutral"]
    assert [len(task.index[split]) for split in SPLITS] == [30, 10, 10]
    assert task.labels[:3].int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    (tmp_path / "dev.tsv").write_text("no tabs here\n")
    expected = (
        f"`data` {tmp_path / 'dev.tsv'} must hold a text, label numbers and an id in each line, "
        "got 'no tabs here' in line 1."
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        MultiLabel.load(tmp_path)
    (tmp_path / "dev.tsv").write_text("text\t7\tid\n")
    expected = (
        f"`data` {tmp_path / 'dev.tsv'} must hold label numbers below 3, the lines of labels.txt, got 7 in line 1."
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        MultiLabel.load(tmp_path)


def test_the_svm_of_the_toy_task_is_a_good_one():
    task = TASKS["toy"].load(seed=0)
    found = task.evaluate(task.fit("svm", C=0.01), "test").metrics["mAP"]
    assert found > 2 * task.labels.float().mean().item()
    points = StandardScaler().fit(task.inputs[task.index["train"]].numpy())
    train, test = (points.transform(task.inputs[task.index[split]].numpy()) for split in ("train", "test"))
    svm = LinearSVC(C=0.01, dual=False).fit(train, task.labels[task.index["train"], 0].numpy())
    expected = average_precision_score(task.labels[task.index["test"], 0].numpy(), svm.decision_function(test))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


# ---- encoders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 4, 5, 8, 9, 10])
def test_no_chunk_of_an_encoder_is_one_row(count):
    sizes = []

    class Counted(torch.nn.Module):
        chunk = 4

        def forward(self, x):
            sizes.append(len(x))
            return x + 1

    inputs = torch.arange(float(count))[:, None]
    net = Counted()
    torch.testing.assert_close(encoders.encode(net, inputs, torch.arange(count)), inputs + 1)
    assert net.training
    assert 1 not in sizes or count == 1
    assert max(sizes) <= 5


def test_images_are_jittered_in_training_only():
    torch.manual_seed(0)
    net = encoders.item_net(encoders.as_input(images(5)), torch.arange(5), width=3)
    x = encoders.as_input(images(5))
    torch.testing.assert_close(net.eval()(x), net(x))
    assert not torch.equal(net.train()(x), net(x))


@pytest.mark.parametrize("dtype", [np.uint16, np.float32, bool])
def test_images_given_as_arrays_are_of_bytes(dtype):
    expected = (
        "Images must be uint8 (N, H, W) or (N, H, W, 3), and features (N, d), got an array of shape (60, 8, 8) and "
        f"type {np.dtype(dtype)}. Scale images to 0 for black, 255 for white."
    )
    data = RetrievalData("x", images(60).astype(dtype), np.arange(60) // 10, np.repeat(["train", "val", "test"], 20))
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        Retrieval(data)


def test_jitter_leaves_still_images_alone():
    x = torch.rand(3, 1, 9, 9)
    torch.testing.assert_close(encoders.jitter(x, turn=0.0, shift=0.0), x)


def test_ngrams_are_those_of_the_training_texts():
    texts = ["So deep", "so deep so", "so what", "", "deep unseen"]
    table = encoders.ngram_table(texts, np.arange(3), "word", least=2)
    so, deep, pair = table[0].tolist()[:3]
    assert {so, deep, pair} == {1, 2, 3}
    assert table[1].tolist() == [so, deep, so, pair]  # "deep so" occurs once
    assert table[2].tolist() == [so, 0, 0, 0]
    assert table[3].tolist() == [0, 0, 0, 0]
    assert table[4].tolist() == [deep, 0, 0, 0]
    assert encoders.ngram_table(["a b c d e f"] * 3, np.arange(3), "word", longest=4).shape == (3, 4)
    assert encoders.ngram_table(["nothing"], np.arange(0), "char").tolist() == [[0]]


def test_the_text_net_is_linear_in_tf_idf():
    table = torch.tensor([[1, 2, 2], [1, 0, 0], [3, 1, 0], [0, 0, 0]], dtype=torch.int32)
    net = encoders.TextNet(table, width=5)
    idf = torch.tensor([0, np.log(5 / 4), np.log(5 / 2), np.log(5 / 2)], dtype=torch.float32)
    torch.testing.assert_close(net.weight, idf)
    out = net(table)
    torch.testing.assert_close(out[3], net.bias)
    weight = idf[[1, 2, 2]] / idf[[1, 2, 2]].norm() * 3**0.5
    expected = weight @ net.vectors.weight[[1, 2, 2]] + net.bias
    torch.testing.assert_close(out[0], expected)


def made(name):
    """A loss with its default settings."""
    ((_, _, loss),) = loss_by_name(name).terms({}, "relevant")
    return loss


# ---- losses by name --------------------------------------------------------------------------------------------------


def names():
    yield from LOSSES
    yield from (f"{loss}:{rank}" for loss in RANK_LOSSES for rank in ("laplace", "sigmoid", "blackbox"))
    yield from ("bce+map:laplace", "triplet-hard+asp", "mse+spearman:laplace")


@pytest.mark.parametrize("name", list(names()))
def test_every_loss_works_with_each_of_its_settings(name):
    loss = loss_by_name(name)
    tried = trial_settings(loss.all_ranges(TASKS["retrieval"]), trials=6)
    assert len(tried) == 6
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(6, 12, generator=generator)
    relevant = torch.rand(6, 12, generator=generator) < 0.4
    for settings in tried:
        total = 0
        x = scores.clone().requires_grad_()
        for weight, form, term in loss.terms(settings, "relevant"):
            targets = {"relevant": relevant, "semantic": relevant.float()}
            target = targets.get(form, x.detach().flip(-1))
            total = total + weight * term(x, target).mean()
        total.backward()
        assert total.isfinite()
        assert x.grad.isfinite().all()


def test_the_weight_of_a_sum_is_that_of_its_second_term():
    scores, relevant = torch.rand(3, 8), torch.rand(3, 8) < 0.5
    terms = loss_by_name("bce+smooth-ap").terms({"lr": 0.1, "weight": 0.25}, "relevant")
    assert [(weight, form) for weight, form, _ in terms] == [(1.0, "relevant"), (0.25, "relevant")]
    torch.testing.assert_close(
        terms[0][2](scores, relevant),
        torch.nn.functional.binary_cross_entropy_with_logits(scores, relevant.float()),
    )
    torch.testing.assert_close(terms[1][2](scores, relevant), sodeep.smooth_ap_loss(scores, relevant))


def test_sorter_files_are_rank_functions(tmp_path):
    free, fixed = tmp_path / "free.safetensors", tmp_path / "fixed.safetensors"
    sodeep.save_sorter(free, sodeep.build_sorter("gru-sum"))
    sodeep.save_sorter(fixed, sodeep.build_sorter("mlp", seq_len=12))
    for path in (free, fixed):
        (_, _, loss), *_ = loss_by_name(f"map:{path}").terms({"lr": 0.1}, "relevant")
        for n in (12, 11):
            x = torch.rand(3, n, requires_grad=True)
            loss(x, torch.rand(3, n) < 0.6).backward()
            assert x.grad.abs().sum() > 0
        assert not any(weight.requires_grad for weight in loss.parameters())


def test_a_plus_in_the_name_of_a_file_is_no_sum(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sodeep.save_sorter("my+file.safetensors", sodeep.build_sorter("gru-sum"))
    scores = torch.rand(3, 5)
    for name, number in {
        "map:my+file.safetensors": 1,
        "bce+map:my+file.safetensors": 2,
        "map:my+file.safetensors+smooth-ap": 2,
        f"map:{tmp_path}/my+file.safetensors+recall:laplace": 2,
    }.items():
        terms = loss_by_name(name).terms({"lr": 0.1, **({"weight": 0.1} if number == 2 else {})}, "relevant")
        assert len(terms) == number
        for _, _, loss in terms:
            assert loss(scores, torch.rand(3, 5) < 0.6).isfinite()


def test_padding_leaves_the_ranks_of_the_others_alone():
    x = torch.tensor([[0.3, 0.9, 0.1], [0.5, 0.5, 0.5]])
    ranks = PaddedRank(sodeep.exact_rank, 7)(x)
    torch.testing.assert_close(ranks, sodeep.exact_rank(x))
    expected = (
        "`scores` must have lists of at most 2 for this sorter, got 3. Use batches of 2, and groups of at most as many "
        "items, or a sorter for any length."
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        PaddedRank(sodeep.exact_rank, 2)(x)


@pytest.fixture
def my_module(tmp_path, monkeypatch):
    (tmp_path / "my_losses_of_a_test.py").write_text(
        "import torch\n"
        "class Mine(torch.nn.Module):\n"
        "    def forward(self, scores, target):\n"
        "        return (scores - target.float()).square().mean()\n"
        "def mine(scores, target):\n"
        "    return Mine()(scores, target)\n"
        "def my_rank(scores):\n"
        "    return scores.argsort(-1).argsort(-1).float()\n"
        "class MyRank(torch.nn.Module):\n"
        "    def forward(self, scores):\n"
        "        return my_rank(scores)\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    return "my_losses_of_a_test"


def test_losses_and_ranks_of_ones_own(my_module):
    x, target = torch.rand(4, 5), torch.rand(4, 5) < 0.5
    for name in ("Mine", "mine"):
        ((weight, form, loss),) = loss_by_name(f"{my_module}:{name}").terms({"lr": 0.1}, "target")
        assert (weight, form) == (1.0, "target")
        torch.testing.assert_close(loss(x, target), (x - target.float()).square().mean())
    for name in ("my_rank", "MyRank"):
        assert rank_function(f"{my_module}:{name}")(torch.tensor([3.0, 1.0])).tolist() == [1.0, 0.0]
    assert isinstance(loss_by_name(f"spearman:{my_module}:MyRank").build().rank_fn, torch.nn.Module)
    for name, expected in {
        f"{my_module}:gone": f"`loss` must name something in {my_module}, got {my_module}:gone, not there.",
        f"{my_module}:number": f"`loss` must be callable, got {my_module}:number of type int.",
    }.items():
        with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
            loss_by_name(name)


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """Losses as people have them."""
    (tmp_path / "their_losses_of_a_test.py").write_text(
        "import torch\n"
        "class Named(torch.nn.Module):\n"
        "    def forward(self, embeddings, labels, indices_tuple=None):\n"
        "        return (embeddings @ embeddings.T)[labels[:, None] == labels].mean()\n"
        "made = Named()\n"
        "def function(feats, y):\n"
        "    return made(feats, y)\n"
        "class Tried(torch.nn.Module):\n"
        "    def forward(self, *args):\n"
        "        assert args[1].ndim == 1\n"
        "        return made(*args)\n"
        "class Scores(torch.nn.Module):\n"
        "    def forward(self, scores, labels):\n"
        "        return scores[labels].mean()\n"
        "def either(x, y):\n"
        "    return x.mean()\n"
        "def neither(x, y):\n"
        "    raise RuntimeError\n"
    )
    monkeypatch.chdir(tmp_path)
    return "their_losses_of_a_test"


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("Named", "embeddings"),
        ("made", "embeddings"),
        ("function", "embeddings"),
        ("Tried", "embeddings"),
        ("Scores", ""),
        ("either", ""),
        ("neither", ""),
    ],
)
def test_losses_of_the_form_of_pytorch_metric_learning_are_seen(theirs, name, form):
    before = torch.random.get_rng_state()
    assert loss_by_name(f"{theirs}:{name}").signatures == {form}
    torch.testing.assert_close(torch.random.get_rng_state(), before, rtol=0, atol=0)


def test_such_a_loss_gets_embeddings_and_labels(theirs):
    task = Retrieval(retrieval_data(), batch_size=12)
    batch = next(iter(task.batches(0)))
    ((_, form, loss),) = loss_by_name(f"{theirs}:Named").terms({"lr": 0.1}, task.accepts[0])
    model = task.model()
    found = task.forward(model, batch)[form](loss)
    x, labels = model(task.items[batch]), task.labels[batch]
    torch.testing.assert_close(found, (x @ x.T)[labels[:, None] == labels].mean())


def test_unknown_names_name_the_choices():
    for name, pattern in {
        "nonsense": r"^`loss` must be one of mse, .*smooth-ap, .*spearman:RANK, map:RANK, recall:RANK, .* with RANK "
        r"one of laplace, sigmoid, blackbox.*, a sorter file or module:attribute; peer:torchsort, .*; module:attribute "
        r"for your own; A\+B; or A,B, got 'nonsense'\.$",
        "smoothap": r"^`loss` must be a name that sodeep compare --help lists, got 'smoothap'\. Is it 'smooth-ap'\?$",
        "bce+smoothap": r"^`loss` must be a name that .* lists, got 'smoothap'\. Is it 'smooth-ap'\?$",
        "spearmann:laplace": r"^`loss` must be .*, got 'spearmann:laplace'\. Is it 'spearman:laplace'\?$",
        "map:quick": r"^`loss` must have a rank function after the colon: laplace, sigmoid, blackbox.*, a sorter file "
        r"\(\.safetensors\) or module:attribute, got 'quick'\.$",
        **{
            name: rf"^`loss` must name a rank function for {loss}, got '{name}'\. Write {loss}:laplace, or {loss}:RANK "
            r"with RANK one of laplace, sigmoid, blackbox.*, a sorter file or module:attribute\.$"
            for loss in ("spearman", "map", "recall")
            for name in (loss, f"{loss}:")
        },
        "mse+spearman": r"^`loss` must name a rank function for spearman, got 'spearman'\. Write spearman:laplace, ",
        "map:laplace+recall": r"^`loss` must name a rank function for recall, got 'recall'\. Write recall:laplace, ",
        "map:laplace+smoothap": r"^`loss` must have a rank function after the colon: .*, got 'laplace\+smoothap'\.$",
        "peer:nobody": r"^`loss` must be one of peer:torchsort, .*, got 'peer:nobody'\.$",
    }.items():
        with pytest.raises(ValueError, match=pattern):
            loss_by_name(name)
    with pytest.raises(
        ValueError, match=r"^`loss` must name a module that is installed or in .*, got nowhere_at_all:X\.$"
    ):
        loss_by_name("nowhere_at_all:X")
    with pytest.raises(FileNotFoundError):
        loss_by_name("map:gone.safetensors")


def test_a_peer_that_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for peer, (package, _) in PEERS.items():
        name = package.replace("_", "-")
        expected = f"`loss` peer:{peer} needs {name}, which is not installed. Install it: {remedy(package)}"
        with pytest.raises(ModuleNotFoundError, match="^" + re.escape(expected) + "$"):
            loss_by_name(f"peer:{peer}")


def test_peers_have_settings_too():
    for _, loss in PEERS.values():
        task = TASKS["ranking" if loss.method else "retrieval"]
        assert len(trial_settings(loss.all_ranges(task), trials=4)) == 4


def test_hinge_and_bce_against_torch():
    scores, relevant = torch.randn(4, 6), torch.rand(4, 6) < 0.5
    margins = scores * (relevant.float() * 2 - 1)
    expected = torch.nn.functional.hinge_embedding_loss(margins, -torch.ones(4, 6), margin=1.0)
    torch.testing.assert_close(loss_by_name("hinge").build()(scores, relevant), expected)
    where = torch.rand(4, 6) < 0.5
    for build in (loss_by_name("hinge").build, loss_by_name("bce").build):
        loss = partial(build(), where=where)
        torch.testing.assert_close(loss(scores, relevant), build()(scores[where], relevant[where]))
