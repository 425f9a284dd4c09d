"""Revisited Oxford and Paris in the retrieval task: the layout, and metrics with the values of the published code."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from sodeep.comparison import compare
from sodeep.datasets.revisited import PROTOCOLS
from sodeep.tasks import Retrieval
from sodeep.tasks.encoders import AsGiven
from sodeep.tasks.revisited import REVISITED_METRICS, revisited_metrics

RNG = np.random.default_rng
QUERIES, GALLERY = 9, 40
RIGHT = {"easy": ["easy"], "medium": ["easy", "hard"], "hard": ["hard"]}
LEFT_OUT = {"easy": ["junk", "hard"], "medium": ["junk"], "hard": ["junk", "easy"]}


def ground_truth(seed=0):
    """Each query with a few images of each kind; the last has no hard ones, and that before no right one at all."""
    rng, gnd = RNG(seed), []
    for query in range(QUERIES):
        order = rng.permutation(GALLERY).tolist()
        easy, hard, junk = order[:4], order[4:11], order[11 : 11 + query]
        if query == QUERIES - 2:
            easy, hard = [], []
        if query == QUERIES - 1:
            hard = []
        gnd.append({"bbx": [2.0, 1.0, 14.0, 9.0], "easy": easy, "hard": hard, "junk": junk})
    names = {"imlist": [f"g{i}" for i in range(GALLERY)], "qimlist": [f"q{i}" for i in range(QUERIES)]}
    return {**names, "gnd": gnd}


def by_definition(scores, gnd, protocol):
    """Mean AP and precisions, each query by itself: junk is taken out of the list before anything is counted."""
    aps, precisions = [], []
    for row, entry in zip(scores, gnd, strict=True):
        right = {i for kind in RIGHT[protocol] for i in entry[kind]}
        junk = {i for kind in LEFT_OUT[protocol] for i in entry[kind]}
        if not right:
            continue
        ranked = [i for i in sorted(range(len(row)), key=lambda i: -row[i]) if i not in junk]
        places = [place for place, i in enumerate(ranked, 1) if i in right]
        area = 0.0
        for found, place in enumerate(places, 1):
            before = 1.0 if place == 1 else (found - 1) / (place - 1)
            area += (before + found / place) / 2
        aps.append(area / len(right))
        cuts = [min(k, places[-1]) for k in (1, 5, 10)]
        precisions.append([sum(place <= cut for place in places) / cut for cut in cuts])
    return np.mean(aps), np.mean(precisions, axis=0)


@pytest.fixture
def folder(tmp_path):
    """Features, with others to train on."""
    rng = RNG(1)
    (tmp_path / "gnd_roxford5k.json").write_text(json.dumps(ground_truth()))
    np.savez(
        tmp_path / "features.npz",
        query_features=rng.normal(size=(QUERIES, 8)),
        gallery_features=rng.normal(size=(GALLERY, 8)),
        train_features=rng.normal(size=(48, 8)) + np.repeat(rng.normal(size=(8, 8)), 6, axis=0),
        train_labels=np.repeat(np.arange(8), 6),
    )
    return tmp_path


def rewrite(folder, **changes):
    """The features with some arrays changed, or left out for None."""
    with np.load(folder / "features.npz") as arrays:
        kept = {**arrays, **changes}
    np.savez(folder / "features.npz", **{name: array for name, array in kept.items() if array is not None})


def expected_metrics(features):
    x = {name: features[f"{name}_features"] for name in ("query", "gallery")}
    x = {name: rows / np.linalg.norm(rows, axis=1, keepdims=True) for name, rows in x.items()}
    scores = x["query"] @ x["gallery"].T
    values = {}
    for protocol in PROTOCOLS:
        values[f"mAP {protocol}"], precisions = by_definition(scores, ground_truth()["gnd"], protocol)
        values |= {f"mP@{k} {protocol}": value for k, value in zip((1, 5, 10), precisions, strict=True)}
    return values


def test_metrics_are_those_of_the_published_code(folder):
    task = Retrieval.load(folder)
    assert task.data_name == "Revisited Oxford"
    found = task.evaluate(AsGiven(), "test", details=True)
    with np.load(folder / "features.npz") as features:
        expected = expected_metrics(features)
    assert set(expected) == set(REVISITED_METRICS)
    assert list(found.metrics) == ["mAP", *REVISITED_METRICS]
    for name, value in expected.items():
        np.testing.assert_allclose(found.metrics[name], value, rtol=1e-5, err_msg=name)
    assert abs(found.metrics["mAP"] - found.metrics["mAP medium"]) < 0.1  # steps in place of trapezoids
    assert len(found.details["ap"]) == QUERIES - 1  # one query has nothing to find


@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_scores(seed):
    rng, gnd = RNG(seed), ground_truth(seed)["gnd"]
    scores = rng.normal(size=(QUERIES, GALLERY))
    truth = np.zeros((3, QUERIES, GALLERY), dtype=np.int8)
    for grades, protocol in zip(truth, PROTOCOLS, strict=True):
        for row, entry in zip(grades, gnd, strict=True):
            row[[i for kind in RIGHT[protocol] for i in entry[kind]]] = 1
            row[[i for kind in LEFT_OUT[protocol] for i in entry[kind]]] = -1
    found = revisited_metrics(torch.from_numpy(scores), torch.from_numpy(truth))
    for protocol in PROTOCOLS:
        ap, precisions = by_definition(scores, gnd, protocol)
        values = [found[f"{name} {protocol}"] for name in ("mAP", "mP@1", "mP@5", "mP@10")]
        np.testing.assert_allclose(values, [ap, *precisions], rtol=1e-9)
    nothing = revisited_metrics(torch.from_numpy(scores), torch.from_numpy(np.minimum(truth, 0)))
    assert nothing == {}


def test_a_comparison_has_columns_for_the_protocols(folder, tmp_path):
    runs = compare("retrieval", ["nt-xent"], data=folder, out=tmp_path / "out", seeds=1, max_steps=5, batch_size=12)
    assert [run.status for run in runs] == ["ok"] * 5
    assert list(runs[0].metrics) == ["mAP"]  # of the classes held out for validation
    assert list(runs[-1].metrics) == ["mAP", *REVISITED_METRICS]


def test_training_classes_are_apart_from_the_benchmark(folder):
    task = Retrieval.load(folder, batch_size=12)
    assert {split: len(index) for split, index in task.index.items()} == {
        "train": 36, "val": 12, "test": QUERIES + GALLERY
    }  # fmt: skip
    labels = {split: set(task.labels[index].tolist()) for split, index in task.index.items()}
    assert not labels["train"] & labels["val"]
    assert not labels["test"] & (labels["train"] | labels["val"])
    rng = RNG(2)
    rewrite(folder, val_features=rng.normal(size=(10, 8)), val_labels=np.repeat([90, 91], 5))
    task = Retrieval.load(folder, batch_size=12)
    assert (len(task.index["train"]), len(task.index["val"])) == (48, 10)


def test_without_training_data_an_encoder_is_evaluated_and_no_loss_compared(folder, tmp_path):
    with np.load(folder / "features.npz") as features:
        expected = expected_metrics(features)
    rewrite(folder, train_features=None, train_labels=None)
    task = Retrieval.load(folder)
    found = task.evaluate(task.model(), "test").metrics
    np.testing.assert_allclose([found[name] for name in REVISITED_METRICS],
                               [expected[name] for name in REVISITED_METRICS], rtol=1e-5)  # fmt: skip
    lacking = (
        "items to train on, which Revisited Oxford does not have. Add those of other classes (with Revisited Oxford "
        "and Paris: a folder of images for each in train/, or train_features and train_labels in the npz). Without "
        "training, use sodeep.tasks.Retrieval.load(data).evaluate(encoder, 'test')."
    )
    for losses, start in [
        (["smooth-ap"], "`loss` must fit the data, got smooth-ap. It needs "),
        (None, "`data` must have what the losses need, got Revisited Oxford. They need "),
    ]:
        with pytest.raises(ValueError, match="^" + re.escape(start + lacking) + "$"):
            compare("retrieval", losses, data=folder, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def photos(tmp_path):
    """The benchmark in images, and folders of others to train on."""
    rng, truth = RNG(3), ground_truth()
    (tmp_path / "gnd_rparis6k.json").write_text(json.dumps(truth))
    for name in [*(f"jpg/{name}" for name in truth["imlist"] + truth["qimlist"]),
                 *(f"train/{landmark}/{i}" for landmark in "abcd" for i in range(4))]:  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (12, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.jpg", quality=95)
    (tmp_path / "train/a/notes.txt").write_text("no image")
    return tmp_path


def test_images_are_read_and_queries_cropped_to_their_boxes(photos):
    for path in (photos, photos / "gnd_rparis6k.json"):
        task = Retrieval.load(path, batch_size=8)
        assert task.data_name == "Revisited Paris"
        assert tuple(task.items.shape) == (16 + QUERIES + GALLERY, 3, 64, 64)
        assert len(task.index["train"]) == len(task.index["val"]) == 8
    for place, (name, box) in {16: ("q0", (2, 1, 14, 9)), 16 + QUERIES: ("g0", None)}.items():
        with Image.open(photos / f"jpg/{name}.jpg") as image:
            seen = image.convert("RGB").crop(box) if box else image.convert("RGB")
        expected = np.asarray(seen.resize((64, 64), Image.Resampling.BOX))
        np.testing.assert_array_equal(task.items[place].permute(1, 2, 0).numpy(), expected)
    found = task.evaluate(AsGiven(), "test", details=True)
    assert set(REVISITED_METRICS) <= set(found.metrics)
    assert found.details["strip_images"].shape[2:] == (64, 64, 3)


def test_missing_images_are_named(photos):
    (photos / "jpg/g7.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(f"'{photos / 'jpg/g7.jpg'}'. Unpack the images there.")):
        Retrieval.load(photos)


def test_what_is_wrong_with_a_folder_is_said(folder):
    file = folder / "features.npz"
    start = (
        f"`data` {file} must hold the arrays query_features, gallery_features (and, to train on, train_features, "
        "train_labels; val_ likewise), got "
    )
    with np.load(file) as arrays:
        whole = dict(arrays)
    for changes, got in [
        ({"gallery_features": None}, "no gallery_features for 40 images of the ground truth."),
        ({"query_features": np.eye(8)}, "8 rows of query_features for 9 images of the ground truth."),
        ({"train_labels": np.arange(3)}, "48 rows of train_features and 3 of train_labels."),
        ({"train_labels": None}, "48 rows of train_features and 0 of train_labels."),
        ({"train_features": np.ones((48, 7))}, "features of 7, 8, 8 columns."),
        ({"query_features": np.full((9, 8), np.nan)}, "72 values of query_features are NaN or infinite."),
        ({"query_features": np.array(["a"])}, "query_features of shape (1,) and type <U1, not numbers (n, d)."),
    ]:
        rewrite(folder, **changes)
        with pytest.raises(ValueError, match="^" + re.escape(start + got) + "$"):
            Retrieval.load(folder)
        np.savez(file, **whole)
    (folder / "gnd_rparis6k.json").write_text("{}")
    expected = (
        f"`data` {folder} must have one file of ground truth, got gnd_roxford5k.json and gnd_rparis6k.json. "
        f"Name the file: --data {folder / 'gnd_roxford5k.json'}."
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        Retrieval.load(folder)
    assert Retrieval.load(folder / "gnd_roxford5k.json").data_name == "Revisited Oxford"
