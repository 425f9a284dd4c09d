"""The options of the cross-modal task on captions: against plain loops."""

import csv
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import sodeep
from sodeep.comparison.losses_by_name import LOSSES, RANK_LOSSES, loss_by_name
from sodeep.datasets.captions import keep_captions
from sodeep.tasks import CrossModalData
from sodeep.tasks.cross_modal import CrossModal
from sodeep.tasks.semantics import SemanticScores

RNG = np.random.default_rng

WORDS = ["red", "cat", "face", "big", "heart", "hat", "bus", "old"]


def made_up(n=60, texts=True, **given):
    """Images with one to five captions each, in no order."""
    rng = RNG(0)
    owner = np.concatenate([np.arange(n), rng.choice(n, n), np.repeat(np.arange(0, n, 4), 3)])
    owner = rng.permutation(owner)
    items = rng.normal(size=(n, 6)).astype(np.float32)
    near = (items[owner] + rng.normal(0, 0.6, (len(owner), 6))).astype(np.float32)
    captions = [" ".join(rng.choice(WORDS, rng.integers(1, 6))) for _ in owner] if texts else near
    codes = rng.random((n, 3)) < 0.4
    split = np.repeat(["train", "val", "test"], [n // 2, n // 4, n // 4])
    return CrossModalData("made up", items, captions, owner, split, codes, **given)


def captions_of(data, image):
    return set(np.flatnonzero(data.owner == image).tolist())


class Given(torch.nn.Module):
    def forward(self, x):
        return x


def towers():
    return torch.nn.ModuleDict({"images": Given(), "captions": Given()})


def raises(expected):
    return pytest.raises(ValueError, match="^" + re.escape(expected) + "$")


# ---- several captions of an image in a batch -------------------------------------------------------------------------


@pytest.mark.parametrize("most", [2, 3, 100])
def test_a_batch_has_so_many_captions_of_each_image_or_all(most):
    data = made_up()
    single, task = (CrossModal(data, batch_size=12, captions_per_item=count) for count in (None, most))
    assert task.data_name == f"made up, up to {most} of each image's captions in a batch"
    drawn = set()
    for epoch in range(30):
        for one, batch in zip(single.batches(epoch), task.batches(epoch), strict=True):
            expected = [i for i in one[:, 0] for _ in range(min(most, len(captions_of(data, i))))]
            np.testing.assert_array_equal(batch[:, 0], expected)  # the images of a batch, in its order
            np.testing.assert_array_equal(data.owner[batch[:, 1]], batch[:, 0])
            assert len(set(batch[:, 1].tolist())) == len(batch)  # without replacement
            drawn |= set(batch[:, 1].tolist())
    assert drawn == set(np.flatnonzero(data.owner < 30).tolist())
    again = [batch.tolist() for batch in CrossModal(data, batch_size=12, captions_per_item=most).batches(3)]
    assert again == [batch.tolist() for batch in task.batches(3)]
    assert again != [batch.tolist() for batch in CrossModal(data, 1, batch_size=12, captions_per_item=most).batches(3)]


def test_one_caption_an_image_is_the_default():
    data = made_up()
    default, one = CrossModal(data), CrossModal(data, captions_per_item=1)
    assert one.data_name == default.data_name == "made up"
    for batch, same in zip(default.batches(2), one.batches(2), strict=True):
        np.testing.assert_array_equal(batch, same)


def lists_of(task, batch, signature):
    """Scores and relevance of both directions, as a loss gets them."""
    seen = []
    task.forward(towers(), batch)[signature](lambda scores, given: seen.append((scores, given)) or scores.sum())
    return seen


@pytest.mark.parametrize("semantic", ["overlap", "class", "cider", "bleu", "rouge-l", "mean"])
def test_scores_and_relevance_of_a_batch_with_several_captions(semantic):
    data = made_up()
    task = CrossModal(data, batch_size=10, semantic=semantic, captions_per_item=3)
    task.captions = torch.from_numpy(made_up(texts=False).captions)
    batch = next(task.batches(1))
    images, captions = batch[:, 0][np.sort(np.unique(batch[:, 0], return_index=True)[1])], batch[:, 1]
    assert 10 == len(images) < len(captions) < 30
    cosine = torch.nn.functional.cosine_similarity
    if semantic == "overlap":
        codes = [set(np.flatnonzero(row)) for row in data.codes]
        alike = {(i, j): len(codes[i] & codes[j]) / max(1, len(codes[i] | codes[j])) for i in images for j in images}
    elif semantic == "class":
        same = {(i, j): (data.codes[i] == data.codes[j]).all() and data.codes[i].any() for i in images for j in images}
        alike = {pair: float(value) for pair, value in same.items()}
        assert 0 < sum(alike.values()) < len(alike)
    else:
        table = SemanticScores(data.captions, data.owner)(semantic, images, images)
        alike = {(i, j): table[p, q] for p, i in enumerate(images) for q, j in enumerate(images)}
    for signature in ("relevant", "semantic"):
        (scores, given), (back, given_back) = lists_of(task, batch, signature)
        assert given.shape == (10, len(captions))
        for row, i in enumerate(images):
            for column, c in enumerate(captions):
                own = data.owner[c] == i
                expected = own if signature == "relevant" else 1.0 if own else alike[i, data.owner[c]]
                np.testing.assert_allclose(given[row, column], expected, atol=1e-6)
                score = cosine(task.items[i], task.captions[c], dim=0)
                torch.testing.assert_close(scores[row, column], score)
        torch.testing.assert_close(back, scores.T, rtol=0, atol=0)
        torch.testing.assert_close(given_back, given.T, rtol=0, atol=0)


def smooth_ap(s, relevant, tau):
    value = 0.0
    for i in np.flatnonzero(relevant):
        above = [1 / (1 + np.exp((s[i] - s[j]) / tau)) for j in range(len(s))]
        others = [j for j in range(len(s)) if j != i]
        positives = 1 + sum(above[j] for j in others if relevant[j])
        value += positives / (1 + sum(above[j] for j in others)) / relevant.sum()
    return 1 - value


def nt_xent(s, relevant, temperature):
    e = np.exp(s / temperature)
    return np.mean([-np.log(e[p] / (e[p] + e[~relevant].sum())) for p in np.flatnonzero(relevant)])


def n_pairs(s, relevant, scale):
    return np.mean([np.log(1 + np.exp(scale * (s[~relevant] - s[p])).sum()) for p in np.flatnonzero(relevant)])


def triplet_hard(s, relevant, margin):
    return np.mean([max(0.0, margin + s[~relevant].max() - s[p]) for p in np.flatnonzero(relevant)])


@pytest.mark.parametrize(
    ("name", "settings", "of_list"),
    [
        ("smooth-ap", {"tau": 0.05}, smooth_ap),
        ("nt-xent", {"temperature": 0.2}, nt_xent),
        ("n-pairs", {"scale": 5.0}, n_pairs),
        ("triplet-hard", {"margin": 0.2}, triplet_hard),
    ],
)
def test_losses_of_both_directions_against_loops(name, settings, of_list):
    task = CrossModal(made_up(texts=False), batch_size=10, captions_per_item=3)
    batch = next(task.batches(0))
    ((_, _, loss),) = loss_by_name(name).terms(settings, "relevant")
    found = task.forward(towers(), batch)["relevant"](loss)
    (scores, relevant), _ = lists_of(task, batch, "relevant")
    s, r = scores.double().numpy(), relevant.numpy()
    assert r.sum(1).max() == 3 > r.sum(1).min()  # an image with fewer captions
    there = np.mean([of_list(s[i], r[i], **settings) for i in range(len(s))])
    back = np.mean([of_list(s[:, j], r[:, j], **settings) for j in range(s.shape[1])])
    np.testing.assert_allclose(found.item(), (there + back) / 2, rtol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        *(name for name, spec in LOSSES.items() if spec.signature in ("relevant", "semantic")),
        *(
            f"{name}:{rank}"
            for name, spec in RANK_LOSSES.items()
            if spec.signature == "relevant"
            for rank in ("laplace", "set")
        ),
    ],
)
def test_every_loss_takes_several_captions_of_an_image(name):
    torch.manual_seed(0)
    task = CrossModal(made_up(), batch_size=10, captions_per_item=3)
    spec = loss_by_name(name)
    model = task.model()
    ((_, signature, loss),) = spec.terms({}, "relevant")
    task.forward(model, next(task.batches(0)))[signature](loss).backward()
    for weight in model.parameters():
        assert torch.isfinite(weight.grad).all()
    assert any(weight.grad.any() for weight in model.images.parameters())
    assert any(weight.grad.any() for weight in model.captions.parameters())


# ---- fewer captions of the training images ---------------------------------------------------------------------------


def test_captions_kept_are_drawn_and_nested():
    data = made_up()
    full = {i: captions_of(data, i) for i in range(60)}
    before = {i: set() for i in range(30)}
    for count in range(1, 10):
        found = keep_captions(replace(data, languages=[f"l{i}" for i in data.owner]), np.arange(30), count, seed=3)
        texts = list(data.captions)
        kept = [i for i in range(len(texts)) if data.owner[i] >= 30]
        assert [text for text, i in zip(found.captions, found.owner, strict=True) if i >= 30] == [
            texts[i] for i in kept
        ]
        assert found.languages == [f"l{i}" for i in found.owner]
        # the same draw with numbers for captions says which they are
        numbered = keep_captions(replace(data, captions=np.arange(len(texts))[:, None]), np.arange(30), count, seed=3)
        assert [texts[i] for i in numbered.captions[:, 0]] == found.captions
        np.testing.assert_array_equal(data.owner[numbered.captions[:, 0]], found.owner)
        for i in range(30):
            mine = set(numbered.captions[found.owner == i, 0].tolist())
            assert len(mine) == min(count, len(full[i]))
            assert before[i] <= mine <= full[i]
            before[i] = mine
    assert before == {i: full[i] for i in range(30)}
    draws = [keep_captions(data, np.arange(30), 1, seed).captions for seed in (3, 3, 4)]
    assert draws[0] == draws[1] != draws[2]


def test_dropped_captions_are_as_if_never_there():
    data = made_up()
    task = CrossModal(data, 2, captions_kept=2)
    fewer = keep_captions(data, np.arange(30), 2, seed=2)
    by_hand = CrossModal(fewer, 2)
    assert task.data_name == "made up, up to 2 of each training image's captions"
    assert task.texts == fewer.captions
    torch.testing.assert_close(task.captions, by_hand.captions, rtol=0, atol=0)  # n-grams of those kept
    scores, every = SemanticScores(fewer.captions, fewer.owner), range(60)
    for name in ("cider", "mean"):
        np.testing.assert_array_equal(task.text_scores(name, every, every), scores(name, every, every))
    for batch, same in zip(task.batches(0), by_hand.batches(0), strict=True):
        np.testing.assert_array_equal(batch, same)
    part = CrossModal(data, 2, captions_kept=1, train_fraction=0.5, captions_per_item=4)
    assert part.data_name == (
        "made up, 0.5 of the training split, up to 1 of each training image's captions, up to 4 of each image's "
        "captions in a batch"
    )
    assert {len(batch) for batch in part.batches(0)} == {15}
    assert task.checksum == CrossModal(data).checksum != by_hand.checksum  # of the data as they are read


# ---- ASP by the mean of three scores ---------------------------------------------------------------------------------


def test_asp_by_the_mean_of_the_three_scores_against_a_loop():
    data = made_up()
    task = CrossModal(data)
    task.captions = torch.from_numpy(made_up(texts=False).captions)
    found = task.evaluate(towers(), "test").metrics
    scorer = SemanticScores(data.captions, data.owner)
    test = np.arange(45, 60)
    table = np.mean([scorer(name, test, test) for name in ("cider", "bleu", "rouge-l")], axis=0)
    columns = [c for c, i in enumerate(data.owner) if i >= 45]
    x = torch.nn.functional.normalize(task.items[45:])
    y = torch.nn.functional.normalize(task.captions[columns])
    scores = x @ y.T
    graded = torch.tensor(
        [[1.0 if data.owner[c] == i else table[i - 45, data.owner[c] - 45] for c in columns] for i in test]
    )
    for way, s, g in (("i2t", scores, graded), ("t2i", scores.T, graded.T)):
        a, b = sodeep.exact_rank(s), sodeep.exact_rank(g)
        expected = (torch.minimum(a, b) / torch.maximum(a, b)).mean()
        np.testing.assert_allclose(found[f"{way} ASP mean"], expected, rtol=1e-5)
        of_three = np.mean([found[f"{way} ASP {name}"] for name in ("cider", "bleu", "rouge-l")])
        assert abs(of_three - found[f"{way} ASP mean"]) > 1e-4


# ---- folds of the test split -----------------------------------------------------------------------------------------


def test_metrics_in_folds_are_means_over_parts_of_the_test_split():
    data = made_up()
    vectors = torch.from_numpy(made_up(texts=False).captions)

    def evaluated(split, which="test", **options):
        task = CrossModal(replace(data, split=split), **options)
        task.captions = vectors
        return task.evaluate(towers(), which).metrics

    found = evaluated(data.split, fold_size=7)  # the last of 15 images is left over
    whole = evaluated(data.split)
    parts = []
    for start in (45, 52):
        inside = (np.arange(60) >= start) & (np.arange(60) < start + 7)
        parts.append(evaluated(np.where((data.split == "test") & ~inside, "val", data.split)))
    assert list(found) == [*whole, *(f"{name} in folds" for name in whole)]
    assert {name: found[name] for name in whole} == whole
    for name in whole:
        np.testing.assert_allclose(found[f"{name} in folds"], (parts[0][name] + parts[1][name]) / 2, rtol=1e-6)
    assert set(found) <= set(CrossModal.metrics)
    assert CrossModal.metrics["i2t median rank in folds"] is False
    assert not [name for name in evaluated(data.split, "val", fold_size=7) if "folds" in name]
    assert CrossModal(data, fold_size=7).data_name == "made up, test folds of 7"


def test_a_fold_is_at_most_half_the_test_split():
    expected = (
        "`fold_size` must be at most half the test split, which has 15 images, got 8. "
        "Leave it out where the test split is one fold."
    )
    with raises(expected):
        CrossModal(made_up(), fold_size=8)


# ---- classes in place of semantic scores -----------------------------------------------------------------------------


def test_images_of_one_class_are_relevant():
    classes = np.array(["cat", "bus", "hat"])[RNG(1).integers(0, 3, 60)]
    task = CrossModal(made_up(classes=classes), batch_size=12, semantic="class")
    batch = next(task.batches(0))
    task.captions = torch.from_numpy(made_up(texts=False).captions)
    given = lists_of(task, batch, "semantic")[0][1]
    expected = [[1.0 if classes[i] == classes[j] else 0.0 for j in batch[:, 0]] for i in batch[:, 0]]
    torch.testing.assert_close(given, torch.tensor(expected))
    assert task.data_name == "made up, semantic scores by class"
    ours, others = (CrossModal(made_up(classes=c)) for c in (classes, None))
    assert (ours.semantic, ours.data_name) == (others.semantic, others.data_name) == ("overlap", "made up")


def test_an_image_without_codes_is_of_no_class():
    codes = np.zeros((60, 3), dtype=bool)
    codes[:20, 0] = codes[20:26, 1] = True  # the others have none
    task = CrossModal(replace(made_up(), codes=codes), semantic="class")
    given = task._semantic("class", torch.arange(30))
    expected = [
        [float(i == j or max(i, j) < 20 or (min(i, j) >= 20 and max(i, j) < 26)) for j in range(30)] for i in range(30)
    ]
    torch.testing.assert_close(given, torch.tensor(expected))


@pytest.mark.parametrize(
    ("classes", "got"),
    [
        (np.zeros(60), "1 class of 30 training images"),
        (np.repeat([0, 1], 30), "1 class of 30 training images"),
        (np.arange(60), "30 classes of 30 training images"),
    ],
)
def test_classes_that_say_nothing_are_refused(classes, got):
    data = made_up(classes=classes)
    expected = (
        f"`semantic` class must have two classes or more and two images of a class, got {got}. Choose another score."
    )
    with raises(expected):
        CrossModal(data, semantic="class")
    assert CrossModal(data).semantic == "overlap"


def test_classes_without_codes_are_the_semantic_score():
    data = replace(made_up(texts=False, classes=np.arange(60) % 4), codes=None)
    task = CrossModal(data)
    assert (task.semantic, task.lacks("semantic")) == ("class", None)
    assert not [name for name in task.evaluate(towers(), "test").metrics if "ASP" in name or "PMRP" in name]


def test_labels_of_an_npz_and_subcategories_of_emoji_are_classes(tmp_path):
    arrays = {}
    labels = {"train": np.arange(12) % 3, "val": np.arange(6) % 3, "test": np.arange(6) % 2}
    for split, classes in labels.items():
        arrays[f"{split}_images"] = arrays[f"{split}_captions"] = RNG(0).normal(size=(len(classes), 4))
        arrays[f"{split}_image_of_caption"] = np.arange(len(classes))
        arrays[f"{split}_labels"] = classes
        arrays[f"{split}_codes"] = RNG(1).integers(0, 2, (len(classes), 5))
    np.savez(tmp_path / "x.npz", **arrays)
    data = CrossModal.read(tmp_path / "x.npz", 0)
    np.testing.assert_array_equal(data.classes, np.concatenate(list(labels.values())))
    assert data.codes.shape == (24, 5)
    np.savez(tmp_path / "emoji.npz", google=RNG(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8))
    for columns in (["split", "en", "tags_en"], ["split", "en", "tags_en", "subcategory"]):
        with (tmp_path / "emoji.tsv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, delimiter="\t")
            rows.writerow(columns)
            for i in range(12):
                rows.writerow(["train" if i < 9 else "test", f"name {i}", "a;b", f"s{i % 3}"][: len(columns)])
        classes = CrossModal.read(tmp_path, 0).classes
        if "subcategory" in columns:
            assert classes.tolist() == [f"s{i % 3}" for i in range(12)]
        else:
            assert classes is None


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "low"),
    [
        ("captions_per_item", 0, 1),
        ("captions_per_item", 1.5, 1),
        ("captions_kept", 0, 1),
        ("captions_kept", -1, 1),
        ("fold_size", 1, 2),
    ],
)
def test_numbers_of_captions_and_images_are_whole(option, value, low):
    with raises(f"`{option}` must be a whole number of at least {low}, got {value}."):
        CrossModal(made_up(), **{option: value})


def test_a_training_image_without_a_caption_is_named():
    data = made_up()
    some = np.flatnonzero(data.owner != 4)
    bare = replace(data, captions=[data.captions[i] for i in some], owner=data.owner[some])
    with raises("`data` must have a caption for each training image, got none for image 4."):
        CrossModal(bare)
