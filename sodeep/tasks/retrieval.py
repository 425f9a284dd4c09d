"""Retrieval: items of classes never seen in training find the others of their class."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor, nn

from sodeep import metrics
from sodeep.losses import EmbeddingLoss, pairwise_scores, quantized_ap_loss
from sodeep.samplers import BalancedBatchSampler
from sodeep.tasks.base import (
    BATCH_SIZE,
    Array,
    Evaluation,
    Layout,
    Loss,
    RetrievalData,
    Task,
    npz_files,
    npz_names,
    read_data,
    split_classes,
)
from sodeep.tasks.encoders import as_input, encode, item_net


class Retrieval(Task):
    """Embeddings compared by cosine. Every item asks for the others of its class, in its split.

    Metrics: the hit rate among the first 1, 10 and 100 (what metric learning calls recall), mean average precision,
    MAP@R and R-precision.

    Details, of Q queries, S = 16 of them drawn (8 at random, the same for every loss and seed of a data set of one
    size; and the 8 of lowest average precision):

    * ``ap``, ``ap_quantized`` (up to 500,): average precision, and as QuantizedAPLoss sees it (20 bins).
    * ``strip_queries`` uint8 (S, H, W[, 3]), ``strip_pictures`` uint8 (S, 10, H, W[, 3]): the query and the ten found
      first; ``strip_right`` bool (S, 10); ``strip_kind`` (S,) "random" or "worst"; ``strip_ap`` (S,).
    * ``embeddings`` float16 (up to 300, d), ``embedding_labels``, ``thumbnails`` uint8: items of the test classes.

    Without pictures the arrays of pictures are left out.
    """

    name = "retrieval"
    metrics = {"mAP": True, "mAP@R": True, "R-precision": True, "R@1": True, "R@10": True, "R@100": True}  # noqa: RUF012
    headline = "mAP"
    baseline = "multi-similarity"
    losses = ("multi-similarity", "nt-xent", "triplet", "smooth-ap", "quantized-ap", "map:laplace")
    accepts = ("relevant", "embeddings")
    epochs = 20
    rates = (1e-3, 8e-3)

    def __init__(self, data: RetrievalData, seed: int = 0, batch_size: int = BATCH_SIZE) -> None:
        super().__init__(split_classes(np.asarray(data.split), np.asarray(data.labels), seed), seed, batch_size)
        self.data_name = data.name
        self.items = as_input(data.items)
        self.labels = torch.from_numpy(np.unique(data.labels, return_inverse=True)[1].reshape(-1))
        self.class_names = np.asarray(data.labels).astype(str)
        self.query = None if data.query is None else np.asarray(data.query, dtype=bool)
        pictures = data.pictures if data.pictures is not None else data.items
        self.pictures = pictures if pictures.dtype == np.uint8 else None
        train = self.labels[self.index["train"]]
        classes = min(self.batch_size // 4, len(set(train.tolist())))
        self.sampler = BalancedBatchSampler(train, classes, self.batch_size // classes, seed=seed)

    @classmethod
    def load(cls, data: str | Path | None = None, seed: int = 0, batch_size: int = BATCH_SIZE) -> Retrieval:
        """The task on the data at a path, or on the digits inside scikit-learn."""
        return cls(_digits(seed) if data is None else read_data(data, LAYOUTS, cls.name), seed, batch_size)

    def batches(self, epoch: int) -> Iterator[Array]:
        """Batches of equally many items, four or more, of each of their classes."""
        train = self.index["train"].numpy()
        self.sampler.set_epoch(epoch)
        for batch in self.sampler:
            yield train[batch]

    def model(self) -> nn.Module:
        """A small convolutional net, or one hidden layer on features."""
        return item_net(self.items, self.index["train"], width=64)

    def forward(self, model: nn.Module, batch: Array) -> dict[str, Callable[[Loss], Tensor]]:
        """Every item of the batch against the others."""
        where = torch.from_numpy(batch).to(self.items.device)
        embeddings, labels = model(self.items[where]), self.labels[where]
        return {
            "relevant": lambda loss: EmbeddingLoss(loss)(embeddings, labels),
            "embeddings": lambda loss: loss(embeddings, labels),
        }

    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> Evaluation:
        """Exact metrics over all items of the split, and the details of the class docstring."""
        index = self.index[split]
        embeddings = encode(model, self.items[index.to(self.items.device)])
        labels = self.labels[index].to(embeddings.device)
        scores, relevant = pairwise_scores(embeddings, labels)
        asks = relevant.any(-1)
        if self.query is not None:
            asks &= torch.from_numpy(self.query[index.numpy()]).to(asks.device)
        scores, relevant = scores[asks], relevant[asks]
        ap = metrics.average_precision(scores, relevant)
        found = {
            "mAP": ap,
            "mAP@R": metrics.map_at_r(scores, relevant),
            "R-precision": metrics.r_precision(scores, relevant),
            **{f"R@{k}": metrics.hit_rate_at_k(scores, relevant, k=k) for k in (1, 10, 100)},
        }
        result = {name: values.mean().item() for name, values in found.items()}
        if not details:
            return Evaluation(result)
        queries = index[asks.cpu()]
        return Evaluation(result, self._details(embeddings, index, queries, scores, relevant, ap))

    def _details(
        self, embeddings: Tensor, index: Tensor, queries: Tensor, scores: Tensor, relevant: Tensor, ap: Tensor
    ) -> dict[str, Array]:
        rng = np.random.default_rng(0)
        few = rng.permutation(len(queries))[:500]
        quantized = [1 - quantized_ap_loss(scores[i], relevant[i]).item() for i in few]
        some = np.sort(rng.permutation(len(index))[:300])
        result: dict[str, Array] = {
            "ap": ap.cpu().numpy()[few],
            "ap_quantized": np.array(quantized, dtype=np.float32),
            "embeddings": embeddings[some].half().cpu().numpy(),
            "embedding_labels": self.class_names[index.numpy()[some]],
        }
        if self.pictures is None:
            return result
        random = rng.permutation(len(queries))[:8]
        worst = ap.argsort(stable=True)[:8].cpu().numpy()
        rows = np.concatenate([random, worst])
        best = scores[rows].topk(min(10, scores.shape[1])).indices.cpu()  # columns without the query itself
        positions = torch.searchsorted(index, queries[rows]).unsqueeze(-1)
        found = index[best + (best >= positions).long()]
        return result | {
            "strip_queries": self.pictures[queries[rows].numpy()],
            "strip_pictures": self.pictures[found.numpy()],
            "strip_right": relevant.cpu()[torch.from_numpy(rows)].gather(1, best).numpy(),
            "strip_kind": np.array(["random"] * len(random) + ["worst"] * len(worst)),
            "strip_ap": ap.cpu().numpy()[rows],
            "thumbnails": self.pictures[index.numpy()[some]],
        }


def _digits(seed: int) -> RetrievalData:
    """The digits inside scikit-learn; of the ten classes 5 are for training, 2 for validation and 3 for the test."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng([seed, 1]).permutation(10)
    split = np.array(["train"] * 5 + ["val"] * 2 + ["test"] * 3)[np.argsort(order)]
    pictures = (255 - digits.images * (255 / 16)).round().astype(np.uint8)
    return RetrievalData("scikit-learn digits, 3 of 10 classes unseen", pictures, digits.target, split[digits.target])


# ---- Omniglot --------------------------------------------------------------------------------------------------------

_OMNIGLOT = ("images_background_small1", "images_background_small2")


def _omniglot(path: Path) -> RetrievalData:
    """Small1 for training; of small2, the alphabets that small1 does not have, for the test."""
    from PIL import Image

    pictures, labels, alphabets, parts = [], [], [], []
    for part in _OMNIGLOT:
        for name, content in _files(path, part):
            alphabet, character = name.parts[-3], name.parts[-2]
            # ink wins: 105 pixels to 28 by the mean leaves thin strokes pale, but whole
            picture = Image.open(io.BytesIO(content)).convert("L").resize((28, 28), Image.Resampling.BOX)
            pictures.append(np.asarray(picture))
            labels.append(f"{alphabet}/{character}")
            alphabets.append(alphabet)
            parts.append(part)
    if len(set(parts)) < 2:
        raise ValueError(f"`data` {path} must hold pictures in both {' and '.join(_OMNIGLOT)}, got {set(parts)}.")
    train = np.array(parts) == _OMNIGLOT[0]
    seen = np.isin(alphabets, np.array(alphabets)[train])
    keep = train | ~seen
    split = np.where(train, "train", "test")
    return RetrievalData(
        "Omniglot: small1, tested on the unseen alphabets of small2",
        np.stack(pictures)[keep],
        np.array(labels)[keep],
        split[keep],
    )


def _files(path: Path, part: str) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Name and bytes of the pictures of `part`, in a zip or a folder."""
    if (path / part).is_dir():
        for file in sorted((path / part).rglob("*.png")):
            yield PurePosixPath(file.relative_to(path).as_posix()), file.read_bytes()
        return
    with zipfile.ZipFile(path / f"{part}.zip") as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".png") and not name.startswith("__MACOSX"):
                yield PurePosixPath(name), archive.read(name)


def _is_omniglot(path: Path) -> bool:
    return all((path / part).is_dir() or (path / f"{part}.zip").is_file() for part in _OMNIGLOT)


# ---- small pictures as JPEG in one npz -------------------------------------------------------------------------------


def _jpegs(path: Path) -> RetrievalData:
    """JPEG bytes end to end with offsets; whole classes are held out, drawn once and for all."""
    from PIL import Image

    file = _jpeg_files(path)[0]
    with np.load(file) as arrays:
        content, offsets, labels = arrays["jpeg"].tobytes(), arrays["offset"], arrays["label"]
    ends = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    opened = (Image.open(io.BytesIO(content[start:end])).convert("RGB") for start, end in ends)
    pictures = np.stack([np.asarray(picture.resize((32, 32), Image.Resampling.BOX)) for picture in opened])
    classes = np.unique(labels)
    order = np.random.default_rng(0).permutation(len(classes))
    held = max(2, round(0.3 * len(classes)))
    split = np.where(np.isin(labels, classes[order[:held]]), "test", "train")
    return RetrievalData(f"{file.stem}, {held} of {len(classes)} classes unseen", pictures, labels, split)


def _jpeg_files(path: Path) -> list[Path]:
    return [file for file in npz_files(path) if {"jpeg", "offset", "label"} <= npz_names(file)]


LAYOUTS: dict[str, Layout] = {
    "omniglot": Layout(
        f"a folder with {_OMNIGLOT[0]} and {_OMNIGLOT[1]} (folders or .zip), github.com/brendenlake/omniglot",
        _is_omniglot,
        _omniglot,
    ),
    "jpeg npz": Layout(
        "an .npz of jpeg (bytes end to end, uint8), offset (n + 1) and label (n)",
        lambda path: bool(_jpeg_files(path)),
        _jpegs,
    ),
}
"""What `--data` may be."""
