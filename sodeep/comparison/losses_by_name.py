"""Losses by name, and the four settings that each is tuned over.

A name is one of

* `LOSSES`, such as ``smooth-ap``;
* ``LOSS:RANK``, one of `RANK_LOSSES` over a rank function: of `RANKS`, a shipped sorter, a sorter file or
  ``module:attribute``, such as ``map:lstm`` or ``spearman:my.safetensors``;
* ``peer:NAME``, a loss of another package (`PEERS`), if that is installed;
* ``module:attribute``, a loss of your own: a callable, or a class that takes no arguments; the parameters of a Module
  (proxies, say) are trained with the encoder. It is called as the task calls its losses
  (`CALL_SIGNATURES`); or, where its first argument is named embeddings, as in pytorch-metric-learning, with embeddings
  and labels (`signature_of`);
* ``A+B``, the sum of two or more of these, of which the weight of all but the first is tuned.

>>> loss_by_name("smooth-ap").grid(learning_rates=(0.001, 0.008))
[{'lr': 0.001, 'tau': 0.01}, {'lr': 0.001, 'tau': 0.05}, {'lr': 0.008, 'tau': 0.01}, {'lr': 0.008, 'tau': 0.05}]
>>> loss_by_name("mse").grid(learning_rates=(0.001, 0.004))
[{'lr': 0.00025}, {'lr': 0.001}, {'lr': 0.004}, {'lr': 0.016}]
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sodeep import losses as losses_
from sodeep._core.checks import user_path
from sodeep._core.extras import check_installed
from sodeep.checkpoint.format import list_sorters, load_sorter
from sodeep.ranks import RankFunction, blackbox_rank, laplace_rank, sigmoid_rank, straight_through
from sodeep.tasks.base import Loss, Task

CALL_SIGNATURES = {
    "target": "loss(scores (n,), target (n,))",
    "relevant": "loss(scores (Q, N), relevant (Q, N) bool)",
    "semantic": "loss(scores (Q, N), graded relevance (Q, N))",
    "embeddings": "loss(embeddings (n, d), labels (n,))",
}
"""Call signature by name. A loss given as ``module:attribute`` has that of the task, the first of `Task.accepts`,
unless `signature_of` finds that it takes embeddings."""


@dataclass(frozen=True)
class LossSpec:
    """A loss to compare: how it is made, tuned and called.

    Attributes:
        build: makes the loss; takes the hyper-parameter that is tuned.
        hyperparameter: its name and the two values tried; None: it has none, and more learning rates are tried.
        signature: key of `CALL_SIGNATURES`; "": that of the task.
        parts: of a sum, its terms; the second and later ones have the tuned "weight".
    """

    build: Callable[..., Loss]
    hyperparameter: tuple[str, tuple[Any, Any]] | None = None
    signature: str = "relevant"
    parts: tuple[LossSpec, ...] = ()

    def grid(self, learning_rates: tuple[float, float]) -> list[dict[str, Any]]:
        """Four settings: both learning rates with both values of the hyper-parameter; or, without one, four rates."""
        low, high = learning_rates
        if self.hyperparameter is None:
            return [{"lr": float(f"{rate:.3g}")} for rate in (low * low / high, low, high, high * high / low)]
        name, values = self.hyperparameter
        return [{"lr": rate, name: value} for rate in learning_rates for value in values]

    def terms(self, settings: Mapping[str, Any], default_signature: str) -> list[tuple[float, str, Loss]]:
        """Weight, call signature and loss of each term, with the hyper-parameter of `settings`."""
        chosen = {name: value for name, value in settings.items() if name != "lr"}
        if not self.parts:
            return [(1.0, self.signature or default_signature, self.build(**chosen))]
        weights = [1.0] + [chosen["weight"]] * (len(self.parts) - 1)
        return [
            (weight, part.signature or default_signature, part.build())
            for weight, part in zip(weights, self.parts, strict=True)
        ]

    @property
    def signatures(self) -> set[str]:
        """The call signatures of all terms, "" included."""
        return {part.signature for part in self.parts or (self,)}


def _bce(scores: Tensor, relevant: Tensor, where: Tensor | None = None) -> Tensor:
    """Binary cross-entropy of scores as logits, over the real items."""
    terms = nn.functional.binary_cross_entropy_with_logits(scores, relevant.to(scores.dtype), reduction="none")
    return terms.mean() if where is None else terms[where].mean()


def _hinge(scores: Tensor, relevant: Tensor, where: Tensor | None = None) -> Tensor:
    """The loss of a support vector machine, over the real items."""
    terms = (1 - scores * (2 * relevant.to(scores.dtype) - 1)).relu()
    return terms.mean() if where is None else terms[where].mean()


def _scaled_n_pairs(scale: float = 10.0) -> Loss:
    """N-pairs was made for dot products; cosines, in [-1, 1], need a scale."""
    loss = losses_.NPairsLoss()

    def scaled(scores: Tensor, relevant: Tensor, where: Tensor | None = None) -> Any:
        return loss(scale * scores, relevant, where)

    return scaled


LOSSES: dict[str, LossSpec] = {
    # regression
    "mse": LossSpec(nn.MSELoss, signature="target"),
    "l1": LossSpec(nn.L1Loss, signature="target"),
    "huber": LossSpec(nn.HuberLoss, ("delta", (0.5, 1.0)), signature="target"),
    # classification of every item
    "bce": LossSpec(lambda: _bce),
    "hinge": LossSpec(lambda: _hinge),
    # retrieval
    "smooth-ap": LossSpec(losses_.SmoothAPLoss, ("tau", (0.01, 0.05))),
    "quantized-ap": LossSpec(losses_.QuantizedAPLoss, ("num_bins", (10, 20))),
    "fast-ap": LossSpec(losses_.FastAPLoss, ("num_bins", (10, 20))),
    "sup-ap": LossSpec(losses_.SupAPLoss, ("tau", (0.01, 0.05))),
    "recall-at-k": LossSpec(losses_.RecallAtKLoss, ("tau_rank", (0.01, 0.05))),
    "svm-ap": LossSpec(losses_.SVMAPLoss, ("scale", (10.0, 50.0))),
    "asp": LossSpec(losses_.ASPLoss, ("tau", (0.01, 0.05)), signature="semantic"),
    # pairs
    "contrastive": LossSpec(losses_.ContrastiveLoss, ("negative_margin", (0.3, 0.6))),
    "triplet": LossSpec(losses_.TripletLoss, ("margin", (0.1, 0.2))),
    "triplet-semihard": LossSpec(functools.partial(losses_.TripletLoss, mining="semihard"), ("margin", (0.1, 0.2))),
    "triplet-hard": LossSpec(functools.partial(losses_.TripletLoss, mining="hard"), ("margin", (0.1, 0.2))),
    "n-pairs": LossSpec(_scaled_n_pairs, ("scale", (5.0, 20.0))),
    "nca": LossSpec(losses_.NCALoss, ("temperature", (0.07, 0.2))),
    "nt-xent": LossSpec(losses_.NTXentLoss, ("temperature", (0.07, 0.2))),
    "lifted-structure": LossSpec(losses_.LiftedStructureLoss, ("margin", (0.5, 1.0))),
    "binomial-deviance": LossSpec(losses_.BinomialDevianceLoss, ("beta", (25.0, 50.0))),
    "bin-lifted": LossSpec(losses_.BinLiftedLoss, ("beta", (25.0, 50.0))),
    "histogram": LossSpec(losses_.HistogramLoss, ("num_bins", (50, 100))),
    "multi-similarity": LossSpec(losses_.MultiSimilarityLoss, ("base", (0.5, 1.0))),
}
"""Losses that need no rank function."""

RANK_LOSSES: dict[str, LossSpec] = {
    # values and ranks both, as the task has metrics of both; the weight matters less than the learning rate
    "spearman": LossSpec(functools.partial(losses_.SpearmanLoss, value_weight=0.1), signature="target"),
    "map": LossSpec(losses_.MAPLoss, ("form", ("ap", "rank_sum"))),
    "recall": LossSpec(losses_.RecallLoss, ("margin", (0.05, 0.2))),
}
"""Losses on a rank function, written LOSS:RANK."""

RANKS: dict[str, RankFunction] = {
    "laplace": laplace_rank,
    "sigmoid": sigmoid_rank,
    "blackbox": blackbox_rank,
    "straight-through": straight_through(laplace_rank),
}
"""Rank functions that need no training. Any shipped sorter, sorter file or ``module:attribute`` is one too."""


def _torchsort(regularization_strength: float = 1.0) -> Loss:
    import torchsort

    def soft_rank(scores: Tensor) -> Any:
        return torchsort.soft_rank(-scores, regularization_strength=regularization_strength)

    return losses_.SpearmanLoss(soft_rank, value_weight=0.1)


def _metric_learning(name: str, **fixed: Any) -> Callable[..., Loss]:
    def build(**chosen: Any) -> Loss:
        from pytorch_metric_learning import losses

        loss: Loss = getattr(losses, name)(**fixed, **chosen)
        return loss

    return build


PEERS: dict[str, tuple[str, LossSpec]] = {
    "torchsort": ("torchsort", LossSpec(_torchsort, signature="target")),
    "torchsort-0.1": ("torchsort", LossSpec(functools.partial(_torchsort, 0.1), signature="target")),
    **{
        name: (
            "pytorch_metric_learning",
            LossSpec(_metric_learning(class_name), hyperparameter, signature="embeddings"),
        )
        for name, class_name, hyperparameter in (
            ("contrastive", "ContrastiveLoss", ("neg_margin", (0.5, 1.0))),
            ("fast-ap", "FastAPLoss", ("num_bins", (10, 20))),
            ("multi-similarity", "MultiSimilarityLoss", ("base", (0.5, 1.0))),
            ("nt-xent", "NTXentLoss", ("temperature", (0.07, 0.2))),
            ("smooth-ap", "SmoothAPLoss", ("temperature", (0.01, 0.05))),
            ("supcon", "SupConLoss", ("temperature", (0.07, 0.2))),
            ("triplet", "TripletMarginLoss", ("margin", (0.05, 0.2))),
        )
    },
}
"""Losses of other packages, written peer:NAME: the package they need, and the specification."""


class PaddedRank(nn.Module):
    """A fixed-length rank function on shorter lists too: they are padded with scores below their lowest.

    Items below all others leave the others' ranks as they are. A batch of 100 has lists of 99 where no item is in its
    own list, and sorters of 100.

    >>> from sodeep.ranks import exact_rank
    >>> PaddedRank(exact_rank, seq_len=4)(torch.tensor([0.3, 0.9]))
    tensor([2., 1.])
    """

    def __init__(self, rank_fn: RankFunction, seq_len: int) -> None:
        super().__init__()
        self.rank_fn = rank_fn
        self.seq_len = seq_len

    def forward(self, scores: Tensor) -> Tensor:
        """Ranks of the scores (..., n), n up to `seq_len`."""
        n = scores.shape[-1]
        if n > self.seq_len:
            raise ValueError(
                f"`scores` must have lists of at most {self.seq_len} for this sorter, got {n}. "
                f"Use batches of {self.seq_len}, or a sorter for any length."
            )
        missing = self.seq_len - n
        fixed = scores.detach()
        low, high = fixed.amin(-1, keepdim=True), fixed.amax(-1, keepdim=True)
        steps = torch.arange(1, missing + 1, device=scores.device, dtype=scores.dtype)
        below = low - steps * (high - low).clamp(min=1e-3) / n  # as dense as the list is on average
        return self.rank_fn(torch.cat([scores, below], -1))[..., :n]


def loss_by_name(name: str) -> LossSpec:
    """The specification of a named loss.

    Raises:
        ValueError: unknown name, with the choices; a rank loss without its rank function; a module without that
            attribute.
        MissingPackageError: a peer that is not installed.
    """
    names = terms_of(name)
    if len(names) > 1:
        parts = tuple(loss_by_name(part) for part in names)
        return LossSpec(parts[0].build, ("weight", (0.1, 1.0)), parts[0].signature, parts)
    if name in LOSSES:
        return LOSSES[name]
    prefix, colon, rest = name.partition(":")
    if prefix in RANK_LOSSES:
        if not rest:
            raise ValueError(
                f"`loss` must name a rank function for {prefix}, got {name!r}. Write {prefix}:laplace, or "
                f"{prefix}:RANK with RANK one of {', '.join(_rank_names())}, a sorter file or module:attribute."
            )
        spec = RANK_LOSSES[prefix]
        return LossSpec(functools.partial(spec.build, rank_function(rest)), spec.hyperparameter, spec.signature)
    if colon and prefix == "peer":
        return _peer(rest)
    if colon and prefix and rest:
        loss = _attribute(prefix, rest)
        return LossSpec(functools.partial(_built, loss), signature=signature_of(loss))
    raise ValueError(
        f"`loss` must be one of {', '.join(LOSSES)}; "
        f"{', '.join(f'{prefix}:RANK' for prefix in RANK_LOSSES)} with RANK one of {', '.join(_rank_names())}, "
        "a sorter file or module:attribute; "
        f"{', '.join(f'peer:{peer}' for peer in PEERS)}; module:attribute for your own; or A+B, got {name!r}."
    )


def terms_of(name: str) -> list[str]:
    """The names in A+B. A plus in the name of a sorter file is no sum: what follows it is neither a loss nor X:Y.

    >>> terms_of("bce+spearman:runs/a+b.safetensors+map:laplace")
    ['bce', 'spearman:runs/a+b.safetensors', 'map:laplace']
    """
    first, *others = name.split("+")
    terms = [first]
    for part in others:
        if ":" in terms[-1] and ":" not in part and part not in LOSSES and part not in RANK_LOSSES:
            terms[-1] += f"+{part}"
        else:
            terms.append(part)
    return terms


def default_losses(task: type[Task]) -> list[str]:
    """The default losses of a task; one on a shipped sorter is left out where the sorter is not installed."""
    known = {"", *_rank_names()}
    return [loss for loss in task.losses if all(part.partition(":")[2] in known for part in terms_of(loss))]


def rank_function(name: str) -> RankFunction:
    """The named rank function: of `RANKS`, a shipped sorter, a sorter file, or module:attribute.

    Raises:
        ValueError: unknown name, with the choices; a file that is no sorter.
        FileNotFoundError: no such file.
    """
    if name in RANKS:
        return RANKS[name]
    shipped = [card.name for card in list_sorters()]
    if name in shipped or name.endswith(".safetensors") or user_path(name).is_file():
        sorter = load_sorter(name)
        return sorter if sorter.seq_len is None else PaddedRank(sorter, sorter.seq_len)
    module, colon, attribute = name.partition(":")
    if colon and module and attribute:
        rank_fn: RankFunction = _built(_attribute(module, attribute))
        return rank_fn
    raise ValueError(
        f"`loss` must have a rank function after the colon: {', '.join(_rank_names())}, a sorter file (.safetensors) "
        f"or module:attribute, got {name!r}."
    )


def _built(given: Any) -> Any:
    """A user's loss or rank function, new for every training: an instance of a class, or a copy of a Module."""
    if isinstance(given, type):
        return given()
    return copy.deepcopy(given) if isinstance(given, nn.Module) else given


_EMBEDDINGS = {"embedding", "embeddings", "embs", "emb", "feature", "features", "feats"}

_SCORES = {"score", "scores", "prediction", "predictions", "preds", "pred", "input", "inputs", "logits", "similarity",
           "similarities"}  # fmt: skip


def signature_of(loss: Any) -> str:
    """The call signature of a user's loss: "embeddings", or "" for that of the task.

    The name of its first argument decides. Where that is no known name (``x``, ``*args``), the loss is tried on
    eight made-up embeddings with labels, and on scores with relevance: "embeddings" if it takes only the former.

    >>> signature_of(lambda embeddings, labels: 0), signature_of(lambda scores, target: 0)
    ('embeddings', '')
    """
    call = loss.forward if isinstance(loss, nn.Module) or _is_module_class(loss) else loss
    call = call.__call__ if isinstance(call, type) else call
    try:
        names = [name for name in inspect.signature(call).parameters if name != "self"]
    except (TypeError, ValueError):  # of a function in C
        names = []
    first = names[0].lower() if names else ""
    if first in _EMBEDDINGS:
        return "embeddings"
    if first in _SCORES:
        return ""
    with torch.random.fork_rng(devices=[]):
        generator = torch.Generator().manual_seed(0)
        vectors, labels = torch.randn(8, 4, generator=generator), torch.arange(8) // 2
        relevant = labels.unsqueeze(1) == labels
        takes_embeddings = _takes(loss, vectors, labels)
        return "embeddings" if takes_embeddings and not _takes(loss, vectors @ vectors.T, relevant) else ""


def _is_module_class(loss: Any) -> bool:
    return isinstance(loss, type) and issubclass(loss, nn.Module)


def _takes(loss: Any, x: Tensor, y: Tensor) -> bool:
    """Whether a loss, made anew, gives one number for these."""
    try:
        value = _built(loss)(x, y)
        return isinstance(value, Tensor) and value.numel() == 1
    except Exception:  # of any loss
        return False


def _rank_names() -> list[str]:
    return [*RANKS, *(card.name for card in list_sorters())]


def _peer(name: str) -> LossSpec:
    if name not in PEERS:
        raise ValueError(f"`loss` must be one of {', '.join(f'peer:{peer}' for peer in PEERS)}, got 'peer:{name}'.")
    package, spec = PEERS[name]
    check_installed(package, f"`loss` peer:{name}")
    return spec


def _attribute(module: str, attribute: str) -> Any:
    """An attribute of a module, which may lie in the current folder."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        result = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0] and error.name != module:
            raise
        raise ValueError(
            f"`loss` must name a module that is installed or in {Path.cwd()}, got {module}:{attribute}."
        ) from None
    except AttributeError:
        raise ValueError(f"`loss` must name something in {module}, got {module}:{attribute}, not there.") from None
    if not callable(result):
        raise ValueError(f"`loss` must be callable, got {module}:{attribute} of type {type(result).__name__}.")
    return result
