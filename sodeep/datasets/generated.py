"""Small data sets that need no download: generated with a seed, or inside scikit-learn. Tasks fall back on them."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from sodeep._core.extras import check_installed, needed
from sodeep.datasets.types import CrossModalData, MemorabilityData, MultiLabelData, RankingData, RetrievalData


def characters(seed: int, classes: int = 150, each: int = 12, size: int = 14) -> RetrievalData:
    """Generated characters of four strokes, drawn with jitter: turned, scaled, moved, in a thin or a thick pen.

    Raw pixels of one character differ by its place and turn, so that an encoder gains from training; and characters of
    other classes are made of such strokes too, so that it gains on classes that it never saw.
    """
    rng = np.random.default_rng([seed, 8])
    n = classes * each
    points = np.repeat(rng.uniform(-0.75, 0.75, size=(classes, 5, 2)), each, axis=0)
    points += rng.normal(0, 0.06, points.shape)
    turn = rng.normal(0, 0.25, n)
    cos, sin = np.cos(turn), np.sin(turn)
    matrix = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
    points = points @ (matrix * rng.uniform(0.75, 1.1, size=(n, 1, 1))) + rng.normal(0, 0.12, size=(n, 1, 2))
    grid = np.linspace(-1, 1, size)
    pixels = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
    start, stroke = points[:, :-1, None], np.diff(points, axis=1)[:, :, None]
    along = ((pixels - start) * stroke).sum(-1) / (stroke**2).sum(-1)
    away = np.linalg.norm(pixels - start - along.clip(0, 1)[..., None] * stroke, axis=-1).min(1)
    ink = expit((rng.uniform(0.06, 0.12, size=(n, 1)) - away) / 0.03)
    images = (255 * (1 - ink) + rng.normal(0, 6, ink.shape)).clip(0, 255).astype(np.uint8).reshape(n, size, size)
    label = np.repeat(np.arange(classes), each)
    split = np.select([label < 0.6 * classes, label < 0.75 * classes], ["train", "val"], "test")
    name = "synthetic characters, a quarter of them unseen (generated, no real data)"
    return RetrievalData(name, images, label, split)


_COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 220),
    "yellow": (230, 200, 40),
    "black": (20, 20, 20),
    "grey": (150, 150, 150),
    "violet": (150, 60, 200),
    "brown": (130, 80, 40),
}

_SHAPES = ("square", "disc", "ring", "cross", "stripes", "frame")

_PLACES = ("left", "right", "top", "bottom", "middle")


def shapes(seed: int, n: int = 1000, size: int = 16) -> CrossModalData:
    """Generated images of a coloured shape on white, with two captions each in differing words."""
    rng = np.random.default_rng([seed, 5])
    grid = np.linspace(-1, 1, size)
    x, y = np.meshgrid(grid, grid)
    centres = dict(zip(_PLACES, ((-0.4, 0), (0.4, 0), (0, -0.4), (0, 0.4), (0, 0)), strict=True))
    images, captions = np.full((n, size, size, 3), 255, dtype=np.uint8), []
    codes = np.zeros((n, len(_COLOURS) + len(_SHAPES) + len(_PLACES) + 2), dtype=bool)
    offsets = np.cumsum([0, len(_COLOURS), len(_SHAPES), len(_PLACES)])
    for i in range(n):
        colour, shape, place, large = rng.integers((len(_COLOURS), len(_SHAPES), len(_PLACES), 2))
        words = [list(_COLOURS)[colour], _SHAPES[shape], _PLACES[place], ("small", "large")[large]]
        radius = (0.3, 0.5)[large]
        u, v = ((x - centres[words[2]][0]) / radius, (y - centres[words[2]][1]) / radius)
        r, m = np.hypot(u, v), np.maximum(abs(u), abs(v))
        ink = {
            "square": m <= 1,
            "disc": r <= 1,
            "ring": abs(r - 0.8) <= 0.3,
            "cross": (m <= 1) & (np.minimum(abs(u), abs(v)) <= 0.35),
            "stripes": (m <= 1) & (np.floor(2 * v) % 2 == 0),
            "frame": abs(m - 0.8) <= 0.3,
        }[words[1]]
        images[i][ink] = list(_COLOURS.values())[colour]
        captions.append(f"a {words[3]} {words[0]} {words[1]} {words[2]}")
        captions.append(f"{words[2]}: {words[1]}, {words[0]}, {words[3]}")
        codes[i, offsets + np.array([colour, shape, place, large])] = True
    images = (images + rng.normal(0, 12, images.shape)).clip(0, 255).astype(np.uint8)
    split = np.select([np.arange(n) < 0.6 * n, np.arange(n) < 0.8 * n], ["train", "val"], "test")
    owner = np.repeat(np.arange(n), 2)
    return CrossModalData("synthetic shapes (generated, no real data)", images, captions, owner, split, codes)


def noisy_scores(seed: int, n: int = 2000, d: int = 16) -> MemorabilityData:
    """Generated scores: a smooth function of random features plus noise, squeezed to [0, 1] as human scores are.

    Noise bounds what any model reaches, and a tenth of the scores are outliers, which dominate squared errors.
    """
    rng = np.random.default_rng([seed, 4])
    features = rng.normal(size=(n, d)).astype(np.float32)
    direction, bend = rng.normal(size=(2, d)) / np.sqrt(d)
    signal = features @ direction + np.sin(2 * features @ bend)
    noise = rng.normal(size=n) * np.where(rng.random(n) < 0.1, 4.0, 0.7)
    target = 1 / (1 + np.exp(-2 * (signal + noise)))
    return MemorabilityData("synthetic memorability (generated, no real data)", target, features=features)


def queries(seed: int, groups: int = 300, d: int = 20) -> RankingData:
    """Generated queries of 8 to 30 documents, with grades 0 to 4 relative to the others of the query.

    The features tell how easy a query is, too, and easy ones have higher grades throughout: a model that learns the
    grades learns that first, though it orders nothing.
    """
    rng = np.random.default_rng([seed, 11])
    group = np.repeat(np.arange(groups), rng.integers(8, 31, groups))
    ease = rng.uniform(-1, 1, groups)[group]
    features = rng.normal(size=(len(group), d))
    features[:, :3] += ease[:, None]
    direction, bend = rng.normal(size=(2, d)) / np.sqrt(d)
    direction[:3] = bend[:3] = 0
    signal = features @ direction + np.sin(2 * features @ bend) + rng.normal(0, 0.8, len(group))
    relevance = np.searchsorted([0.2, 1.0, 1.7, 2.4], signal + ease, side="right")
    return RankingData("synthetic queries (generated, no real data)", features, relevance.astype(np.float64), group)


def topics(seed: int) -> MultiLabelData:
    """scikit-learn's multilabel generator: bags of words of as many topics as a document has labels."""
    with needed("sklearn", "The multi-label task without data of your own (--data)"):
        from sklearn.datasets import make_multilabel_classification

    features, labels = make_multilabel_classification(
        3000, n_features=40, n_classes=12, n_labels=2, length=25, random_state=seed
    )
    names = [f"label {i}" for i in range(12)]
    return MultiLabelData(
        "scikit-learn's multilabel generator (no real data)",
        labels.astype(bool),
        names,
        features=features.astype(np.float32),
    )


def two_classes(seed: int) -> MultiLabelData:
    """Two normal clouds of different shape, not linearly separable.

    The best line for average precision is not the one between them.

    Half of the positives lie far out and are easy; the others are in the midst of the negatives.
    """
    check_installed("sklearn", "The toy task, for its support vector machine,")
    n, d = 5000, 10
    rng = np.random.default_rng([seed, 6])
    positive = rng.random(n) < 0.2
    easy = rng.random(n) < 0.5
    points = rng.normal(size=(n, d)) * np.linspace(2.0, 0.5, d)
    points[positive & easy, 0] += 4.0
    points[positive & ~easy, 1] += 1.5
    return MultiLabelData("two classes of points (generated)", positive[:, None], ["positive"], features=points)
