"""Retrieval: items of classes never seen in training find the others of their class."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor, nn

from sodeep import metrics
from sodeep._extras import needed
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
    left_behind,
    npz_files,
    npz_names,
    read_data,
    split_classes,
)
from sodeep.tasks.encoders import as_input, encode, item_net
from sodeep.tasks.images import read_pictures
from sodeep.tasks.layouts import RETRIEVAL


class Retrieval(Task):
    """Embeddings compared by cosine. Every item asks for the others of its class, in its split.

    Where a benchmark has queries and a gallery, its queries ask, and only the gallery is searched.

    Metrics: mean average precision; on the test split also MAP@R, R-precision and R@1, R@10 and R@100, the
    hit rates among the first 1, 10 and 100 (`hit_rate_at_k`, not `recall_at_k`).

    Details, of Q queries, S = 16 of them drawn (8 at random, the same for every loss and seed of a data set of one
    size; and the 8 of lowest average precision):

    * ``ap``, ``ap_quantized`` (up to 500,): average precision, and as QuantizedAPLoss sees it (20 bins).
    * ``strip_queries`` uint8 (S, H, W[, 3]), ``strip_pictures`` uint8 (S, 10, H, W[, 3]): the query and the ten found
      first (fewer where there are fewer); ``strip_right`` bool (S, 10); ``strip_kind`` (S,) "random" or "worst";
      ``strip_ap`` (S,).
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

    def __init__(
        self, data: RetrievalData, seed: int = 0, batch_size: int = BATCH_SIZE, train_share: float = 1.0
    ) -> None:
        split = split_classes(np.asarray(data.split), np.asarray(data.labels), seed)
        super().__init__(data, split, seed, batch_size, train_share)
        self.items = as_input(data.items)
        self.labels = torch.from_numpy(np.unique(data.labels, return_inverse=True)[1].reshape(-1))
        self.class_names = np.asarray(data.labels).astype(str)
        self.query = None if data.query is None else np.asarray(data.query, dtype=bool)
        for name in ("val", "test"):
            asks, found = self._sides(name)
            labels = self.labels[self.index[name]]
            counts = torch.bincount(labels[found], minlength=int(labels.max()) + 1)[labels[asks]]
            if not bool((counts > found[asks].int()).any()):  # a query is not its own result
                raise ValueError(
                    f"`data` {data.name} must have a query in {name!r} with another item of its class to find, "
                    "got none. Have two items or more of a class there."
                )
        pictures = data.pictures if data.pictures is not None else data.items
        self.pictures = pictures if pictures.dtype == np.uint8 else None
        train = self.labels[self.index["train"]]
        classes = min(self.batch_size // 4, len(set(train.tolist())))
        self.sampler = BalancedBatchSampler(train, classes, self.batch_size // classes, seed=seed)

    @classmethod
    def load(
        cls, data: str | Path | None = None, seed: int = 0, batch_size: int = BATCH_SIZE, train_share: float = 1.0
    ) -> Retrieval:
        """The task on the data at a path, or on the digits inside scikit-learn."""
        return cls(_digits(seed) if data is None else read_data(data, LAYOUTS, cls.name), seed, batch_size, train_share)

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
        embeddings = encode(model, self.items[self.index[split].to(self.items.device)])
        rows: list[Tensor] = []
        values: dict[str, list[Tensor]] = {name: [] for name in self.metrics}
        for chunk, scores, relevant, where in self._lists(embeddings, split):
            rows.append(chunk)
            values["mAP"].append(metrics.average_precision(scores, relevant, where=where))
            if split != "test":  # all of them take longer than the steps between two looks at the validation split
                continue
            values["mAP@R"].append(metrics.map_at_r(scores, relevant, where=where))
            values["R-precision"].append(metrics.r_precision(scores, relevant, where=where))
            for k in (1, 10, 100):
                values[f"R@{k}"].append(metrics.hit_rate_at_k(scores, relevant, k=k, where=where))
        found = {name: torch.cat(parts).mean().item() for name, parts in values.items() if parts}
        if not details:
            return Evaluation(found)
        return Evaluation(found, self._details(embeddings, split, torch.cat(rows), torch.cat(values["mAP"])))

    def _lists(
        self, embeddings: Tensor, split: str, rows: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """In chunks: rows (Q,) of the split that ask, with their scores, relevance and mask (Q, N) over the split.

        Where some do not ask, it is only those that are found; a row never finds itself. Without a relevant item a row
        is left out.
        """
        device = embeddings.device
        labels = self.labels[self.index[split].to(device)]
        asks, found = (mask.to(device) for mask in self._sides(split))
        rows = asks.nonzero().squeeze(1) if rows is None else rows
        everyone = torch.arange(len(labels), device=device)
        size = max(1, 2**24 // len(labels))
        for start in range(0, len(rows), size):
            chunk = rows[start : start + size]
            scores, relevant = pairwise_scores(embeddings[chunk], labels[chunk], embeddings, labels)
            where = found & (chunk.unsqueeze(1) != everyone)
            some = (relevant & where).any(-1)
            yield chunk[some], scores[some], relevant[some], where[some]

    def _sides(self, split: str) -> tuple[Tensor, Tensor]:
        """Who asks, and who can be found: bool (N,) over the split."""
        asks = torch.ones(len(self.index[split]), dtype=torch.bool)
        if self.query is not None:
            asks = torch.from_numpy(self.query[self.index[split].numpy()])
        return asks, torch.ones_like(asks) if bool(asks.all()) else ~asks

    def _details(self, embeddings: Tensor, split: str, rows: Tensor, ap: Tensor) -> dict[str, Array]:
        index = self.index[split].numpy()
        rng = np.random.default_rng(0)
        few = torch.from_numpy(rng.permutation(len(rows))[:500]).to(rows.device)
        quantized = [
            1 - quantized_ap_loss(s, r, where=w).item()
            for _, scores, relevant, where in self._lists(embeddings, split, rows[few])
            for s, r, w in zip(scores, relevant, where, strict=True)
        ]
        some = np.sort(rng.permutation(len(index))[:300])
        result: dict[str, Array] = {
            "ap": ap[few].cpu().numpy(),
            "ap_quantized": np.array(quantized, dtype=np.float32),
            "embeddings": embeddings[some].half().cpu().numpy(),
            "embedding_labels": self.class_names[index[some]],
        }
        if self.pictures is None:
            return result
        random, worst = few[:8], ap.argsort(stable=True)[:8]
        shown = torch.cat([random, worst])
        _, scores, relevant, where = next(self._lists(embeddings, split, rows[shown]))
        best = scores.masked_fill(~where, -torch.inf).topk(min(10, int(where.sum(-1).amin()))).indices
        return result | {
            "strip_queries": self.pictures[index[rows[shown].cpu().numpy()]],
            "strip_pictures": self.pictures[index[best.cpu().numpy()]],
            "strip_right": relevant.gather(1, best).cpu().numpy(),
            "strip_kind": np.array(["random"] * len(random) + ["worst"] * len(worst)),
            "strip_ap": ap[shown].cpu().numpy(),
            "thumbnails": self.pictures[index[some]],
        }


def _digits(seed: int) -> RetrievalData:
    """The digits inside scikit-learn; of the ten classes 4 are for training, 3 for validation and 3 for the test."""
    with needed("sklearn", "The retrieval task without data of your own (--data)"):
        from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng([seed, 1]).permutation(10)
    split = np.array(["train"] * 4 + ["val"] * 3 + ["test"] * 3)[np.argsort(order)]
    pictures = (255 - digits.images * (255 / 16)).round().astype(np.uint8)
    return RetrievalData("scikit-learn digits, 3 of 10 classes unseen", pictures, digits.target, split[digits.target])


# ---- Omniglot --------------------------------------------------------------------------------------------------------

_OMNIGLOT = ("images_background_small1", "images_background_small2")


def _omniglot(path: Path) -> RetrievalData:
    """Small1 for training; of small2, the alphabets that small1 does not have, for the test."""
    files, labels, alphabets, parts = [], [], [], []
    for part in _OMNIGLOT:
        for name, content in _files(path, part):
            alphabet, character = name.parts[-3], name.parts[-2]
            files.append((str(path / name), content))
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
        # ink wins: 105 pixels to 28 by the mean leaves thin strokes pale, but whole
        read_pictures(files, 28, grey=True)[keep],
        np.array(labels)[keep],
        split[keep],
    )


def _files(path: Path, part: str) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Name and bytes of the pictures of `part`, in a zip or a folder."""
    if (path / part).is_dir():
        for file in sorted((path / part).rglob("*.png")):
            place = PurePosixPath(file.relative_to(path).as_posix())
            if not any(map(left_behind, place.parts)):
                yield place, file.read_bytes()
        return
    with zipfile.ZipFile(path / f"{part}.zip") as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".png") and not any(map(left_behind, PurePosixPath(name).parts)):
                yield PurePosixPath(name), archive.read(name)


def _is_omniglot(path: Path) -> bool:
    return all((path / part).is_dir() or (path / f"{part}.zip").is_file() for part in _OMNIGLOT)


# ---- small pictures as JPEG in one npz -------------------------------------------------------------------------------


def _jpegs(path: Path) -> RetrievalData:
    """JPEG bytes end to end with offsets; whole classes are held out, drawn once and for all."""
    file = _jpeg_files(path)[0]
    with np.load(file) as arrays:
        content, offsets, labels = arrays["jpeg"].tobytes(), arrays["offset"], arrays["label"]
    ends = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    files = ((f"{file}, picture {i}", content[start:end]) for i, (start, end) in enumerate(ends))
    pictures = read_pictures(files, 32)
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
    **RETRIEVAL,
}
"""What `--data` may be."""
