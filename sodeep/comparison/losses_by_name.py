"""Losses by name, each with the ranges that its settings are searched in.

A name is one of

* `LOSSES`, such as ``smooth-ap``;
* ``LOSS:RANK``, one of `RANK_LOSSES` over a rank function: of `RANKS`, a shipped sorter, a sorter file, one of the
  Hugging Face Hub (``hf://user/name``) or ``module:attribute``, such as ``map:lstm`` or ``spearman:my.safetensors``;
* ``peer:NAME``, a loss of another package (`PEERS`), if that is installed;
* ``module:attribute``, a loss of your own: a callable, or a class that takes no arguments but those that its attribute
  ``ranges`` names; the parameters of a Module (proxies, say) are trained with the encoder. It is called as the task
  calls its losses (`CALL_SIGNATURES`); or, where its first argument is named embeddings, as in
  pytorch-metric-learning, with embeddings and labels (`signature_of`);
* ``A+B``, the sum of two or more of these, of which the weight of all but the first is searched as well;
* ``A,B``, a schedule: B, started from the encoder that was chosen for A;
* `METHODS`, models that are not trained by steps, to compare with.

>>> sorted(loss_by_name("map:laplace").ranges)
['form', 'width']
>>> sorted(loss_by_name("bce+map:laplace").ranges)
['form', 'weight', 'width']
>>> loss_by_name("bce,bce+map:laplace").start
'bce'
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sodeep import losses as losses_
from sodeep._core.by_name import attribute, is_module, source_of
from sodeep._core.checks import describe, user_path
from sodeep._core.extras import check_installed
from sodeep._core.search import Choice, Range, Ranges, declared_range, default_settings
from sodeep.checkpoint.format import list_sorters, load_sorter
from sodeep.checkpoint.hub import HUB
from sodeep.datasets.tables import alike
from sodeep.ranks import RankFunction, blackbox_rank, laplace_rank, sigmoid_rank, straight_through, with_width
from sodeep.tasks import TASKS
from sodeep.tasks.base import Loss, Task

CALL_SIGNATURES = {
    "target": "loss(scores (n,), target (n,))",
    "ranks": "loss(scores (n,), ranks of the target among those of the training split (n,))",
    "normal-scores": "loss(scores (n,), normal scores of the target (n,))",
    "relevant": "loss(scores (Q, N), relevant (Q, N) bool)",
    "graded": "loss(scores (Q, N), relevance (Q, N), where=mask of the items (Q, N))",
    "semantic": "loss(scores (Q, N), graded relevance (Q, N))",
    "embeddings": "loss(embeddings (n, d), labels (n,))",
}
"""Call signature by name. A loss given as ``module:attribute`` has that of the task, the first of `Task.accepts`,
unless `signature_of` finds that it takes embeddings."""


@dataclass(frozen=True)
class LossSpec:
    """A loss to compare: how it is made, called, and which settings are searched.

    Attributes:
        build: makes the loss; takes the settings that `ranges` names.
        ranges: of its own settings; those of the optimiser belong to the task.
        signature: key of `CALL_SIGNATURES`; "": that of the task.
        parts: of a sum, its terms; all but the first have the searched "weight".
        start: of a schedule, the loss whose chosen encoder this one starts from; "": none.
        source: code of what is not ours in it, the user's loss or rank function; "": none, or not to be had.
        method: name of the task's method that makes the model without training steps (`Task.methods`); "": none.
    """

    build: Callable[..., Loss]
    ranges: Ranges = field(default_factory=dict)
    signature: str = "relevant"
    parts: tuple[LossSpec, ...] = ()
    start: str = ""
    method: str = ""
    source: str = ""

    def all_ranges(self, task: type[Task]) -> dict[str, Range | Choice]:
        """Those of the loss, after those of the optimiser on a task; or those of a method."""
        return dict(task.methods.get(self.method, {})) if self.method else {**task.ranges, **self.ranges}

    def terms(self, settings: Mapping[str, Any], default_signature: str) -> list[tuple[float, str, Loss]]:
        """Weight, call signature and loss of each term, with these settings; those that are missing by default."""
        chosen = {name: settings.get(name, values.default) for name, values in self.ranges.items()}
        if not self.parts:
            return [(1.0, self.signature or default_signature, self.build(**chosen))]
        weight = chosen.pop("weight")
        return [
            (
                1.0 if place == 0 else weight,
                part.signature or default_signature,
                part.build(**{name: chosen[_name_in_sum(self.parts, place, name)] for name in part.ranges}),
            )
            for place, part in enumerate(self.parts)
        ]

    @property
    def signatures(self) -> set[str]:
        """The call signatures of all terms, "" included; none of a method."""
        return set() if self.method else {part.signature for part in self.parts or (self,)}


def _name_in_sum(parts: tuple[LossSpec, ...], place: int, name: str) -> str:
    """The name of a term's setting in a sum: its own, with the number of the term where another has it too."""
    return name if sum(name in part.ranges for part in parts) == 1 else f"{name} {place + 1}"


def _sum_of(parts: tuple[LossSpec, ...]) -> LossSpec:
    ranges: dict[str, Range | Choice] = {"weight": Range(0.003, 1.0, 0.1)}
    for place, part in enumerate(parts):
        ranges |= {_name_in_sum(parts, place, name): values for name, values in part.ranges.items()}
    return LossSpec(parts[0].build, ranges, parts[0].signature, parts, source="".join(part.source for part in parts))


def _bce(scores: Tensor, relevant: Tensor, where: Tensor | None = None) -> Tensor:
    """Binary cross-entropy of scores as logits, over the real items."""
    terms = nn.functional.binary_cross_entropy_with_logits(scores, relevant.to(scores.dtype), reduction="none")
    return terms.mean() if where is None else terms[where].mean()


def _hinge(scores: Tensor, relevant: Tensor, where: Tensor | None = None) -> Tensor:
    """The loss of a support vector machine, over the real items."""
    terms = (1 - scores * (2 * relevant.to(scores.dtype) - 1)).relu()
    return terms.mean() if where is None else terms[where].mean()


def _one_minus_pearson(scores: Tensor, target: Tensor) -> Tensor:
    """1 - Pearson's correlation; 1 where all scores are equal."""
    return 1 - nn.functional.cosine_similarity(scores - scores.mean(), target - target.mean(), dim=-1)


def _scaled_n_pairs(scale: float) -> Loss:
    """N-pairs was made for dot products; cosines, in [-1, 1], need a scale."""
    loss = losses_.NPairsLoss()

    def scaled(scores: Tensor, relevant: Tensor, where: Tensor | None = None) -> Any:
        return loss(scale * scores, relevant, where)

    return scaled


_TAU = Range(0.002, 0.2, 0.01)
"""Width of a comparison of cosines, around that of Brown et al. 2020."""

_BINS = Range(5, 50, 20, whole=True)

_SCALE = Range(0.1, 10, 1.0)
"""Temperature of scores that have no bounds."""

_MARGIN = Range(0.02, 1.0, 0.2)

_TEMPERATURE = Range(0.02, 0.5, 0.1)

_BINOMIAL = {"alpha": Range(0.5, 10, 2.0), "beta": Range(5, 100, 50.0), "base": Range(0.0, 1.0, 0.5, log=False)}
"""Of Wang et al. 2019 (table 3 and its text): slopes for relevant and other items, and the similarity between them."""


def _of_values(make: Callable[..., nn.Module]) -> Callable[..., Loss]:
    """A loss of torch on scores and targets of one shape: it would spread (n, 1) against (n,) to n² pairs."""

    def build(**settings: Any) -> Loss:
        loss = make(**settings)

        def of_one_shape(scores: Tensor, target: Tensor) -> Any:
            if scores.shape != target.shape:
                raise ValueError(
                    f"`scores` must have the shape of the target, {tuple(target.shape)}, got {tuple(scores.shape)}."
                )
            return loss(scores, target)

        return of_one_shape

    return build


LOSSES: dict[str, LossSpec] = {
    # regression
    "mse": LossSpec(_of_values(nn.MSELoss), signature="target"),
    "mse-ranks": LossSpec(_of_values(nn.MSELoss), signature="ranks"),
    "mse-normal-scores": LossSpec(_of_values(nn.MSELoss), signature="normal-scores"),
    "l1": LossSpec(_of_values(nn.L1Loss), signature="target"),
    "huber": LossSpec(_of_values(nn.HuberLoss), {"delta": Range(0.1, 3, 1.0)}, signature="target"),
    "pearson": LossSpec(lambda: _one_minus_pearson, signature="target"),
    # lists
    "ranknet": LossSpec(losses_.RankNetLoss, {"temperature": _SCALE}, signature="target"),
    "listmle": LossSpec(losses_.ListMLELoss, {"temperature": _SCALE}, signature="target"),
    "lambdarank": LossSpec(
        losses_.LambdaRankLoss,
        {"temperature": _SCALE, "form": Choice(("lambdarank", "ndcg2", "ndcg2++"))},
        signature="graded",
    ),
    "listnet": LossSpec(
        losses_.ListNetLoss, {"temperature": _SCALE, "target_temperature": Range(0.1, 3, 1.0)}, signature="graded"
    ),
    "softmax": LossSpec(losses_.SoftmaxLoss, {"temperature": _SCALE}, signature="graded"),
    # classification of every item
    "bce": LossSpec(lambda: _bce),
    "hinge": LossSpec(lambda: _hinge),
    # retrieval
    "smooth-ap": LossSpec(losses_.SmoothAPLoss, {"tau": _TAU}),
    "quantized-ap": LossSpec(losses_.QuantizedAPLoss, {"num_bins": _BINS}),
    "fast-ap": LossSpec(losses_.FastAPLoss, {"num_bins": _BINS}),
    "sup-ap": LossSpec(losses_.SupAPLoss, {"tau": _TAU}),
    "recall-at-k": LossSpec(losses_.RecallAtKLoss, {"tau_rank": _TAU}),
    "svm-ap": LossSpec(losses_.SVMAPLoss, {"scale": Range(1, 200, 20.0)}),
    "asp": LossSpec(losses_.ASPLoss, {"tau": _TAU}, signature="semantic"),
    # pairs
    "contrastive": LossSpec(losses_.ContrastiveLoss, {"negative_margin": Range(0.0, 0.9, 0.5, log=False)}),
    "triplet": LossSpec(losses_.TripletLoss, {"margin": _MARGIN}),
    "triplet-semihard": LossSpec(functools.partial(losses_.TripletLoss, mining="semihard"), {"margin": _MARGIN}),
    "triplet-hard": LossSpec(functools.partial(losses_.TripletLoss, mining="hard"), {"margin": _MARGIN}),
    "n-pairs": LossSpec(_scaled_n_pairs, {"scale": Range(2, 50, 10.0)}),
    "nca": LossSpec(losses_.NCALoss, {"temperature": _TEMPERATURE}),
    "nt-xent": LossSpec(losses_.NTXentLoss, {"temperature": _TEMPERATURE}),
    "lifted-structure": LossSpec(losses_.LiftedStructureLoss, {"margin": Range(0.1, 2.0, 1.0)}),
    "binomial-deviance": LossSpec(losses_.BinomialDevianceLoss, _BINOMIAL),
    "bin-lifted": LossSpec(losses_.BinLiftedLoss, _BINOMIAL),
    "histogram": LossSpec(losses_.HistogramLoss, {"num_bins": Range(20, 200, 100, whole=True)}),
    "multi-similarity": LossSpec(losses_.MultiSimilarityLoss, _BINOMIAL),
}
"""Losses that need no rank function."""


def _no_loss() -> Loss:
    raise TypeError("A model without training steps has no loss.")


METHODS: dict[str, LossSpec] = {name: LossSpec(_no_loss, method=name) for name in ("untrained", "raw", "ridge", "svm")}
"""Models without training steps, each of the tasks that have it: the encoder as it is initialised, the inputs
themselves, a linear model in closed form, and a linear support vector machine."""

RANK_LOSSES: dict[str, LossSpec] = {
    # values and ranks both, as the task has metrics of both
    "spearman": LossSpec(losses_.SpearmanLoss, {"value_weight": Range(0.003, 3.0, 0.1, zero=True)}, signature="target"),
    "map": LossSpec(losses_.MAPLoss, {"form": Choice(("ap", "rank_sum"))}),
    "recall": LossSpec(losses_.RecallLoss, {"margin": _MARGIN}),
    "ndcg": LossSpec(losses_.NDCGLoss, {"k": Choice((None, 5, 10))}, signature="graded"),
    "reciprocal-rank": LossSpec(losses_.ReciprocalRankLoss),
    "precision-at-k": LossSpec(losses_.PrecisionAtKLoss, {"k": Choice((10, 5, 1))}),
    "kendall": LossSpec(losses_.KendallLoss, {"tau": Range(0.01, 1.0, 0.05)}, signature="target"),
}
"""Losses on a rank function, written LOSS:RANK."""

WIDTH = Range(0.05, 2.0, 0.3)
"""Of a rank function whose sharpness is searched: its ``width`` (`with_width`), in standard deviations of a list."""

WIDTHS = {"recall": Range(0.05, 20.0, 0.3)}
"""The same for losses that are best on wider ranks: the rank of one item is to have a gradient from all others."""

RANKS: dict[str, RankFunction] = {
    "laplace": laplace_rank,
    "sigmoid": sigmoid_rank,
    "blackbox": blackbox_rank,
    "straight-through": straight_through(laplace_rank),
    "sigmoid-fixed": functools.partial(sigmoid_rank, tau=0.1),
}
"""Rank functions that need no training; of "sigmoid-fixed" the slope is that of Engilberge et al. 2019, 10 per unit of
the scores, whatever their spread. Any shipped sorter, sorter file or ``module:attribute`` is one too."""


def _torchsort(regularization_strength: float, value_weight: float) -> Loss:
    import torchsort

    def soft_rank(scores: Tensor) -> Any:
        # in standard deviations, as the other rank functions: its own scale is fixed
        scores = scores / scores.detach().std(-1, keepdim=True).clamp(min=1e-12)
        return torchsort.soft_rank(-scores, regularization_strength=regularization_strength)

    return losses_.SpearmanLoss(soft_rank, value_weight=value_weight)


def _metric_learning(name: str, **fixed: Any) -> Callable[..., Loss]:
    def build(**chosen: Any) -> Loss:
        from pytorch_metric_learning import losses

        loss: Loss = getattr(losses, name)(**fixed, **chosen)
        return loss

    return build


PEERS: dict[str, tuple[str, LossSpec]] = {
    "torchsort": (
        "torchsort",
        LossSpec(
            _torchsort,
            {"regularization_strength": Range(0.01, 10, 1.0), **RANK_LOSSES["spearman"].ranges},
            signature="target",
        ),
    ),
    "lightgbm": ("lightgbm", LossSpec(_no_loss, method="lightgbm")),
    **{
        name: ("pytorch_metric_learning", LossSpec(_metric_learning(class_name), ranges, signature="embeddings"))
        for name, class_name, ranges in (
            ("contrastive", "ContrastiveLoss", {"neg_margin": Range(0.2, 1.5, 1.0)}),
            ("fast-ap", "FastAPLoss", {"num_bins": _BINS}),
            ("multi-similarity", "MultiSimilarityLoss", _BINOMIAL),
            ("nt-xent", "NTXentLoss", {"temperature": _TEMPERATURE}),
            ("smooth-ap", "SmoothAPLoss", {"temperature": _TAU}),
            ("supcon", "SupConLoss", {"temperature": _TEMPERATURE}),
            ("triplet", "TripletMarginLoss", {"margin": _MARGIN}),
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
                f"Use batches of {self.seq_len}, and groups of at most as many items, or a sorter for any length."
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
            attribute, or with ranges that are none; a sum of methods; a schedule that starts with nothing.
        MissingPackageError: a peer that is not installed.
    """
    start, last = stages_of(name)
    if start:
        stages = {stage: loss_by_name(stage) for stage in (start, last)}
        for stage, spec in stages.items():
            if spec.method:
                raise ValueError(f"`loss` must be a schedule of losses, got {name!r}. {stage} takes no steps.")
        return replace(stages[last], start=start)
    names = terms_of(name)
    if len(names) > 1:
        parts = tuple(loss_by_name(part) for part in names)
        for part, spec in zip(names, parts, strict=True):
            if spec.method:
                raise ValueError(f"`loss` must be a sum of losses, got {name!r}. {part} takes no steps.")
        return _sum_of(parts)
    if name in LOSSES or name in METHODS:
        return {**LOSSES, **METHODS}[name]
    prefix, colon, rest = name.partition(":")
    if prefix in RANK_LOSSES:
        if not rest:
            raise ValueError(
                f"`loss` must name a rank function for {prefix}, got {name!r}. Write {prefix}:laplace, or "
                f"{prefix}:RANK with RANK one of {', '.join(_rank_names())}, a sorter file or module:attribute."
            )
        spec = RANK_LOSSES[prefix]
        rank_fn = rank_function(rest)
        spec = replace(spec, source=source_of(rank_fn) if ":" in rest else "")
        if not _has_width(rank_fn):
            return replace(spec, build=functools.partial(spec.build, rank_fn))
        return replace(
            spec,
            build=functools.partial(_at_width, spec.build, rank_fn),
            ranges={**spec.ranges, "width": WIDTHS.get(prefix, WIDTH)},
        )
    if colon and prefix == "peer":
        return _peer(rest)
    ranked = [f"{rank_loss}:{rest}" for rank_loss in RANK_LOSSES if rest]
    known = {name: name for name in (*LOSSES, *METHODS, *ranked)} | {name: f"{name}:laplace" for name in RANK_LOSSES}
    as_ours = re.sub(r"_?loss$", "", name, flags=re.IGNORECASE).replace("_", "-")  # of a class or function
    near = None if colon and is_module(prefix) else known.get(alike(as_ours, known) or "")
    if near is not None:
        raise ValueError(f"`loss` must be a name that sodeep compare --help lists, got {name!r}. Is it {near!r}?")
    if colon and prefix and rest:
        loss = attribute(prefix, rest, "loss")
        ranges = _ranges_of(name, loss)
        signature = signature_of(loss, **default_settings(ranges))
        return LossSpec(functools.partial(_built, loss), ranges, signature, source=source_of(loss))
    raise ValueError(
        f"`loss` must be one of {', '.join([*LOSSES, *METHODS])}; "
        f"{', '.join(f'{prefix}:RANK' for prefix in RANK_LOSSES)} with RANK one of {', '.join(_rank_names())}, "
        "a sorter file or module:attribute; "
        f"{', '.join(f'peer:{peer}' for peer in PEERS)}; module:attribute for your own; A+B; or A,B, got {name!r}."
    )


def stages_of(name: str) -> tuple[str, str]:
    """What a schedule starts from, "" if nothing, and its last loss.

    >>> stages_of("bce,bce,bce+map:laplace"), stages_of("bce")
    (('bce,bce', 'bce+map:laplace'), ('', 'bce'))
    """
    start, _, last = name.rpartition(",")
    return start, last


def all_stages_of(name: str) -> list[str]:
    """A loss, after those that its schedule starts from, which are compared too.

    >>> all_stages_of("bce,bce+map:laplace")
    ['bce', 'bce,bce+map:laplace']
    """
    start, _ = stages_of(name)
    return [*(all_stages_of(start) if start else []), name]


def _at_width(build: Callable[..., Loss], rank_fn: RankFunction, width: float, **settings: Any) -> Loss:
    """A rank loss whose rank function has this width."""
    return build(with_width(rank_fn, width), **settings)


def _has_width(rank_fn: RankFunction) -> bool:
    try:
        with_width(rank_fn, WIDTH.default)
    except ValueError:
        return False
    return True


def _ranges_of(name: str, loss: Any) -> Ranges:
    """The ranges that a user's loss declares in an attribute ``ranges``: pairs of numbers, or lists of choices.

    A pair of whole numbers is a range of whole numbers.

    >>> _ranges_of("my:Loss", type("Loss", (), {"ranges": {"tau": (0.01, 1.0), "form": ["ap", "log"]}}))["form"]
    Choice(values=('ap', 'log'))
    """
    declared = getattr(loss, "ranges", None) or {}
    if not isinstance(declared, Mapping):
        raise ValueError(f"`loss` {name} must declare ranges as a dict, got {describe(declared)}.")
    if declared and isinstance(loss, nn.Module):
        raise ValueError(f"`loss` {name} must be a class or a function to declare ranges, got a module that is made.")
    taken = {name for task in TASKS.values() for name in task.ranges} | {"weight"}
    ranges: dict[str, Range | Choice] = {}
    for setting, values in declared.items():
        if setting in taken:  # of the optimiser, and of a term in a sum
            raise ValueError(
                f"`loss` {name} must declare ranges of its own, got {setting!r}, which is taken. Rename it."
            )
        try:
            ranges[setting] = declared_range(values)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"`loss` {name} must declare ranges as name: (low, high) or name: [choices], got "
                f"{describe(values)} for {setting}. {error}"
            ) from None
    return ranges


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
    terms = {loss: [term for stage in loss.split(",") for term in terms_of(stage)] for loss in task.losses}
    return [loss for loss in task.losses if all(term.partition(":")[2] in known for term in terms[loss])]


def rank_function(name: str) -> RankFunction:
    """The named rank function: of `RANKS`, a shipped sorter, a sorter file, or module:attribute.

    Raises:
        ValueError: unknown name, with the choices; a file that is no sorter.
        FileNotFoundError: no such file.
    """
    if name in RANKS:
        return RANKS[name]
    shipped = [card.name for card in list_sorters()]
    if name in shipped or name.endswith(".safetensors") or name.startswith(HUB) or user_path(name).is_file():
        sorter = load_sorter(name)
        return sorter if sorter.seq_len is None else PaddedRank(sorter, sorter.seq_len)
    module, colon, rest = name.partition(":")
    if colon and module and rest:
        rank_fn: RankFunction = _built(attribute(module, rest, "loss"))
        return rank_fn
    near = alike(name.replace("_", "-").removesuffix("-rank"), _rank_names())
    raise ValueError(
        f"`loss` must have a rank function after the colon: {', '.join(_rank_names())}, a sorter file (.safetensors) "
        f"or module:attribute, got {name!r}.{f' Is it {near!r}?' if near else ''}"
    )


def _built(given: Any, **settings: Any) -> Any:
    """A user's loss or rank function, new for every training: an instance of a class, or a copy of a Module."""
    if isinstance(given, type):
        return given(**settings)
    if settings:
        return functools.partial(given, **settings)
    return copy.deepcopy(given) if isinstance(given, nn.Module) else given


_EMBEDDINGS = {"embedding", "embeddings", "embs", "emb", "feature", "features", "feats"}

_SCORES = {"score", "scores", "prediction", "predictions", "preds", "pred", "input", "inputs", "logits", "similarity",
           "similarities"}  # fmt: skip


def signature_of(loss: Any, **settings: Any) -> str:
    """The call signature of a user's loss: "embeddings", or "" for that of the task.

    The name of its first argument decides. Where that is no known name (``x``, ``*args``), the loss is tried on
    eight made-up embeddings with labels, and on scores with relevance: "embeddings" if it takes only the former.
    `settings` are those that a class needs.

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
        takes_embeddings = _takes(loss, vectors, labels, settings)
        return "embeddings" if takes_embeddings and not _takes(loss, vectors @ vectors.T, relevant, settings) else ""


def _is_module_class(loss: Any) -> bool:
    return isinstance(loss, type) and issubclass(loss, nn.Module)


def _takes(loss: Any, x: Tensor, y: Tensor, settings: Mapping[str, Any]) -> bool:
    """Whether a loss, made anew, gives one number for these."""
    try:
        value = _built(loss, **settings)(x, y)
        return isinstance(value, Tensor) and value.numel() == 1
    except Exception:  # of any loss
        return False


def _rank_names() -> list[str]:
    return [*RANKS, *(card.name for card in list_sorters())]


def _peer(name: str) -> LossSpec:
    if name not in PEERS:
        near = alike(name, PEERS)
        hint = f" Is it 'peer:{near}'?" if near else ""
        raise ValueError(
            f"`loss` must be one of {', '.join(f'peer:{peer}' for peer in PEERS)}, got 'peer:{name}'.{hint}"
        )
    package, spec = PEERS[name]
    check_installed(package, f"`loss` peer:{name}")
    return spec
