"""Cross-modal retrieval: images retrieve their captions, captions their images."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from sodeep import metrics
from sodeep._core.checks import check_at_least
from sodeep._core.search import Range
from sodeep._core.ties import tie_equal_rows
from sodeep.datasets.captions import CROSS_MODAL, keep_captions
from sodeep.datasets.generated import shapes
from sodeep.datasets.image_features import pretrained_images
from sodeep.datasets.image_files import inputs_of, read_ahead
from sodeep.datasets.splits import with_validation
from sodeep.datasets.texts import TEXT_FEATURES, static_vectors
from sodeep.datasets.types import Array, CrossModalData
from sodeep.losses import CrossModalLoss, quantized_ap_loss
from sodeep.tasks.base import Loss, Task, TaskMetrics
from sodeep.tasks.encoders import FeatureNet, FineTuned, TextNet, as_input, encode, item_net, ngram_table
from sodeep.tasks.own_encoder import Build, image_inputs, own_encoders
from sodeep.tasks.semantics import TEXT_SCORES, SemanticScores

_ASP = {"overlap": "ASP", **{name: f"ASP {name}" for name in TEXT_SCORES}}
"""Semantic score -> the metric that takes it as relevance."""

_METRICS = {
    "R@1 mean": True,
    **{f"{way} R@{k}": True for way in ("i2t", "t2i") for k in (1, 5, 10)},
    "i2t median rank": False,
    "t2i median rank": False,
    **{f"{way} {name}": True for name in _ASP.values() for way in ("i2t", "t2i")},
    "i2t PMRP": True,
    "t2i PMRP": True,
}


class TwoTowers(nn.Module):
    """An encoder for images and one for captions, into one space."""

    def __init__(self, images: nn.Module, captions: nn.Module) -> None:
        super().__init__()
        self.images = images
        self.captions = captions


def _firsts(pairs: Array) -> Array:
    """Which pairs (P, 2) of an image and a caption are the first of their image, bool (P,)."""
    found: Array = np.diff(pairs[:, 0], prepend=-1) != 0
    return found


class CrossModal(Task):
    """Images and captions compared by cosine. A batch holds 100 images and one caption of each.

    With `captions_per_item` K, it holds K captions of each image, or all of one that has fewer, drawn without
    replacement. All are relevant to their image, which every named loss takes. The scores, and the memory of a loss
    with them, grow K times. A sorter for lists of 100 takes batches of at most 100 / K images.

    Captions in words are a learned sum over tf-idf of character n-grams; with `text_features` "wordllama", static
    vectors go through a hidden layer in its place. `image_features` and `finetune` are those of `Retrieval`, and so are
    `encoder`, of images, and its options. `text_encoder` is one of captions, of the same width; where only one of both
    is given, the small encoder on the other side gets its width.

    A loss that takes semantic scores gets graded relevance in place of pairs, 1 for an image and its own caption, and
    for others the score that `semantic` names: "overlap" of the codes (keywords, object classes) of two images,
    Jaccard's index; "class", 1 for two images of one class (or, without classes, of the same codes) and else 0; or
    "cider", "bleu" or "rouge-l" of all their captions, or the "mean" of the three (`sodeep.tasks.semantics`). By
    default it is the first of these that the data have. Other losses and all metrics are the same for every choice.

    `captions_kept` leaves so many captions of each training image, drawn with the seed; a smaller number keeps part of
    what a larger one does.

    Metrics, "i2t" from images to captions and "t2i" back: R@k, the hit rates among the first 1, 5 and 10; the median
    rank of the first right one; ASP, how well the order agrees with that of the semantic scores (Li et al., NeurIPS
    2022), "ASP" by overlap and "ASP cider" and so on by captions; PMRP (plausible matches are those whose codes differ
    in at most 0, 1, 2 places; Chun et al., CVPR 2021). ASP and PMRP are of the test split alone, unless settings are
    chosen by one of them, and left out where there are no codes, or no texts. "R@1 mean" is that of both ways. "ASP
    mean" is not the mean of three ASP, but that by the mean of the three scores, as in the paper.

    With `fold_size` there is a second value of each, "i2t R@1 in folds" and so on: the test images are cut, in their
    order, into folds of that size, the images and captions of a fold are searched by each other alone, and the value
    is the mean over the folds. Images left over are in no fold. Published figures on "COCO 1K" are those of 1,000.

    Details: ``ap``, ``ap_quantized`` (Q,) of the images as queries; ``rank_i2t``, ``rank_t2i``: rank of the first
    right one of each query. Of S = 16 captions as queries (8 at random, 8 of the worst): ``strip_texts`` (S,) of str,
    ``strip_images`` uint8 (S, 10, H, W[, 3]), ``strip_right`` bool (S, 10), ``strip_kind`` (S,) "random" or "worst",
    ``strip_ap`` (S,). ``embeddings`` float16 (up to 300, d), ``embedding_labels``, ``thumbnails``: of images.
    Strips and thumbnails are left out where there are no images, or no texts.
    """

    name = "cross-modal"
    metrics = {**_METRICS, **{f"{name} in folds": higher for name, higher in _METRICS.items()}}  # noqa: RUF012
    primary_metric = "R@1 mean"
    baseline = "triplet-hard"
    losses = (
        "triplet-hard",
        "triplet",
        "nt-xent",
        "smooth-ap",
        "triplet-hard+asp",
        "recall:laplace",
        "recall:set",
        "untrained",
    )
    accepts = ("relevant", "semantic")
    options = (
        "semantic",
        "text_features",
        "image_features",
        "finetune",
        "captions_per_item",
        "captions_kept",
        "fold_size",
        "encoder",
        "text_encoder",
        "chunk_size",
        "precision",
        "workers",
    )
    max_steps = 5000
    validate_every = 50
    ranges = {"lr": Range(2e-4, 3e-2, 3e-3)}  # noqa: RUF012
    layouts = CROSS_MODAL
    tensors = ("items", "owner", "captions", "codes", "classes")
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
        captions_per_item: int | None = None,
        captions_kept: int | None = None,
        fold_size: int | None = None,
        encoder: str | Build | None = None,
        text_encoder: str | Build | None = None,
        chunk_size: int | None = None,
        precision: str | None = None,
        workers: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(data, seed, **options)
        if captions_kept is not None:
            check_at_least(captions_kept, 1, "captions_kept")
            data = keep_captions(data, self.index["train"].numpy(), captions_kept, seed)
            self.data_name += f", up to {captions_kept} of each training image's captions"
        self.encoder, self.text_encoder = own_encoders(
            encoder, text_encoder, image_features, chunk_size, precision if finetune is None else None, workers
        )
        self.pretrained = pretrained_images(image_features, data, finetune, precision)
        self.items: Any
        self.items, title = image_inputs(data, self.encoder, self.pretrained)
        self.data_name += title
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
        if self.text_encoder is not None:
            self.captions = self.text_encoder.text_inputs(self.texts, self.captions, data.name)
            self.data_name += f", captions by {self.text_encoder.title}"
        widths = [own.width for own in (self.encoder, self.text_encoder) if own is not None]
        if len({*widths}) > 1:
            raise ValueError(
                f"`text_encoder` must give vectors as wide as those of `encoder`, got {widths[1]} and {widths[0]}. End "
                "one of them with a linear layer."
            )
        self.width = widths[0] if widths else 64
        self.codes: Any = None if data.codes is None else torch.from_numpy(np.asarray(data.codes, dtype=bool))
        self.text_scores: Any = None if self.texts is None else SemanticScores(self.texts, self.owner, data.languages)
        self.semantics = (
            *["overlap"] * (self.codes is not None),
            *["class"] * (self.codes is not None or data.classes is not None),
            *(TEXT_SCORES if self.texts is not None else ()),
        )
        self.semantic = next(iter(self.semantics), None) if semantic is None else semantic
        if semantic is not None and semantic not in self.semantics:
            raise ValueError(
                f"`semantic` must be a score that the data have ({', '.join(self.semantics) or 'none'}), got "
                f"{semantic!r}. overlap needs codes, class classes or codes; {', '.join(TEXT_SCORES)} need captions as "
                "texts."
            )
        self.classes: Any = self._classes(data) if self.semantic == "class" else None
        if self.semantic != next(iter(self.semantics), None):
            self.data_name += f", semantic scores by {self.semantic}"
        self.captions_per_item = (
            1 if captions_per_item is None else check_at_least(captions_per_item, 1, "captions_per_item")
        )
        if self.captions_per_item > 1:
            self.data_name += f", up to {captions_per_item} of each image's captions in a batch"
        self.fold_size = fold_size
        if fold_size is not None:
            check_at_least(fold_size, 2, "fold_size")
            if fold_size > len(self.index["test"]) // 2:
                raise ValueError(
                    f"`fold_size` must be at most half the test split, which has {len(self.index['test'])} images, got "
                    f"{fold_size}. Leave it out where the test split is one fold."
                )
            self.data_name += f", test folds of {fold_size}"
        self.tables: dict[tuple[str, str], Tensor] = {}
        images = data.images if data.images is not None else data.items
        self.images = images if images.dtype == np.uint8 else None
        counts = torch.bincount(self.owner, minlength=len(self.items))
        self.captions_of = np.split(self.owner.argsort(stable=True).numpy(), counts.cumsum(0)[:-1].numpy())
        bare = self.index["train"][counts[self.index["train"]] == 0].tolist()
        if bare:
            raise ValueError(f"`data` must have a caption for each training image, got none for image {bare[0]}.")

    @classmethod
    def split_of(cls, data: CrossModalData, seed: int) -> Array:
        """That of the images."""
        return with_validation(np.asarray(data.split), seed)

    def _classes(self, data: CrossModalData) -> Tensor:
        """The class of each image as a number (N,); an image without any code has a class of its own."""
        if data.classes is not None:
            numbers = np.unique(np.asarray(data.classes), return_inverse=True)[1]
        else:
            codes = self.codes.numpy()
            numbers = np.unique(codes, axis=0, return_inverse=True)[1].reshape(-1)
            numbers = np.where(codes.any(1), numbers, -1 - np.arange(len(codes)))
        train = self.index["train"].numpy()
        count = len(np.unique(numbers[train]))
        if not 1 < count < len(train):
            raise ValueError(
                f"`semantic` class must have two classes or more and two images of a class, got {count} "
                f"class{'es' * (count != 1)} of {len(train)} training images. Choose another score."
            )
        return torch.from_numpy(numbers)

    def lacks(self, needed: str) -> str | None:
        """Graded relevance, where there are neither codes nor captions as texts: only pairs are left to train on."""
        if needed != "semantic" or self.semantic is not None:
            return None
        return (
            "graded relevance, which these data do not have. Add codes or classes of the images to the npz "
            "(<split>_codes, <split>_labels), or leave that loss out"
        )

    def batches(self, epoch: int) -> Iterator[Array]:
        """Pairs (P, 2) of an image and one of its captions, those of an image together; every image once an epoch."""
        return read_ahead(self.items, self._pairs(epoch), [self.seed, epoch], lambda pairs: pairs[_firsts(pairs), 0])

    def _pairs(self, epoch: int) -> Iterator[Array]:
        rng = np.random.default_rng([self.seed, epoch, 1])
        most = self.captions_per_item
        for images in super().batches(epoch):
            if most == 1:
                captions = [rng.choice(self.captions_of[i]) for i in images]
                yield np.stack([images, captions], axis=1)
                continue
            drawn = [rng.permutation(self.captions_of[i])[:most] for i in images]
            yield np.stack([np.repeat(images, [len(some) for some in drawn]), np.concatenate(drawn)], axis=1)

    def model(self) -> TwoTowers:
        """A small convolutional net and a linear layer on character n-grams, or hidden layers on features; or yours."""
        train = self.index["train"]
        captions: nn.Module
        if self.text_encoder is not None:
            captions = self.text_encoder.model()
        else:
            training = self.captions[torch.isin(self.owner, train.to(self.owner.device))]
            captions = (FeatureNet if training.is_floating_point() else TextNet)(training, width=self.width)
        images = item_net(self.items, train, self.width) if self.encoder is None else self.encoder.model()
        return TwoTowers(images, captions)

    def fine_tuning(self, model: nn.Module) -> tuple[Task, nn.Module] | None:
        """The blocks of the pretrained network that `finetune` asked for, and the encoder of images on top."""
        if self.pretrained is None or self.pretrained.last is None:
            return None
        blocks, activations = self.pretrained.last
        task, towers = copy.copy(self), cast(TwoTowers, model)
        task.items = activations.to(self.items.device)
        return task, TwoTowers(FineTuned(blocks, towers.images, self.pretrained.precision), towers.captions)

    def forward(self, model: nn.Module, batch: Array) -> dict[str, Callable[[Loss], Tensor]]:
        """The mean of both directions, images to captions and back."""
        first = _firsts(batch)
        parts = batch[first, 0], batch[:, 1], first.cumsum() - 1
        images, captions, place = (torch.from_numpy(part).to(self.items.device) for part in parts)
        towers: Any = model
        x = towers.images(inputs_of(self.items, batch, images))
        y = towers.captions(self.captions[captions])
        return {
            "relevant": lambda loss: CrossModalLoss(loss)(x, y, self._relevance(images, captions)),
            "semantic": lambda loss: CrossModalLoss(loss)(x, y, self._graded(images, captions, place)),
        }

    def _relevance(self, images: Tensor, captions: Tensor) -> Tensor:
        return images.unsqueeze(1) == self.owner[captions].unsqueeze(0)

    def _graded(self, images: Tensor, captions: Tensor, place: Tensor) -> Tensor:
        """Graded relevance of captions to images, in [0, 1], 1 for an image's own: what losses are trained on.

        `place` says which of the images each caption belongs to.
        """
        pairs = self._relevance(images, captions).float()
        if self.semantic is None:
            return pairs
        return torch.maximum(self._semantic(self.semantic, images)[:, place], pairs)

    def _semantic(self, name: str, images: Tensor) -> Tensor:
        """Semantic scores of every two of n images (n, n), in [0, 1]."""
        if name == "class":
            x = self.classes[images]
            same: Tensor = (x.unsqueeze(1) == x).float()
            return same
        if name != "overlap":
            return torch.from_numpy(self.text_scores(name, images.cpu(), images.cpu())).to(images.device)
        x = self.codes[images].float()
        both = x @ x.T
        jaccard: Tensor = both / (x.sum(1, keepdim=True) + x.sum(1) - both).clamp(min=1)
        return jaccard

    def _table(self, name: str, split: str) -> Tensor:
        """The semantic scores of every two images of a split, kept, since every evaluation needs them."""
        if (name, split) not in self.tables:
            if name == "mean":  # of three that are there already
                table = torch.stack([self._table(other, split) for other in ("cider", "bleu", "rouge-l")]).mean(0)
            else:
                table = self._semantic(name, self.index[split].to(self.owner.device))
            self.tables[name, split] = table
        return self.tables[name, split]

    def evaluate(self, model: nn.Module, split: str, details: bool = False) -> TaskMetrics:
        """Exact metrics of both directions over the split, and the details of the class docstring."""
        device = self.items.device
        towers: Any = model
        images = self.index[split].to(device)
        captions = torch.isin(self.owner, images).nonzero().squeeze(1)
        x, y = encode(towers.images, self.items, images), encode(towers.captions, self.captions, captions)
        scores = tie_equal_rows(nn.functional.normalize(x) @ nn.functional.normalize(y).T, x, y)
        values, ranks = self._values(scores, images, captions, split)
        if self.fold_size is not None and split == "test":
            folds = [self._values(*fold, split)[0] for fold in self._folds(self.fold_size, scores, images, captions)]
            values |= {f"{name} in folds": fmean(fold[name] for fold in folds) for name in values}
        if not details:
            return TaskMetrics(values)
        return TaskMetrics(values, self._details(x, images, captions, scores, self._relevance(images, captions), ranks))

    def _folds(
        self, size: int, scores: Tensor, images: Tensor, captions: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Scores, images and captions of each fold."""
        for start in range(0, len(images) - size + 1, size):
            rows = slice(start, start + size)
            columns = torch.isin(self.owner[captions], images[rows])
            yield scores[rows, columns], images[rows], captions[columns]

    def _values(
        self, scores: Tensor, images: Tensor, captions: Tensor, split: str
    ) -> tuple[dict[str, float], dict[str, Tensor]]:
        """The metrics of images of a split and their captions, searched by each other; and the ranks of `_details`."""
        relevant = self._relevance(images, captions)
        # the costly ones would take longer than the steps between two looks at the validation split
        whole = split == "test" or self.metric.split()[1] in ("ASP", "PMRP")
        back = scores.T.contiguous()
        values: dict[str, float] = {}
        ranks = {}
        for way, s, r in (("i2t", scores, relevant), ("t2i", back, relevant.T.contiguous())):
            values |= {f"{way} R@{k}": metrics.hit_rate_at_k(s, r, k=k).mean().item() for k in (1, 5, 10)}
            ranks[way] = metrics.median_rank(s, r)
            values[f"{way} median rank"] = ranks[way].median().item()
            if self.codes is not None and whole:
                rows, columns = (images, self.owner[captions]) if way == "i2t" else (self.owner[captions], images)
                values[f"{way} PMRP"] = metrics.pmrp(s, self.codes[rows], self.codes[columns]).nanmean().item()
        index = self.index[split].to(images.device)
        place, place_of_owner = torch.searchsorted(index, images), torch.searchsorted(index, self.owner[captions])
        for name in (name for name in self.semantics if name in _ASP and whole):
            graded = torch.maximum(self._table(name, split)[place][:, place_of_owner], relevant.float())
            values[f"i2t {_ASP[name]}"] = metrics.asp(scores, graded).mean().item()
            values[f"t2i {_ASP[name]}"] = metrics.asp(back, graded.T.contiguous()).mean().item()
        values["R@1 mean"] = (values["i2t R@1"] + values["t2i R@1"]) / 2
        return {name: values[name] for name in _METRICS if name in values}, ranks

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
