"""Multi-label classification: every label ranks the examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sodeep import metrics
from sodeep._extras import needed
from sodeep.tasks.base import (
    BATCH_SIZE,
    Array,
    Evaluation,
    Layout,
    Loss,
    MultiLabelData,
    Task,
    given_split,
    read_data,
)
from sodeep.tasks.encoders import FeatureNet, TextNet, as_input, encode, item_net, ngram_table
from sodeep.tasks.layouts import MULTI_LABEL
from sodeep.tasks.tables import read_text
from sodeep.tasks.texts import TEXT_FEATURES, check_text_features, wordllama_vectors


class MultiLabel(Task):
    """Scores (examples, labels); a loss sees a list for each label, of the 100 examples of a batch.

    Texts are a learned sum over tf-idf of words and word pairs; with `text_features` "wordllama", static vectors.

    Metrics: "mAP", the mean over the labels of average precision over the examples of the split; "AP micro", of all
    scores as one list. A label without an example in the split is left out.

    Details, of at most 2,000 examples of the test split: ``scores`` float16 (n, C), ``relevant`` bool (n, C),
    ``known`` bool (n, C), ``label_names`` (C,); of the whole split ``ap`` (C,).
    """

    name = "multi-label"
    metrics = {"mAP": True, "AP micro": True}  # noqa: RUF012
    headline = "mAP"
    baseline = "bce"
    losses: ClassVar[tuple[str, ...]] = (
        "bce",
        "bce+map:laplace",
        "bce+map:sigmoid",
        "bce+map:blackbox",
        "bce+map:set",
        "bce+smooth-ap",
        "map:laplace",
    )
    accepts = ("relevant",)
    options: ClassVar[tuple[str, ...]] = ("text_features",)
    epochs = 10
    rates = (2e-2, 5e-2)
    epsilon = 1e-2  # else n-grams seen a few times move as far as those seen in every batch, and are learned by heart

    def __init__(
        self,
        data: MultiLabelData,
        seed: int = 0,
        batch_size: int = BATCH_SIZE,
        train_share: float = 1.0,
        text_features: str | None = None,
    ) -> None:
        split = given_split(data.split, len(data.labels), seed)
        super().__init__(data, split, seed, batch_size, train_share)
        self.labels = torch.from_numpy(np.asarray(data.labels, dtype=bool))
        self.known = torch.ones_like(self.labels) if data.known is None else torch.from_numpy(np.asarray(data.known))
        self.label_names = list(data.label_names)
        kind = check_text_features(text_features, data.texts, data.name)
        if data.texts is not None and kind == "wordllama":
            self.inputs = torch.from_numpy(wordllama_vectors(data.texts))
            self.data_name += f", {TEXT_FEATURES[kind]}"
        elif data.texts is not None:
            self.inputs = ngram_table(data.texts, self.index["train"].numpy(), "word")
        else:
            self.inputs = as_input(np.asarray(data.items if data.features is None else data.features))

    @classmethod
    def load(
        cls,
        data: str | Path | None = None,
        seed: int = 0,
        batch_size: int = BATCH_SIZE,
        train_share: float = 1.0,
        text_features: str | None = None,
    ) -> MultiLabel:
        """The task on the data at a path, or on scikit-learn's multilabel generator drawn with the seed."""
        found = _generated(seed) if data is None else read_data(data, LAYOUTS, cls.name)
        return cls(found, seed, batch_size, train_share, text_features)

    def model(self) -> nn.Module:
        """A linear layer on words and word pairs, a small convolutional net, or one hidden layer on features."""
        width = self.labels.shape[1]
        if self.inputs.dtype == torch.int32:
            return TextNet(self.inputs[self.index["train"]], width)
        if self.inputs.dtype == torch.uint8:
            return item_net(self.inputs, self.index["train"], width)
        return FeatureNet(self.inputs[self.index["train"]], width, dropout=0.2)

    def forward(self, model: nn.Module, batch: Array) -> dict[str, Callable[[Loss], Tensor]]:
        """A list for each label, of the examples of the batch."""
        where = torch.from_numpy(batch).to(self.inputs.device)
        scores, relevant, known = model(self.inputs[where]).T, self.labels[where].T, self.known[where].T
        mask = {} if bool(known.all()) else {"where": known}
        return {"relevant": lambda loss: loss(scores, relevant, **mask)}

    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> Evaluation:
        """Exact metrics over the split, and the details of the class docstring."""
        where = self.index[split].to(self.inputs.device)
        scores, relevant, known = encode(model, self.inputs[where]), self.labels[where], self.known[where]
        some = (relevant & known).any(0)
        ap = scores.new_full(some.shape, torch.nan)
        ap[some] = metrics.average_precision(scores.T[some], relevant.T[some], where=known.T[some])
        micro = metrics.average_precision(scores.flatten(), relevant.flatten(), where=known.flatten())
        found = {"mAP": ap.nanmean().item(), "AP micro": micro.item()}
        if not details:
            return Evaluation(found)
        return Evaluation(
            found,
            {
                "ap": ap.cpu().numpy(),
                "scores": scores[:2000].half().cpu().numpy(),
                "relevant": relevant[:2000].cpu().numpy(),
                "known": known[:2000].cpu().numpy(),
                "label_names": np.array(self.label_names),
            },
        )


def _generated(seed: int, n: int = 3000, classes: int = 12) -> MultiLabelData:
    """scikit-learn's multilabel generator: bags of words of as many topics as a document has labels."""
    with needed("sklearn", "The multi-label task without data of your own (--data)"):
        from sklearn.datasets import make_multilabel_classification

    features, labels = make_multilabel_classification(
        n, n_features=40, n_classes=classes, n_labels=2, length=25, random_state=seed
    )
    names = [f"label {i}" for i in range(classes)]
    return MultiLabelData(
        "scikit-learn's multilabel generator (no real data)",
        labels.astype(bool),
        names,
        features=features.astype(np.float32),
    )


# ---- GoEmotions ------------------------------------------------------------------------------------------------------

_TABLES = {"train": "train.tsv", "val": "dev.tsv", "test": "test.tsv"}


def _goemotions(path: Path) -> MultiLabelData:
    """Comments with 28 emotions; rows of text, numbers of labels, id."""
    names = read_text(path / "labels.txt").split()
    texts, labels, split = [], [], []
    for part, table in _TABLES.items():
        for number, line in enumerate(read_text(path / table).splitlines(), 1):
            fields = line.split("\t")
            try:
                own = [int(label) for label in fields[1].split(",")]
                labels.append(np.bincount(own, minlength=len(names)).astype(bool))
            except (IndexError, ValueError):
                raise ValueError(
                    f"`data` {path / table} must hold a text, label numbers and an id in each line, "
                    f"got {line[:60]!r} in line {number}."
                ) from None
            if len(labels[-1]) != len(names):
                raise ValueError(
                    f"`data` {path / table} must hold label numbers below {len(names)}, the lines of labels.txt, "
                    f"got {max(own)} in line {number}."
                )
            texts.append(fields[0])
            split.append(part)
    return MultiLabelData("GoEmotions", np.stack(labels), names, texts=texts, split=np.array(split))


LAYOUTS: dict[str, Layout] = {
    "goemotions": Layout(
        "a folder with labels.txt, train.tsv, dev.tsv and test.tsv (text, label numbers, id), "
        "github.com/google-research/google-research/tree/master/goemotions",
        lambda path: all((path / name).is_file() for name in (*_TABLES.values(), "labels.txt")),
        _goemotions,
    ),
    **MULTI_LABEL,
}
"""What `--data` may be."""
