"""Small encoders: images, texts or features in, vectors out. Minutes on two CPU cores are enough to train them."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sodeep._core.precision import PRECISIONS
from sodeep._core.search import Range
from sodeep.datasets.image_files import ImageFiles, Inputs
from sodeep.groups import Groups


class ImageEncoder(nn.Module):
    """Convolutions, each halving the image, until it is 4 pixels wide or less; then one linear layer.

    In training, images are jittered: there are few of them.

    Returns:
        (B, width), of uint8 (B, C, H, W), 0 to 255.
    """

    def __init__(self, channels: int, size: int, width: int = 64) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        out = 32
        while size > 4:
            # strided, not pooled: a quarter of the work
            blocks += [nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
            channels, out, size = out, min(2 * out, 128), (size + 1) // 2
        self.blocks = nn.Sequential(*blocks)
        self.blocks.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a quarter faster on a CPU
        self.head = nn.LazyLinear(width)

    def forward(self, images: Tensor) -> Tensor:
        """The vectors of images."""
        # ink on paper or paint on white: mostly 255, so that 0 is the background
        x = 1 - images.float() / 255
        x = jitter(x) if self.training else x
        vectors: Tensor = self.head(self.blocks(x).flatten(1))
        return vectors


def jitter(x: Tensor, turn: float = 0.2, shift: float = 0.1) -> Tensor:
    """Images (B, C, H, W), each turned, sheared and scaled by about `turn`, moved by `shift` of half its width."""
    matrix = torch.eye(2, device=x.device) + turn * torch.randn(len(x), 2, 2, device=x.device).clamp(-2, 2)
    move = shift * torch.randn(len(x), 2, 1, device=x.device).clamp(-2, 2)
    grid = nn.functional.affine_grid(torch.cat([matrix, move], -1), list(x.shape), align_corners=False)
    return nn.functional.grid_sample(x, grid, align_corners=False)


class FeatureNet(nn.Module):
    """One hidden layer with a linear skip connection, on standardised features.

    Args:
        features: (N, d) of the training split, for their mean and standard deviation.
        width: of the result.
        hidden: units of the hidden layer; 0: none, a linear net.
        dropout: of the features and the hidden layer.

    Returns:
        (B, width), of floating point (B, d).
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, features: Tensor, width: int, hidden: int = 64, dropout: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("mean", features.mean(0).cpu())
        constant = features.amax(0) == features.amin(0)  # nothing can be learned of these: they count nothing
        scale = features.std(0, correction=0).masked_fill(constant, 1).reciprocal().masked_fill(constant, 0)
        self.register_buffer("scale", scale.cpu())
        d = features.shape[1]
        self.linear = nn.Linear(d, width)
        self.net = (
            nn.Sequential(
                nn.Dropout(dropout), nn.Linear(d, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, width)
            )
            if hidden
            else None
        )

    def forward(self, features: Tensor) -> Tensor:
        """The vectors of features."""
        x = (features - self.mean) * self.scale
        vectors: Tensor = self.linear(x)
        return vectors if self.net is None else vectors + self.net(x)


class ListScorer(nn.Module):
    """A score for each item that depends on the others of its list: self-attention over the items, without positions.

    The order in which the items of a list are given does not matter.

    Args:
        features: (N, d) of the training split, for their mean and standard deviation.
        hidden: width of the vectors of items.
        dropout: of the vectors, and in the attention.

    Returns:
        (B, 1), of floating point (B, d) and the `Groups` of the B items.

    References:
        Pang et al. SetRank: Learning a Permutation-Invariant Ranking Model for Information Retrieval. SIGIR 2020.
    """

    def __init__(self, features: Tensor, hidden: int = 64, dropout: float = 0.2) -> None:
        super().__init__()
        self.items = FeatureNet(features, hidden, hidden, dropout)
        self.attention = nn.TransformerEncoderLayer(
            hidden, nhead=4, dim_feedforward=2 * hidden, dropout=dropout, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(hidden, 1)

    def forward(self, features: Tensor, groups: Groups) -> Tensor:
        """The scores of items."""
        vectors = groups.pad(self.items(features))
        seen = self.attention(vectors, src_key_padding_mask=~groups.where.to(vectors.device))
        scores: Tensor = self.head(groups.unpad(seen))
        return scores


class AsGiven(nn.Module):
    """No network: the numbers of an item, its features, or its pixels with 0 for white, as its vector.

    Returns:
        (B, d), of (B, d) or (B, C, H, W).
    """

    def forward(self, items: Tensor) -> Tensor:
        """The items, flat."""
        return (1 - items.float() / 255 if items.dtype == torch.uint8 else items.float()).flatten(1)


class FineTuned(nn.Module):
    """The last blocks of a pretrained network, and an encoder on the features that they give.

    Their BatchNorm layers stay in evaluation mode: the statistics are those of the images they were trained on.

    Args:
        blocks: as of `sodeep.datasets.image_features`; copied, so that those given stay as they are.
        head: takes their features (B, d); trained on them before, and trained on.
        precision: of the blocks, of `PRECISIONS`; below float32 under autocast.

    Returns:
        (B, width), of what the blocks are given, (B, ...) of any floating type.
    """

    slowdown: ClassVar[float] = 0.1
    """Learning rate of the blocks, as a fraction of that of the rest: their weights are good ones already."""
    chunk: ClassVar[int] = 64
    """Rows that `encode` takes at a time: inside, there are tens of thousands of numbers in each."""

    def __init__(self, blocks: nn.Module, head: nn.Module, precision: str = "float32") -> None:
        super().__init__()
        self.blocks = copy.deepcopy(blocks).requires_grad_()
        self.head = head
        self.precision = precision
        if precision == "float32":  # a quarter faster on a CPU; in bfloat16 it is slower there
            self.blocks.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def train(self, mode: bool = True) -> FineTuned:
        """Training mode, for the head alone."""
        super().train(mode)
        self.blocks.eval()
        return self

    def forward(self, activations: Tensor) -> Tensor:
        """The vectors of images."""
        x, dtype = activations.float(), PRECISIONS[self.precision]
        if dtype is torch.float32 and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, dtype, enabled=dtype is not torch.float32):
            features = self.blocks(x)
        vectors: Tensor = self.head(features.float())
        return vectors


def parameter_groups(model: nn.Module, rate: float) -> list[dict[str, Any]]:
    """The weights of a model as groups of an optimizer, with the learning rate of each: first all, or all but `blocks`.

    >>> groups = parameter_groups(FineTuned(nn.Linear(3, 2), nn.Linear(2, 1, bias=False)), rate=0.01)
    >>> [(group["lr"], len(group["params"])) for group in groups]
    [(0.01, 1), (0.001, 2)]
    """
    own = [group for net in _with_groups(model) for group in net.parameter_groups(rate)]
    nets = [module for module in model.modules() if isinstance(module, FineTuned)]
    slow = dict.fromkeys(weight for net in nets for weight in net.blocks.parameters())
    apart = {*slow, *(weight for net in _with_groups(model) for weight in net.parameters())}
    rest = [weight for weight in model.parameters() if weight not in apart]
    groups: list[dict[str, Any]] = [{"params": rest, "lr": rate}] if rest or not own else []
    return groups + own + [{"params": [*slow], "lr": rate * FineTuned.slowdown}] * bool(slow)


def _with_groups(model: nn.Module) -> list[Any]:
    """The parts that say their groups themselves."""
    if hasattr(model, "parameter_groups"):
        return [model]
    return [part for child in model.children() for part in _with_groups(child)]


def ridge(features: Tensor, target: Tensor, penalty: float) -> FeatureNet:
    """Ridge regression in closed form: the linear net that minimises squared error + `penalty` times squared weights.

    Args:
        features: (N, d) of the training split; they are standardised.
        target: (N, width).
        penalty: above 0; on the scale of sums over the N rows.
    """
    net = FeatureNet(features, target.shape[1], hidden=0).to(features.device)
    x, middle = ((features - net.mean) * net.scale).double(), target.double().mean(0)
    gram = x.T @ x + penalty * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    with torch.no_grad():  # the columns of x have mean 0, so that the penalty leaves the mean alone
        net.linear.weight.copy_(torch.linalg.solve(gram, x.T @ (target.double() - middle)).T)
        net.linear.bias.copy_(middle)
    return net


PENALTY = Range(1e-1, 1e5, 100.0)
"""Searched for `ridge`."""


class TextNet(nn.Module):
    """A linear layer on tf-idf of n-grams: the sum of their learned vectors, rare ones weighing more.

    Args:
        ngrams: (N, L) of the training split, as of `ngram_table`, for the weights log(N / texts that have it).
        width: of the result.

    Returns:
        (B, width), of (B, L) n-gram numbers, 0 = none.
    """

    weight: Tensor

    def __init__(self, ngrams: Tensor, width: int) -> None:
        super().__init__()
        rows = ngrams.cpu().sort(1).values
        first = torch.ones_like(rows, dtype=torch.bool)
        first[:, 1:] = rows[:, 1:] != rows[:, :-1]  # a text counts once, however often it has an n-gram
        texts = torch.bincount(rows[first])
        self.register_buffer("weight", ((1 + len(rows)) / (1 + texts)).log().index_fill(0, torch.tensor(0), 0.0))
        self.vectors = nn.EmbeddingBag(len(texts), width, mode="sum", padding_idx=0)
        nn.init.normal_(self.vectors.weight, std=0.02)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, ngrams: Tensor) -> Tensor:
        """The vectors of texts."""
        count = (ngrams > 0).sum(-1, keepdim=True)
        weight = nn.functional.normalize(self.weight[ngrams], dim=-1) * count.sqrt()  # 1 on average
        vectors: Tensor = self.vectors(ngrams, per_sample_weights=weight) + self.bias
        return vectors


def ngram_table(texts: Sequence[str], train: NDArray[Any], unit: str, least: int = 3, longest: int = 64) -> Tensor:
    """The n-grams of texts as numbers, those that occur in `least` of the training texts; 0 for others.

    Args:
        texts: N texts; case is ignored.
        train: indices of the training texts.
        unit: "char": 2 to 4 characters of a word, with < and > at its ends. "word": words and pairs of neighbours.
        least: in how many texts of the training split an n-gram must occur.
        longest: n-grams kept of a text.

    Returns:
        (N, L) int32, L at most `longest`, 0 where a text has no more.

    Example:
        >>> ngram_table(["so deep", "so", "so so"], np.arange(3), "word", least=1)
        tensor([[1, 2, 3],
                [1, 0, 0],
                [1, 1, 4]], dtype=torch.int32)
    """
    split = {"char": _characters, "word": _words}[unit]
    rows = [list(islice(split(text.lower()), longest)) for text in texts]
    counts = Counter(gram for i in train for gram in dict.fromkeys(rows[i]))
    numbers = {gram: number for number, gram in enumerate((g for g, n in counts.items() if n >= least), 1)}
    known = [[numbers[gram] for gram in row if gram in numbers] for row in rows]
    table = np.zeros((len(known), max(map(len, known), default=0) or 1), dtype=np.int32)
    for row, numbered in zip(table, known, strict=True):
        row[: len(numbered)] = numbered
    return torch.from_numpy(table)


def _words(text: str) -> Iterable[str]:
    words = re.findall(r"\w+|[^\w\s]", text)
    yield from words
    yield from (f"{a} {b}" for a, b in pairwise(words))


def _characters(text: str) -> Iterable[str]:
    for word in text.split():
        delimited = f"<{word}>"
        for n in (2, 3, 4):
            yield from (delimited[i : i + n] for i in range(len(delimited) - n + 1))


def as_input(items: NDArray[Any]) -> Tensor:
    """Images (N, H, W[, 3]) as uint8 (N, C, H, W); features as float32.

    Raises:
        ValueError: images of another type, whose values may mean anything.
    """
    if items.ndim != 2 and items.dtype != np.uint8:
        raise ValueError(
            "Images must be uint8 (N, H, W) or (N, H, W, 3), and features (N, d), "
            f"got an array of shape {items.shape} and type {items.dtype}. Scale images to 0 for black, 255 for white."
        )
    x = torch.from_numpy(np.ascontiguousarray(items))
    if x.dtype != torch.uint8:
        return x.float()
    return x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()


def item_net(items: Tensor, train: Tensor, width: int) -> nn.Module:
    """An encoder for the inputs that `as_input` gave; `train` are the indices of those in the training split."""
    if items.dtype != torch.uint8:
        return FeatureNet(items[train], width)
    net = ImageEncoder(items.shape[1], min(items.shape[-2:]), width)
    with torch.no_grad():  # initialises the lazy last layer
        net.eval()(items[:1].cpu())
    return net.train()


@torch.no_grad()
def encode(net: nn.Module, items: Inputs, index: Tensor) -> Tensor:
    """`net` in evaluation mode over the items of `index`, in chunks: of `net.chunk` items, if it says so."""
    training = net.training
    net.eval()
    try:
        return torch.cat([net(inputs) for inputs in chunks_of(items, index, getattr(net, "chunk", 1024))])
    finally:
        net.train(training)


def chunks_of(items: Inputs, index: Tensor, size: int) -> Iterator[Tensor]:
    """The items of `index` (n,), `size` at a time; a last one alone goes with those before it."""
    parts = [*torch.split(index, size)]
    if len(parts) > 1 and len(parts[-1]) == 1:  # products of one row round differently
        parts[-2:] = [torch.cat(parts[-2:])]
    if isinstance(items, ImageFiles):
        yield from items.chunks(parts)
    else:
        yield from (items[part.to(items.device)] for part in parts)
