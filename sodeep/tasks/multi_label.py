"""Multi-label classification: every label ranks the examples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sodeep import metrics
from sodeep._core.search import Range, Ranges
from sodeep.datasets.generated import topics
from sodeep.datasets.image_features import pretrained_images
from sodeep.datasets.image_files import inputs_of, read_ahead
from sodeep.datasets.layouts import Layout
from sodeep.datasets.multi_label import MULTI_LABEL
from sodeep.datasets.splits import given_split
from sodeep.datasets.texts import TEXT_FEATURES, static_vectors
from sodeep.datasets.types import Array, MultiLabelData
from sodeep.tasks.base import Loss, Task, TaskMetrics
from sodeep.tasks.encoders import (
    PENALTY,
    FeatureNet,
    FineTuned,
    TextNet,
    as_input,
    encode,
    item_net,
    ngram_table,
    ridge,
)
from sodeep.tasks.own_encoder import Build, Headed, own_encoder


class MultiLabel(Task):
    """Scores (examples, labels); a loss sees a list for each label, of the 100 examples of a batch.

    Texts are a learned sum over tf-idf of words and word pairs; with `text_features` "wordllama", static vectors.
    `image_features` and `finetune` are those of `Retrieval`, and so are `encoder` (of images, texts or features) and
    its options; a linear layer makes the scores of its vectors.

    Metrics: "mAP", the mean over the labels of average precision over the examples of the split; "AP micro", of all
    scores as one list. A label without an example in the split is left out.

    Details, of at most 2,000 examples of the test split: ``scores`` float16 (n, C), ``relevant`` bool (n, C),
    ``known`` bool (n, C), ``label_names`` (C,); of the whole split ``ap`` (C,).
    """

    name = "multi-label"
    metrics = {"mAP": True, "AP micro": True}  # noqa: RUF012
    primary_metric = "mAP"
    baseline = "bce"
    losses: ClassVar[tuple[str, ...]] = (
        "bce",
        "bce+map:laplace",
        "bce+map:set",
        "bce+smooth-ap",
        "bce,bce",
        "bce,bce+map:laplace",
        "map:laplace",
        "ridge",
    )
    accepts = ("relevant",)
    methods: ClassVar[Mapping[str, Ranges]] = {**Task.methods, "ridge": {"penalty": PENALTY}}
    options: ClassVar[tuple[str, ...]] = (
        "text_features",
        "image_features",
        "finetune",
        "encoder",
        "chunk_size",
        "precision",
        "workers",
    )
    max_steps = 5000
    validate_every = 100
    ranges: ClassVar[Ranges] = {"lr": Range(3e-3, 2e-1, 2e-2), "weight_decay": Range(1e-4, 0.3, 1e-2)}
    layouts: ClassVar[Mapping[str, Layout]] = MULTI_LABEL
    tensors = ("inputs", "labels", "known")
    generated = staticmethod(topics)
    epsilon = 1e-2  # else n-grams seen a few times move as far as those seen in every batch, and are memorised

    def __init__(
        self,
        data: MultiLabelData,
        seed: int = 0,
        *,
        text_features: str | None = None,
        image_features: str | None = None,
        finetune: int | None = None,
        encoder: str | Build | None = None,
        chunk_size: int | None = None,
        precision: str | None = None,
        workers: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(data, seed, **options)
        self.labels = torch.from_numpy(np.asarray(data.labels, dtype=bool))
        self.known = torch.ones_like(self.labels) if data.known is None else torch.from_numpy(np.asarray(data.known))
        self.label_names = list(data.label_names)
        vectors = static_vectors(text_features, data.texts, data.name)
        self.encoder = own_encoder(
            encoder, image_features, chunk_size, precision if finetune is None else None, workers
        )
        self.pretrained = pretrained_images(image_features, data, finetune, precision)
        self.inputs: Any
        if self.pretrained is not None:
            self.inputs = self.pretrained.features
            self.data_name += f", {self.pretrained.title}"
        elif vectors is not None:
            self.inputs = torch.from_numpy(vectors)
            self.data_name += f", {TEXT_FEATURES['wordllama']}"
        elif data.texts is not None:
            self.inputs = ngram_table(data.texts, self.index["train"].numpy(), "word")
        else:
            items = np.asarray(data.items if data.features is None else data.features)
            own = self.encoder
            self.inputs = as_input(items) if own is None else own.inputs(items, data.files, data.name)
        if self.encoder is not None:
            if data.texts is not None:
                self.inputs = self.encoder.text_inputs(data.texts, self.inputs, data.name)
            self.data_name += f", {self.encoder.title}"

    @classmethod
    def split_of(cls, data: MultiLabelData, seed: int) -> Array:
        """The split of the data, or a drawn one."""
        return given_split(data.split, len(data.labels), seed)

    def batches(self, epoch: int) -> Iterator[Array]:
        """Full batches of a shuffle, as of `Task`."""
        return read_ahead(self.inputs, super().batches(epoch), [self.seed, epoch])

    def model(self) -> nn.Module:
        """A linear layer on words and word pairs, a small convolutional net, one hidden layer on features; or yours."""
        width = self.labels.shape[1]
        if self.encoder is not None:
            return Headed(self.encoder.model(), self.encoder.width, width)
        if self.inputs.dtype == torch.int32:
            return TextNet(self.inputs[self.index["train"]], width)
        if self.inputs.dtype == torch.uint8:
            return item_net(self.inputs, self.index["train"], width)
        return FeatureNet(self.inputs[self.index["train"]], width, dropout=0.2)

    def lacks(self, needed: str) -> str | None:
        """Features for "ridge", where the inputs are n-grams or images."""
        if needed != "ridge" or (isinstance(self.inputs, Tensor) and self.inputs.is_floating_point()):
            return None
        return "features, and these data have texts or images; for texts add --text-features wordllama"

    def fit(self, method: str, **settings: Any) -> nn.Module:
        """Besides "untrained": "ridge" on standardised features, to 1 for a label and 0 without."""
        if method != "ridge":
            return super().fit(method)
        train = self.index["train"].to(self.inputs.device)
        return ridge(self.inputs[train], self.labels[train].float(), **settings)

    def fine_tuning(self, model: nn.Module) -> tuple[Task, nn.Module] | None:
        """The blocks of the pretrained network that `finetune` asked for, and `model` on top."""
        if self.pretrained is None or self.pretrained.last is None:
            return None
        blocks, activations = self.pretrained.last
        task = copy.copy(self)
        task.inputs = activations.to(self.inputs.device)
        return task, FineTuned(blocks, model, self.pretrained.precision)

    def forward(self, model: nn.Module, batch: Array) -> dict[str, Callable[[Loss], Tensor]]:
        """A list for each label, of the examples of the batch."""
        where = torch.from_numpy(batch).to(self.inputs.device)
        scores = model(inputs_of(self.inputs, batch, where)).T
        relevant, known = self.labels[where].T, self.known[where].T
        mask = {} if bool(known.all()) else {"where": known}
        return {"relevant": lambda loss: loss(scores, relevant, **mask)}

    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> TaskMetrics:
        """Exact metrics over the split, and the details of the class docstring."""
        where = self.index[split].to(self.inputs.device)
        scores, relevant, known = encode(model, self.inputs, where), self.labels[where], self.known[where]
        some = (relevant & known).any(0)
        ap = scores.new_full(some.shape, torch.nan)
        ap[some] = metrics.average_precision(scores.T[some], relevant.T[some], where=known.T[some])
        micro = metrics.average_precision(scores.flatten(), relevant.flatten(), where=known.flatten())
        values = {"mAP": ap.nanmean().item(), "AP micro": micro.item()}
        if not details:
            return TaskMetrics(values)
        return TaskMetrics(
            values,
            {
                "ap": ap.cpu().numpy(),
                "scores": scores[:2000].half().cpu().numpy(),
                "relevant": relevant[:2000].cpu().numpy(),
                "known": known[:2000].cpu().numpy(),
                "label_names": np.array(self.label_names),
            },
        )
