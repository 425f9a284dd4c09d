"""Retrieval: items of classes never seen in training retrieve the others of their class."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sodeep import metrics
from sodeep._core.search import Range
from sodeep.datasets.generated import characters
from sodeep.datasets.image_features import pretrained_images
from sodeep.datasets.image_files import inputs_of, read_ahead
from sodeep.datasets.retrieval import RETRIEVAL
from sodeep.datasets.revisited import PROTOCOLS
from sodeep.datasets.splits import split_classes
from sodeep.datasets.types import Array, RetrievalData
from sodeep.losses import EmbeddingLoss, pairwise_scores, quantized_ap_loss
from sodeep.samplers import BalancedBatchSampler
from sodeep.tasks.base import Loss, Task, TaskMetrics
from sodeep.tasks.encoders import AsGiven, FineTuned, encode, item_net
from sodeep.tasks.own_encoder import Build, image_inputs, own_encoder
from sodeep.tasks.revisited import REVISITED_METRICS, revisited_metrics


class Retrieval(Task):
    """Embeddings compared by cosine. Every item is a query for the others of its class, in its split.

    Where a benchmark has queries and a gallery, only these are the queries, and only the gallery is searched.

    With `image_features` "efficientnet-lite0", images are the features that this pretrained network gives, and the net
    is one for features; with `finetune` N, the last N blocks of the network are trained with it before the test, in
    `precision` "bfloat16" if asked for.

    With `encoder`, the net is yours (`sodeep.tasks.own_encoder`), run in chunks of `chunk_size` images and in
    `precision` "bfloat16" if asked for; `workers` are processes that read its images.

    On Revisited Oxford and Paris, whose queries have right images in place of classes, the metrics of the test are
    theirs (`sodeep.tasks.revisited`), "mAP easy" to "mP@10 hard"; "mAP" is that of the protocol medium by the step-wise
    sum of all other data sets, and arrays for figures follow that protocol. These benchmarks bring nothing to train on:
    without it an encoder can be evaluated, by default `AsGiven`, but no loss compared.

    Metrics: mean average precision; on the test split also MAP@R, R-precision and R@1, R@10 and R@100, the
    hit rates among the first 1, 10 and 100 (`hit_rate_at_k`, not `recall_at_k`).

    Details, of Q queries, S = 16 of them drawn (8 at random, the same for every loss and seed of a data set of one
    size; and the 8 of lowest average precision):

    * ``ap``, ``ap_quantized`` (up to 500,): average precision, and its quantised form, of QuantizedAPLoss (20 bins).
    * ``strip_queries`` uint8 (S, H, W[, 3]), ``strip_images`` uint8 (S, 10, H, W[, 3]): the query and the ten found
      first (fewer where there are fewer); ``strip_right`` bool (S, 10); ``strip_kind`` (S,) "random" or "worst";
      ``strip_ap`` (S,).
    * ``embeddings`` float16 (up to 300, d), ``embedding_labels``, ``thumbnails`` uint8: items of the test classes.

    Without images the arrays of images are left out.
    """

    name = "retrieval"
    metrics: ClassVar[dict[str, bool]] = dict.fromkeys(
        ("mAP", "mAP@R", "R-precision", "R@1", "R@10", "R@100", *REVISITED_METRICS), True
    )
    primary_metric = "mAP"
    baseline = "multi-similarity"
    losses = ("multi-similarity", "nt-xent", "triplet", "smooth-ap", "quantized-ap", "map:laplace", "raw", "untrained")
    accepts = ("relevant", "embeddings")
    options = ("image_features", "finetune", "encoder", "chunk_size", "precision", "workers")
    may_lack_training = True
    methods = {**Task.methods, "raw": {}}  # noqa: RUF012
    max_steps = 5000
    validate_every = 50
    ranges = {"lr": Range(2e-4, 2e-2, 2e-3)}  # noqa: RUF012
    layouts = RETRIEVAL
    tensors = ("items", "labels", "truth")
    generated = staticmethod(characters)

    def __init__(
        self,
        data: RetrievalData,
        seed: int = 0,
        *,
        image_features: str | None = None,
        finetune: int | None = None,
        encoder: str | Build | None = None,
        chunk_size: int | None = None,
        precision: str | None = None,
        workers: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(data, seed, **options)
        self.encoder = own_encoder(
            encoder, image_features, chunk_size, precision if finetune is None else None, workers
        )
        self.pretrained = pretrained_images(image_features, data, finetune, precision)
        self.items: Any
        self.items, title = image_inputs(data, self.encoder, self.pretrained)
        self.data_name += title
        self.labels = torch.from_numpy(np.unique(data.labels, return_inverse=True)[1].reshape(-1))
        self.class_names = np.asarray(data.labels).astype(str)
        self.query = None if data.query is None else np.asarray(data.query, dtype=bool)
        self.truth: Tensor | None = None if data.truth is None else torch.from_numpy(np.asarray(data.truth))
        for name in ("val", "test"):
            if not len(self.index[name]) or (name == "test" and self.truth is not None):
                continue
            queries, gallery = self._sides(name)
            labels = self.labels[self.index[name]]
            counts = torch.bincount(labels[gallery], minlength=int(labels.max()) + 1)[labels[queries]]
            if not bool((counts > gallery[queries].int()).any()):  # a query is not its own result
                raise ValueError(
                    f"`data` {data.name} must have a query in {name!r} with another item of its class to find, "
                    "got none. Have two items or more of a class there."
                )
        images = data.images if data.images is not None else data.items
        self.images = images if images.dtype == np.uint8 else None
        train = self.labels[self.index["train"]]
        if not len(train):  # nothing to train on
            return
        classes = min(self.batch_size // 4, len(set(train.tolist())))
        self.sampler = BalancedBatchSampler(train, classes, self.batch_size // classes, seed=seed)

    @classmethod
    def split_of(cls, data: RetrievalData, seed: int) -> Array:
        """The split of the data, with whole classes taken for validation."""
        return split_classes(np.asarray(data.split), np.asarray(data.labels), seed)

    def lacks(self, signature: str) -> str | None:
        """Items to train on, where all are of the test split."""
        if len(self.index["train"]):
            return None
        return (
            f"items to train on, which {self.data_name} does not have. Add those of other classes (with Revisited "
            "Oxford and Paris: a folder of images for each in train/, or train_features and train_labels in the npz). "
            "Without training, use sodeep.tasks.Retrieval.load(data).evaluate(encoder, 'test')"
        )

    def batches(self, epoch: int) -> Iterator[Array]:
        """Batches of equally many items, four or more, of each of their classes."""
        train = self.index["train"].numpy()
        self.sampler.set_epoch(epoch)
        batches = (train[batch] for batch in self.sampler)
        return read_ahead(self.items, batches, [self.seed, epoch])

    def model(self) -> nn.Module:
        """Yours; a small convolutional net, or one hidden layer on features; without items to train on, `AsGiven`."""
        if not len(self.index["train"]):
            return AsGiven()
        if self.encoder is not None:
            return self.encoder.model()
        return item_net(self.items, self.index["train"], width=64)

    def fit(self, method: str, **settings: Any) -> nn.Module:
        """Besides "untrained": "raw", the pixels or features themselves, by cosine."""
        return AsGiven() if method == "raw" else super().fit(method)

    def fine_tuning(self, model: nn.Module) -> tuple[Task, nn.Module] | None:
        """The blocks of the pretrained network that `finetune` asked for, and `model` on top."""
        if self.pretrained is None or self.pretrained.last is None:
            return None
        blocks, activations = self.pretrained.last
        task = copy.copy(self)
        task.items = activations.to(self.items.device)
        return task, FineTuned(blocks, model, self.pretrained.precision)

    def forward(self, model: nn.Module, batch: Array) -> dict[str, Callable[[Loss], Tensor]]:
        """Every item of the batch against the others."""
        where = torch.from_numpy(batch).to(self.items.device)
        embeddings, labels = model(inputs_of(self.items, batch, where)), self.labels[where]
        return {
            "relevant": lambda loss: EmbeddingLoss(loss)(embeddings, labels),
            "embeddings": lambda loss: loss(embeddings, labels),
        }

    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> TaskMetrics:
        """Exact metrics over all items of the split, and the details of the class docstring."""
        embeddings = encode(model, self.items, self.index[split])
        rows: list[Tensor] = []
        values: dict[str, list[Tensor]] = {name: [] for name in self.metrics}
        for chunk, scores, relevant, where in self._lists(embeddings, split):
            rows.append(chunk)
            values["mAP"].append(metrics.average_precision(scores, relevant, where=where))
            if (split != "test" and self.metric == "mAP") or self.truth is not None:
                continue  # all of them take longer than the steps between two looks at the validation split
            values["mAP@R"].append(metrics.map_at_r(scores, relevant, where=where))
            values["R-precision"].append(metrics.r_precision(scores, relevant, where=where))
            for k in (1, 10, 100):
                values[f"R@{k}"].append(metrics.hit_rate_at_k(scores, relevant, k=k, where=where))
        found = {name: torch.cat(parts).mean().item() for name, parts in values.items() if parts}
        if split == "test" and self.truth is not None:
            queries, gallery = (embeddings[mask.to(embeddings.device)] for mask in self._sides(split))
            scores, _ = pairwise_scores(queries, self.truth[0] == 1, gallery)
            found |= revisited_metrics(scores, self.truth)
        if not details:
            return TaskMetrics(found)
        return TaskMetrics(found, self._details(embeddings, split, torch.cat(rows), torch.cat(values["mAP"])))

    def _lists(
        self, embeddings: Tensor, split: str, rows: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """In chunks: queries (Q,) as rows of the split, with their scores, relevance and mask (Q, N) over the split.

        Where some items are no queries, these alone are the gallery; no item is in its own list. Queries without a
        relevant item are left out.
        """
        device = embeddings.device
        labels = self.labels[self.index[split].to(device)]
        queries, gallery = (mask.to(device) for mask in self._sides(split))
        rows = queries.nonzero().squeeze(1) if rows is None else rows
        everyone = torch.arange(len(labels), device=device)
        size = max(1, 2**24 // len(labels))
        for start in range(0, len(rows), size):
            chunk = rows[start : start + size]
            scores, relevant = pairwise_scores(embeddings[chunk], labels[chunk], embeddings, labels)
            where = gallery & (chunk.unsqueeze(1) != everyone)
            if split == "test" and self.truth is not None:
                grades = self.truth[PROTOCOLS.index("medium"), queries.cumsum(0)[chunk] - 1]
                relevant[:, gallery], where[:, gallery] = grades == 1, grades >= 0
            some = (relevant & where).any(-1)
            yield chunk[some], scores[some], relevant[some], where[some]

    def _sides(self, split: str) -> tuple[Tensor, Tensor]:
        """Which items are queries, and which are in the gallery: bool (N,) over the split."""
        queries = torch.ones(len(self.index[split]), dtype=torch.bool)
        if self.query is not None:
            queries = torch.from_numpy(self.query[self.index[split].numpy()])
        return queries, torch.ones_like(queries) if bool(queries.all()) else ~queries

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
        if self.images is None:
            return result
        random, worst = few[:8], ap.argsort(stable=True)[:8]
        shown = torch.cat([random, worst])
        _, scores, relevant, where = next(self._lists(embeddings, split, rows[shown]))
        best = scores.masked_fill(~where, -torch.inf).topk(min(10, int(where.sum(-1).amin()))).indices
        return result | {
            "strip_queries": self.images[index[rows[shown].cpu().numpy()]],
            "strip_images": self.images[index[best.cpu().numpy()]],
            "strip_right": relevant.gather(1, best).cpu().numpy(),
            "strip_kind": np.array(["random"] * len(random) + ["worst"] * len(worst)),
            "strip_ap": ap[shown].cpu().numpy(),
            "thumbnails": self.images[index[some]],
        }
