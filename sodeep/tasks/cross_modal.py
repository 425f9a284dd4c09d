"""Cross-modal retrieval: images retrieve their captions, captions their images."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from sodeep import metrics
from sodeep._core.ties import tie_equal_rows
from sodeep.datasets.captions import CROSS_MODAL
from sodeep.datasets.generated import shapes
from sodeep.datasets.image_features import pretrained_images
from sodeep.datasets.splits import with_validation
from sodeep.datasets.texts import TEXT_FEATURES, static_vectors
from sodeep.datasets.types import Array, CrossModalData
from sodeep.losses import CrossModalLoss, quantized_ap_loss
from sodeep.tasks.base import Loss, Task, TaskMetrics
from sodeep.tasks.encoders import FeatureNet, FineTuned, TextNet, as_input, encode, item_net, ngram_table
from sodeep.tasks.semantics import TEXT_SCORES, SemanticScores

_ASP = {"overlap": "ASP", **{name: f"ASP {name}" for name in TEXT_SCORES}}
"""Semantic score -> the metric that takes it as relevance."""


class TwoTowers(nn.Module):
    """An encoder for images and one for captions, into one space."""

    def __init__(self, images: nn.Module, captions: nn.Module) -> None:
        super().__init__()
        self.images = images
        self.captions = captions


class CrossModal(Task):
    """Images and captions compared by cosine. A batch holds 100 images and one caption of each.

    Captions in words are a learned sum over tf-idf of character n-grams; with `text_features` "wordllama", static
    vectors go through a hidden layer in its place. `image_features` and `finetune` are those of `Retrieval`.

    A loss that takes semantic scores gets graded relevance in place of pairs, 1 for an image and its own caption, and
    for others the score that `semantic` names: "overlap" of the codes (keywords, object classes) of two images,
    Jaccard's index; or "cider", "bleu" or "rouge-l" of all their captions (`sodeep.tasks.semantics`). By default it is
    the first of these that the data have. Other losses and all metrics are the same for every choice.

    Metrics, "i2t" from images to captions and "t2i" back: R@k, the hit rates among the first 1, 5 and 10; the median
    rank of the first right one; ASP, how well the order agrees with that of the semantic scores (Li et al., NeurIPS
    2022), "ASP" by overlap and "ASP cider" and so on by captions; PMRP (plausible matches are those whose codes differ
    in at most 0, 1, 2 places; Chun et al., CVPR 2021). Those by codes or captions are left out where there are no
    codes, or no texts. "R@1 mean" is that of both ways.

    Details: ``ap``, ``ap_quantized`` (Q,) of the images as queries; ``rank_i2t``, ``rank_t2i``: rank of the first
    right one of each query. Of S = 16 captions as queries (8 at random, 8 of the worst): ``strip_texts`` (S,) of str,
    ``strip_images`` uint8 (S, 10, H, W[, 3]), ``strip_right`` bool (S, 10), ``strip_kind`` (S,) "random" or "worst",
    ``strip_ap`` (S,). ``embeddings`` float16 (up to 300, d), ``embedding_labels``, ``thumbnails``: of images.
    Strips and thumbnails are left out where there are no images, or no texts.
    """

    name = "cross-modal"
    metrics = {  # noqa: RUF012
        "R@1 mean": True,
        **{f"{way} R@{k}": True for way in ("i2t", "t2i") for k in (1, 5, 10)},
        "i2t median rank": False,
        "t2i median rank": False,
        **{f"{way} {name}": True for name in _ASP.values() for way in ("i2t", "t2i")},
        "i2t PMRP": True,
        "t2i PMRP": True,
    }
    primary_metric = "R@1 mean"
    baseline = "triplet-hard"
    losses = ("triplet-hard", "nt-xent", "smooth-ap", "asp", "triplet-hard+asp", "recall:laplace", "recall:set")
    accepts = ("relevant", "semantic")
    options = ("semantic", "text_features", "image_features", "finetune")
    epochs = 30
    learning_rates = (1e-3, 8e-3)
    layouts = CROSS_MODAL
    tensors = ("items", "owner", "captions", "codes")
    generated = staticmethod(shapes)

    def __init__(
        self,
        data: CrossModalData,
        seed: int = 0,
        *,
        semantic: str | None = None,
        text_features: str | None = None,
        image_features: str | None = None,
        finetune: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(data, seed, **options)
        self.pretrained = pretrained_images(image_features, data, finetune)
        if self.pretrained is not None:
            self.data_name += f", {self.pretrained.title}"
        self.items = as_input(data.items) if self.pretrained is None else self.pretrained.features
        self.owner = torch.from_numpy(np.asarray(data.owner, dtype=np.int64))
        self.texts = None if isinstance(data.captions, np.ndarray) else list(data.captions)
        vectors = static_vectors(text_features, self.texts, data.name)
        if isinstance(data.captions, np.ndarray):
            self.captions = as_input(data.captions)
        elif vectors is not None:
            self.captions = torch.from_numpy(vectors)
            self.data_name += f", {TEXT_FEATURES['wordllama']}"
        else:
            train = torch.isin(self.owner, self.index["train"]).nonzero().squeeze(1).numpy()
            self.captions = ngram_table(data.captions, train, "char", least=2)
        self.codes: Any = None if data.codes is None else torch.from_numpy(np.asarray(data.codes, dtype=bool))
        self.text_scores: Any = None if self.texts is None else SemanticScores(self.texts, self.owner, data.languages)
        self.semantics = ("overlap",) * (self.codes is not None) + (*TEXT_SCORES,) * (self.texts is not None)
        self.semantic = next(iter(self.semantics), None) if semantic is None else semantic
        if semantic is not None and semantic not in self.semantics:
            raise ValueError(
                f"`semantic` must be a score that the data have ({', '.join(self.semantics) or 'none'}), got "
                f"{semantic!r}. overlap needs codes; {', '.join(TEXT_SCORES)} need captions as texts."
            )
        if self.semantic != next(iter(self.semantics), None):
            self.data_name += f", semantic scores by {self.semantic}"
        self.tables: dict[tuple[str, str], Tensor] = {}
        images = data.images if data.images is not None else data.items
        self.images = images if images.dtype == np.uint8 else None
        counts = torch.bincount(self.owner, minlength=len(self.items))
        self.captions_of = np.split(self.owner.argsort(stable=True).numpy(), counts.cumsum(0)[:-1].numpy())

    @classmethod
    def split_of(cls, data: CrossModalData, seed: int) -> Array:
        """That of the images."""
        return with_validation(np.asarray(data.split), seed)

    def lacks(self, signature: str) -> str | None:
        """Graded relevance, where there are neither codes nor captions as texts: only pairs are left to train on."""
        if signature != "semantic" or self.semantic is not None:
            return None
        return (
            "graded relevance, which these data do not have. Add codes or classes of the images to the npz "
            "(<split>_codes, <split>_labels), or leave that loss out"
        )

    def batches(self, epoch: int) -> Iterator[Array]:
        """Pairs (B, 2) of an image and one of its captions; every image once an epoch."""
        rng = np.random.default_rng([self.seed, epoch, 1])
        for images in super().batches(epoch):
            captions = [rng.choice(self.captions_of[i]) for i in images]
            yield np.stack([images, captions], axis=1)

    def model(self) -> TwoTowers:
        """A small convolutional net and a linear layer on character n-grams, or hidden layers on features."""
        train = self.index["train"]
        training = self.captions[torch.isin(self.owner, train.to(self.owner.device))]
        captions = FeatureNet(training, width=64) if training.is_floating_point() else TextNet(training, width=64)
        return TwoTowers(item_net(self.items, train, width=64), captions)

    def fine_tuning(self, model: nn.Module) -> tuple[Task, nn.Module] | None:
        """The blocks of the pretrained network that `finetune` asked for, and the encoder of images on top."""
        if self.pretrained is None or self.pretrained.last is None:
            return None
        blocks, activations = self.pretrained.last
        task, towers = copy.copy(self), cast(TwoTowers, model)
        task.items = activations.to(self.items.device)
        return task, TwoTowers(FineTuned(blocks, towers.images), towers.captions)

    def forward(self, model: nn.Module, batch: Array) -> dict[str, Callable[[Loss], Tensor]]:
        """The mean of both directions, images to captions and back."""
        images, captions = torch.from_numpy(batch).to(self.items.device).unbind(1)
        towers: Any = model
        x, y = towers.images(self.items[images]), towers.captions(self.captions[captions])
        return {
            "relevant": lambda loss: CrossModalLoss(loss)(x, y, self._relevance(images, captions)),
            "semantic": lambda loss: CrossModalLoss(loss)(x, y, self._graded(images, captions)),
        }

    def _relevance(self, images: Tensor, captions: Tensor) -> Tensor:
        return images.unsqueeze(1) == self.owner[captions].unsqueeze(0)

    def _graded(self, images: Tensor, captions: Tensor) -> Tensor:
        """Graded relevance of captions to images, in [0, 1], 1 for an image's own: what losses are trained on."""
        pairs = self._relevance(images, captions).float()
        if self.semantic is None:
            return pairs
        return torch.maximum(self._semantic(self.semantic, images, self.owner[captions]), pairs)

    def _semantic(self, name: str, images: Tensor, others: Tensor) -> Tensor:
        """Semantic scores of images (P,) with others (Q,), in [0, 1]."""
        if name != "overlap":
            return torch.from_numpy(self.text_scores(name, images.cpu(), others.cpu())).to(images.device)
        x, y = self.codes[images].float(), self.codes[others].float()
        both = x @ y.T
        jaccard: Tensor = both / (x.sum(1, keepdim=True) + y.sum(1) - both).clamp(min=1)
        return jaccard

    def _table(self, name: str, split: str) -> Tensor:
        """The semantic scores of every two images of a split, kept, since every evaluation needs them."""
        if (name, split) not in self.tables:
            images = self.index[split].to(self.owner.device)
            self.tables[name, split] = self._semantic(name, images, images)
        return self.tables[name, split]

    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> TaskMetrics:
        """Exact metrics of both directions over the split, and the details of the class docstring."""
        device = self.items.device
        towers: Any = model
        images = self.index[split].to(device)
        captions = torch.isin(self.owner, images).nonzero().squeeze(1)
        x, y = encode(towers.images, self.items[images]), encode(towers.captions, self.captions[captions])
        scores = tie_equal_rows(nn.functional.normalize(x) @ nn.functional.normalize(y).T, x, y)
        relevant = self._relevance(images, captions)
        values: dict[str, float] = {}
        ranks = {}
        for way, s, r in (("i2t", scores, relevant), ("t2i", scores.T, relevant.T)):
            values |= {f"{way} R@{k}": metrics.hit_rate_at_k(s, r, k=k).mean().item() for k in (1, 5, 10)}
            ranks[way] = metrics.median_rank(s, r)
            values[f"{way} median rank"] = ranks[way].median().item()
            if self.codes is not None:
                rows, columns = (images, self.owner[captions]) if way == "i2t" else (self.owner[captions], images)
                values[f"{way} PMRP"] = metrics.pmrp(s, self.codes[rows], self.codes[columns]).nanmean().item()
        place = torch.searchsorted(images, self.owner[captions])
        for name in self.semantics:
            graded = torch.maximum(self._table(name, split)[:, place], relevant.float())
            values[f"i2t {_ASP[name]}"] = metrics.asp(scores, graded).mean().item()
            values[f"t2i {_ASP[name]}"] = metrics.asp(scores.T, graded.T).mean().item()
        values["R@1 mean"] = (values["i2t R@1"] + values["t2i R@1"]) / 2
        values = {name: values[name] for name in self.metrics if name in values}
        if not details:
            return TaskMetrics(values)
        return TaskMetrics(values, self._details(x, images, captions, scores, relevant, ranks))

    def _details(
        self,
        embeddings: Tensor,
        images: Tensor,
        captions: Tensor,
        scores: Tensor,
        relevant: Tensor,
        ranks: dict[str, Tensor],
    ) -> dict[str, Array]:
        lists = zip(scores, relevant, strict=True)
        result: dict[str, Array] = {
            "ap": metrics.average_precision(scores, relevant).cpu().numpy(),
            "ap_quantized": np.array([1 - quantized_ap_loss(s, r).item() for s, r in lists], dtype=np.float32),
            "rank_i2t": ranks["i2t"].cpu().numpy(),
            "rank_t2i": ranks["t2i"].cpu().numpy(),
        }
        if self.images is None or self.texts is None:
            return result
        back = scores.T.contiguous()
        ap = metrics.average_precision(back, relevant.T.contiguous())
        rng = np.random.default_rng(0)
        random = rng.permutation(len(captions))[:8]
        rows = np.concatenate([random, ap.argsort(stable=True)[:8].cpu().numpy()])
        best = back[rows].topk(min(10, len(images))).indices
        some = np.sort(rng.permutation(len(images))[:300])
        where = images.cpu().numpy()
        first = [self.captions_of[i][0] for i in where[some]]
        return result | {
            "strip_texts": np.array([self.texts[i] for i in captions.cpu().numpy()[rows]]),
            "strip_images": self.images[images[best].cpu().numpy()],
            "strip_right": relevant.T[rows].gather(1, best).cpu().numpy(),
            "strip_kind": np.array(["random"] * len(random) + ["worst"] * (len(rows) - len(random))),
            "strip_ap": ap.cpu().numpy()[rows],
            "embeddings": embeddings[some].half().cpu().numpy(),
            "embedding_labels": np.array([self.texts[i] for i in first]),
            "thumbnails": self.images[where[some]],
        }
