"""Sorters: networks that map the scores of a list to their ranks.

A sorter is a rank function: ``scores (..., n) -> ranks (..., n)``, the ranks in 1 ... n with 1 for the highest score,
differentiable, with ``where=`` for lists of unequal length. Eight of them are the networks published with the paper,
with their parameter shapes, so that old weights load; ``set`` is ours: it takes lists of any length, treats every
permutation of a list alike and compiles.

    Engilberge, Chevallier, Pérez, Cord. SoDeep: a sorting deep net to learn ranking loss surrogates. CVPR 2019.

==============  =============================================  ========  ====================  ============
name            network                                        length    parameters (n = 100)  name in 2019
==============  =============================================  ========  ====================  ============
``cnn``         9 convolutions, one dense head, sigmoid        fixed     1.44 M                ``cnn``
``lstm``        2 BiLSTM(128), one dense head (item: 0.53 M)   fixed     3.09 M                ``lstm``
``lstm-large``  2 BiLSTM(512), one dense head (the paper's)    fixed     18.65 M               ``lstmla``
``lstm-end``    GRU(500) that reads the whole list n times     fixed     0.90 M                ``lstme``
``gru``         6 BiGRU(32), summed, sigmoid (constrained)     any       100.8 k               ``gruc``
``gru-proj``    6 BiGRU(128), one dense head, sigmoid          fixed     4.14 M                ``grup``
``gru-sum``     BiGRU(4), summed                               any       168                   ``grus``
``mlp``         3 dense layers of 2,048                        fixed     4.61 M                ``mlp``
``set``         Fourier summaries of the list, read per item   any       see `SetSorter`       --
==============  =============================================  ========  ====================  ============

A network of one's own is a subclass of `Sorter` with one method, `Sorter.network`. If it is tied to one length of list
it says so in `Sorter.any_length`, and if it is best trained in another way than most in `Sorter.recipe`.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sodeep._checks import (
    check_at_least,
    check_choice,
    check_finite,
    check_positive,
    check_scores,
    check_where,
    compiling,
    describe,
    in_forward_mode,
    is_whole,
    readable,
)
from sodeep._comparing import start_comparing
from sodeep._counting import start_counting
from sodeep._frozen import FrozenWeights, unmark
from sodeep._lists import masked_mean
from sodeep._precision import full_precision, wide_dtype, working_dtype
from sodeep.ranks import exact_rank, fill_by_length

if TYPE_CHECKING:
    from typing_extensions import Self

WORST_ERROR = 0.15
"""Mean error, by the length of the list, from which on a network is no rank function: 0.25 is that of equal ranks."""

MAX_COUNT = 1024
"""Most layers, stages, heads or frequencies of a sorter: a bound on what a damaged file can make us build."""


def standardise(scores: Tensor, where: Tensor | None = None, *, fixed: bool = False) -> Tensor:
    """Each list of `scores` (B, n) shifted to mean 0 and scaled to variance 1, in float64; a constant list becomes 0.

    Statistics are the population's, over the real items; masked items become 0. If `fixed`, they are constants to the
    gradient.
    """
    x = scores.to(wide_dtype(scores))
    real = torch.ones_like(x, dtype=torch.bool) if where is None else where
    x = (x / 2).masked_fill(~real, 0)  # halved, so that high - low cannot overflow
    # From 0 to 1 first: squares can then neither overflow nor vanish, and a constant list gives exact zeros.
    # The result does not depend on shift or scale, so no gradient is lost by detaching them.
    low = x.detach().masked_fill(~real, math.inf).amin(-1, keepdim=True)
    span = x.detach().masked_fill(~real, -math.inf).amax(-1, keepdim=True) - low
    unit = ((x - low) / torch.where(span > 0, span, 1)).masked_fill(~real, 0)
    centred = (unit - masked_mean(unit.detach() if fixed else unit, where, keepdim=True)).masked_fill(~real, 0)
    of = centred.detach() if fixed else centred
    variance = masked_mean(of * of, where, keepdim=True)
    return centred * torch.where(variance > 0, variance, 1).rsqrt()


@contextlib.contextmanager
def double_backward() -> Iterator[None]:
    """A context for a sorter's forward pass of which the gradient will itself be differentiated.

    cuDNN's recurrent networks have no double backward: within this context they run on PyTorch's own kernels.
    It changes nothing for other sorters or on a CPU.

    Example:
        >>> sorter = build_sorter("gru-sum")
        >>> scores = torch.tensor([[0.3, -1.2, 0.8]], requires_grad=True)
        >>> with double_backward():
        ...     ranks = sorter(scores)
        >>> (slope,) = torch.autograd.grad(ranks[0, 0], scores, create_graph=True)
        >>> slope.square().sum().backward()
    """
    enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = enabled


@contextlib.contextmanager
def plain_kernels() -> Iterator[None]:
    """A context in which recurrent networks run on PyTorch's own kernels, which alone have forward-mode derivatives."""
    flags: Any = torch.backends.mkldnn  # its own context manager warns of TF32
    enabled, flags.enabled = flags.enabled, False
    try:
        with double_backward():
            yield
    finally:
        flags.enabled = enabled


@dataclass(frozen=True)
class Recipe:
    """How a sorter is trained unless `TrainConfig` says otherwise; the defaults suit networks that start at random."""

    steps: int = 20000
    batch_size: int = 256
    lr: float = 1e-3
    gradient_weight: float = 0.01


class Sorter(nn.Module):
    """A network that is a rank function; subclasses implement `network`.

    Calling a sorter on ``scores (..., n)`` gives ``ranks (..., n)``, near 1 for the highest score and near n for the
    lowest. It computes in the dtype of its weights (float32, or float64 after ``.double()``), outside autocast: ranks
    do not fit half precision, so ``.half()`` and ``.bfloat16()`` of a module that holds a sorter leave its weights
    wide. The result has the wider dtype of weights and scores; the gradient comes back in the dtype of the scores.

    A sorter inside a loss should be **frozen** (`freeze`; `load_sorter` returns it so): it then passes gradients on to
    the scores, is the same function in training and evaluation mode, and has no trainable parameter, so that an
    optimiser handed the whole criterion leaves it as it is. What follows for the code around it:

    * **Checkpoints.** While its weights are those of a file, a sorter adds nothing to the ``state_dict`` of a module
      that holds it, and on loading it stays as it is where the checkpoint has no weights of its kind: one written
      with another rank function loads. Any other (built, fine-tuned, refreshed) is saved and loaded like any module. A
      sorter's own ``state_dict()`` and ``load_state_dict`` are those of any module.
    * **Initialisation.** ``.to()``, ``to_empty()``, ``apply(init)``, `post_init` and `from_pretrained` of transformers
      leave frozen weights as they are. Where something else has overwritten them, the next forward pass is a
      RuntimeError (not under torch.compile and torch.func).
    * ``DistributedDataParallel`` refuses modules without a trainable parameter: wrap the model, never the loss.

    Args:
        seq_len: the one length of list the network takes; None for any.
        normalize: shift and scale each list to mean 0 and variance 1 first, so that ranks depend on neither. Without
            it, scores outside the range the sorter was trained on give a warning.
        config: the subclass's own options.

    Attributes:
        name: the name in `SORTERS`.
        seq_len: the one length of list it takes, or None for any.
        config: the options that rebuild it: ``build_sorter(sorter.name, **sorter.config)``.
        trained: what its file says of its training (see `save_sorter`); empty when unknown.
        source: what `load_sorter` was given for it, as long as its weights are those of that file; else None.

    Example:
        >>> sorter = build_sorter("set").freeze()
        >>> sorter(torch.tensor([[0.2, 0.9, 0.5]])).shape
        torch.Size([1, 3])
    """

    name: ClassVar[str]
    reads_masks: ClassVar[bool] = False
    """Whether `network` handles `where` by itself. Otherwise lists are run without their masked items."""
    separate_gradient: bool = False
    """Whether the gradient is that of another network than the values: then see `value_network`."""
    source: str | None = None
    _weights: FrozenWeights | None = None
    shortest: ClassVar[int] = 2
    """Fewest items of the lists that it can be trained for."""
    _told_lengths: bool = False
    """Whether the warning about lists of other lengths was given."""

    def __init__(self, seq_len: int | None = None, *, normalize: bool = True, **config: Any) -> None:
        super().__init__()
        if seq_len is not None:
            seq_len = check_at_least(seq_len, 1, "seq_len")
        if not isinstance(normalize, bool):
            raise ValueError(f"`normalize` must be True or False, got {describe(normalize)}.")
        self.seq_len = seq_len
        self.normalize = normalize
        self.config: dict[str, Any] = {"seq_len": seq_len, "normalize": normalize, **config}
        self.trained: dict[str, Any] = {}
        self._frozen = False

    def network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """Normalised ranks (B, n), the best 1/n and the worst 1, of scores `x` (B, n), standardised unless told not to.

        `where` (B, n) is given only to a class that sets `reads_masks`; masked items of `x` are then 0.
        """
        raise NotImplementedError

    def value_network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """`network` without what only makes its gradient: its values are fitted by this."""
        return self.network(x, where)

    @classmethod
    def any_length(cls, config: Mapping[str, Any]) -> bool:
        """Whether it takes lists of any length, if built with these options and no `seq_len`: it is trained on many."""
        return True

    @classmethod
    def recipe(cls, config: Mapping[str, Any]) -> Recipe:
        """How it is trained unless told otherwise, if built with these options (or those that it has, `config`)."""
        return Recipe()

    @classmethod
    def check_length(cls, seq_len: int) -> None:
        """ValueError for a length of list that it cannot be built for."""

    @full_precision
    def forward(self, scores: Tensor, where: Tensor | None = None) -> Tensor:
        """Ranks of `scores`.

        Args:
            scores: (..., n), floating point, higher is better; the last axis is the list.
            where: boolean mask of that shape, True = a real item. A masked item has rank 0 and gradient 0.

        Returns:
            Ranks (..., n) in float32, or in float64 where scores or weights are float64.

        Raises:
            TypeError: scores that are not floating point, a mask that is not boolean.
            ValueError: NaN or infinity in a real item; a length, shape or device the sorter was not built for.
            RuntimeError: frozen weights that something has overwritten.
        """
        return self._ranks(scores, where, self.network)

    @full_precision
    def values(self, scores: Tensor, where: Tensor | None = None) -> Tensor:
        """`forward` without what only makes its gradient: its values are fitted by this.

        Example:
            >>> sorter = build_sorter("set")
            >>> sorter.values(torch.tensor([0.3, -1.2, 0.8])).sum().backward()
            >>> any(weight.grad is not None for weight in sorter.slope.parameters())
            False
        """
        return self._ranks(scores, where, self.value_network)

    def _ranks(self, scores: Tensor, where: Tensor | None, network: Callable[..., Tensor]) -> Tensor:
        """Ranks (..., n) of `scores` by `network` or `value_network`."""
        check_scores(scores)
        where = check_where(where, scores)
        weight = next(self.parameters())
        if scores.device != weight.device:
            raise ValueError(
                f"`scores` must be on the device of the sorter ({weight.device}), got {scores.device}. "
                "Move the sorter, or the loss that holds it: .to(scores.device)."
            )
        check_finite(scores, where)
        self._hold()
        self._warn_outside(scores, where)
        self._warn_lengths(scores, where)
        rows = scores.reshape(-1, scores.shape[-1])
        mask = None if where is None else where.reshape(rows.shape)
        if rows.shape[0] == 0:
            ranks = 0 * rows
        elif mask is None or self.reads_masks:
            ranks = self._rank(rows, mask, network)
        else:
            ranks = self._rank_by_size(rows, mask, network)
        return ranks.to(working_dtype(scores, weight)).reshape(scores.shape)

    def _rank(self, scores: Tensor, where: Tensor | None, network: Callable[..., Tensor]) -> Tensor:
        """Ranks (B, n) of checked scores (B, n)."""
        n = scores.shape[-1]
        if self.seq_len not in (None, n):
            trained = f", or train one: sodeep train-sorter --sorter {self.name} --seq-len {n}"
            raise ValueError(
                f"`scores` must have lists of {self.seq_len} items, the length this {self.name} sorter was built for, "
                f"got {n} real items. Leave a shorter last batch out (drop_last=True), use a length-free sorter such "
                f"as 'set'{trained if n >= self.shortest else '.'}"
            )
        x = scores if where is None else scores.masked_fill(~where, 0)
        x = standardise(x, where, fixed=self.separate_gradient) if self.normalize else x
        x = x.to(next(self.parameters()).dtype)
        with plain_kernels() if in_forward_mode() else contextlib.nullcontext():
            ranks = network(x) if where is None else network(x, where)
        return n * ranks if where is None else (where.sum(-1, keepdim=True) * ranks).masked_fill(~where, 0)

    def _rank_by_size(self, scores: Tensor, where: Tensor, network: Callable[..., Tensor]) -> Tensor:
        """`_rank` for a network that cannot read masks: lists with equally many real items go through it together."""
        nothing = 0 * scores.masked_fill(~where, 0).to(next(self.parameters()).dtype)
        return fill_by_length(nothing, scores, where, lambda lists: self._rank(lists, None, network))

    def _warn_outside(self, scores: Tensor, where: Tensor | None) -> None:
        """A network that sees raw scores knows those of the range it was trained on only."""
        known = None if self.normalize else self.trained_range
        if known is None or not readable(scores):
            return
        real = scores.detach() if where is None else scores.detach()[where]
        if real.numel() and (real.amin() < known[0] or real.amax() > known[1]):
            warnings.warn(
                f"The scores reach from {real.amin().item():g} to {real.amax().item():g}, and this {self.name} sorter, "
                f"which does not normalise them, was trained on {known[0]:g} to {known[1]:g}: its ranks are "
                "unreliable. Scale the scores, or use a sorter that normalises.",
                stacklevel=2,
            )

    def _warn_lengths(self, scores: Tensor, where: Tensor | None) -> None:
        """Once: lists shorter or longer than those it is known to work on. One item has the one rank there is."""
        if self.seq_len is not None or self._told_lengths or not readable(scores):
            return
        known = self.known_lengths
        if known is None or (known[0] <= 2 and scores.shape[-1] <= known[1]):
            return
        counts = {scores.shape[-1]} if where is None else set(where.sum(-1).flatten().tolist())
        outside = sorted(count for count in counts if count > 1 and not known[0] <= count <= known[1])
        if outside:
            self._told_lengths = True
            low, high = min(outside[0], known[0]), max(outside[-1], known[1])
            warnings.warn(
                f"`scores` has a list of {outside[0]} items, and this {self.name} sorter is known to work on lists of "
                f"{known[0]} to {known[1]}: beyond, its ranks or their gradient may be poor. Use a handcrafted rank "
                f"such as laplace_rank, or train one: sodeep train-sorter --sorter {self.name} --lengths {low} {high}",
                stacklevel=7,  # the caller of the sorter: between are this, _ranks, forward, its decorator, nn.Module's
            )

    @property
    def known_lengths(self) -> tuple[int, int] | None:
        """Shortest and longest list it is known to work on, if its file says so.

        Those it was trained on, and longer ones up to where the training run then measured it to be as good.
        """
        trained = self.trained_lengths
        known = self.trained.get("known_lengths", trained)
        return None if known is None else (known[0], known[-1])

    @property
    def trained_lengths(self) -> tuple[int, int] | None:
        """Shortest and longest list it was trained on, if its file says so."""
        lengths = self.trained.get("lengths")
        return (lengths[0], lengths[-1]) if lengths else None

    @property
    def trained_range(self) -> tuple[float, float] | None:
        """Lowest and highest score it was trained on, if its file says so."""
        scores = self.trained.get("scores")
        return (scores[0], scores[-1]) if scores else None

    @property
    def frozen(self) -> bool:
        """True after `freeze`."""
        return self._frozen

    def freeze(self) -> Self:
        """Make the weights constants: no gradient, no batch statistics, whatever is done to the module around it."""
        if not self._frozen:
            self._frozen = True
            self._weights = FrozenWeights(self)
        for parameter in self.parameters():
            parameter.grad = None  # a left-over gradient would let an optimiser move a frozen weight
            parameter.requires_grad_(False)
        return self.train(self.training)

    def unfreeze(self) -> Self:
        """Make the weights trainable again and switch to training mode, to fine-tune the sorter."""
        self._frozen, self._weights, self.source = False, None, None
        unmark(self)
        return self.requires_grad_().train()

    def _hold(self) -> None:
        """Frozen weights are constants: take back a ``requires_grad = True``, and look whether they are what they were.

        A loop over a larger module's parameters may have changed either.
        """
        if not self._frozen or compiling():
            return
        if self._weights is None:  # unpickled from an older version
            self._weights = FrozenWeights(self)
        changed = self._weights.changed(self)
        if changed is not None:
            again = "Build it again" if self.source is None else f"Load it again, load_sorter({self.source!r}),"
            raise RuntimeError(
                f"The weights of this frozen {self.name} sorter are not what they were when it was frozen ('{changed}' "
                "for one): something has overwritten them, such as a framework that initialises or materialises whole "
                f"models. {again} after that step. To change weights on purpose, do it between unfreeze() and freeze()."
            )

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """As of any module; a frozen sorter stays frozen."""
        return super().requires_grad_(requires_grad and not self._frozen)

    def train(self, mode: bool = True) -> Self:
        """As of any module; a frozen sorter stays in evaluation mode: its batch statistics are constants too."""
        super().train(mode and not self._frozen)
        if self._weights is not None:
            self._weights.look_again()
        for module in self.modules():
            if isinstance(module, nn.RNNBase):
                # cuDNN has a backward in training mode only. Without dropout the function is the same in both.
                module.training = True
        return self

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """As of any module; a frozen sorter is left alone by ``model.apply(init_weights)``."""
        return self if self._frozen else super().apply(fn)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # what .to(), .half(), .cuda(), .to_empty() go through
        def wide(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.is_floating_point() and moved.dtype not in (torch.float32, torch.float64):
                return tensor.to(moved.device)
            if self._frozen and type(moved) is Tensor and not (tensor.is_meta or moved.is_meta):
                kept = tensor.to(moved)
                return moved if torch.equal(moved, kept) else kept  # to_empty gives memory without the values
            return moved

        super()._apply(wide, recurse)  # type: ignore[no-untyped-call]
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As of any module; but to that of a larger module, weights that are those of a file add nothing."""
        destination = kwargs.get("destination", args[0] if args else None)
        return super().state_dict(*args, **kwargs) if self.source is None or destination is None else destination

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # what load_state_dict calls for every module before those in it
        if self._weights is not None:
            own = {prefix + name: tensor for name, tensor in self.state_dict().items()}
            given = {key: tensor for key, tensor in state_dict.items() if key.startswith(prefix)}
            fit = {key for key in own if key in given and given[key].shape == own[key].shape}
            apart = prefix and self.source is not None  # it has no part in the state dicts of the module around it
            if apart and not (len(fit) == len(own) == len(given) and self._take_over(given, own, prefix)):
                for key in given:
                    del state_dict[key]
                state_dict.update(own)
            else:
                for key in fit:
                    if not self._weights.expect(key.removeprefix(prefix), state_dict[key]):
                        self.source = None
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _take_over(self, given: Mapping[str, Tensor], own: Mapping[str, Tensor], prefix: str) -> bool:
        """Whether weights from the checkpoint of a larger module are to take the place of those of the file.

        Those of a fine-tuned sorter are. Not those that a framework had initialised before they were saved.
        """
        if all(torch.equal(tensor.to(own[key]), own[key]) for key, tensor in given.items()):
            return True
        weight = next(self.parameters())
        scores = torch.randn(4, self.seq_len or 50, generator=torch.Generator().manual_seed(0)).to(weight)
        tensors = {key.removeprefix(prefix): tensor.to(own[key]) for key, tensor in given.items()}
        with torch.no_grad():
            ranks = torch.func.functional_call(self, tensors, (scores,))
        error = float((ranks - exact_rank(scores)).abs().mean()) / scores.shape[-1]
        if error < WORST_ERROR:
            return True
        warnings.warn(
            f"The checkpoint has weights for this frozen {self.name} sorter with which it does not rank (a mean error "
            f"of {error:.2g} of the length of a list): a framework may have initialised them before they were saved. "
            f"They are left out, and it stays as load_sorter({self.source!r}) gave it.",
            stacklevel=2,
        )
        return False

    def extra_repr(self) -> str:
        """The options, for ``print(sorter)``."""
        options = ", ".join(f"{key}={value!r}" for key, value in self.config.items())
        return f"{options}, frozen={self._frozen}"


class _DenseHead(nn.Conv1d):
    """One dense layer over a whole (B, c, l) map, to (B, n); its weight has the shape (n, c, l) of the published one.

    The published heads are convolutions as wide as their signal: one output position, hence one matrix product.
    """

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input.flatten(1), self.weight.flatten(1), self.bias)


class _ItemHead(nn.Linear):
    """One number an item from its (B, n, c) features, the same map for every position, to (B, n)."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).squeeze(-1)


class RecurrentSorter(Sorter):
    """Bidirectional layers over the list, then a head that turns their (B, n, 2 hidden) outputs into (B, n) ranks.

    Args:
        seq_len: the length of list, for the dense head. The others take any length and ignore it, but for the item
            head of an `LSTMSorter` that starts as a counter.
        head: "dense" (one matrix from all outputs of the list to all its ranks), "item" (one map from the outputs of an
            item to its rank), "sum" (their sum). None: as published.
        hidden: units of each layer and direction. None: as published.
        layers: how many. None: as published.
        normalize: see `Sorter`.
    """

    cell: ClassVar[type[nn.LSTM] | type[nn.GRU]]
    published_head: ClassVar[str]
    published_hidden: ClassVar[int]
    published_layers: ClassVar[int]
    squash: ClassVar[bool] = False
    """Whether input and output pass through a sigmoid, as sigmoid(x/2 + 1) and sigmoid(y)."""

    @classmethod
    def any_length(cls, config: Mapping[str, Any]) -> bool:
        """See `Sorter.any_length`."""
        return (config.get("head") or cls.published_head) != "dense"

    def __init__(
        self,
        seq_len: int | None = None,
        *,
        head: Literal["dense", "item", "sum"] | None = None,
        hidden: int | None = None,
        layers: int | None = None,
        normalize: bool = True,
    ) -> None:
        head_name = self.published_head if head is None else head
        hidden = self.published_hidden if hidden is None else hidden
        layers = self.published_layers if layers is None else layers
        check_choice(head_name, ("dense", "item", "sum"), "head")
        hidden = check_at_least(hidden, 1, "hidden")
        layers = check_count(layers, "layers")
        if head_name == "dense":
            seq_len = need_seq_len(self.name, seq_len, "or head='item' for lists of any length")
        else:
            seq_len = None
        super().__init__(seq_len, normalize=normalize, head=head_name, hidden=hidden, layers=layers)
        self.rnn = self.cell(1, hidden, layers, batch_first=True, bidirectional=True)
        self.head: _DenseHead | _ItemHead | None = None
        if seq_len is not None:
            self.head = _DenseHead(seq_len, seq_len, 2 * hidden)
        elif head_name == "item":
            self.head = _ItemHead(2 * hidden, 1)

    def network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """See `Sorter.network`."""
        if self.squash:
            x = torch.sigmoid(x / 2 + 1)
        states, _ = self.rnn(x.unsqueeze(-1))  # (B, n, 2 hidden)
        ranks: Tensor = states.sum(-1) if self.head is None else self.head(states)
        return torch.sigmoid(ranks) if self.squash else ranks


class LSTMSorter(RecurrentSorter):
    """Two bidirectional LSTM layers of 128 units and one dense head.

    The dense head makes up most of the published network, 2.6 of 3.1 M weights for lists of 100. With ``head="item"``
    it is 257, and the ranks are as good: such a network is the ``lstm`` that ships.

    Args:
        seq_len: the length of list. None, with the item or the sum head: any.
        head, hidden, layers, normalize: see `RecurrentSorter`.
        start: initial weights. "counting": those with which the network is a soft rank already, each cell a counter of
            the items above a threshold (`sodeep._counting`). A count says the rank in a list of known length: without
            `seq_len`, with the sum head, and with fewer than 8 units, they are random all the same. "random": as
            published.
    """

    name = "lstm"
    cell = nn.LSTM
    published_head, published_hidden, published_layers = "dense", 128, 2

    @classmethod
    def recipe(cls, config: Mapping[str, Any]) -> Recipe:
        """See `Sorter.recipe`."""
        hidden: Any = config.get("hidden")
        large = not is_whole(hidden) or hidden >= 8  # that of the paper, unless told
        # a count says the rank in a list of known length
        tied = not cls.any_length(config) or (config.get("head") == "item" and config.get("seq_len") is not None)
        counting = config.get("start") != "random" and tied and large
        # a larger rate would break what it starts with
        return Recipe(steps=1500, batch_size=16, lr=2e-5) if counting else Recipe()

    def __init__(
        self,
        seq_len: int | None = None,
        *,
        head: Literal["dense", "item", "sum"] | None = None,
        hidden: int | None = None,
        layers: int | None = None,
        normalize: bool = True,
        start: Literal["counting", "random"] = "counting",
    ) -> None:
        check_choice(start, ("counting", "random"), "start")
        super().__init__(seq_len, head=head, hidden=hidden, layers=layers, normalize=normalize)
        self.config["start"] = "random"
        if start == "counting" and seq_len is not None and self.head is not None and self.rnn.hidden_size >= 8:
            self.seq_len = check_at_least(seq_len, 1, "seq_len")
            self.config |= {"seq_len": self.seq_len, "start": "counting"}
            start_counting(self.rnn, self.head, self.seq_len)


class LargeLSTMSorter(LSTMSorter):
    """The same with 512 units: the network of the paper."""

    name = "lstm-large"
    published_hidden = 512


class GRUSorter(RecurrentSorter):
    """Six bidirectional GRU layers of 32 units, input and output squashed, no head: takes lists of any length."""

    name = "gru"
    cell = nn.GRU
    published_head, published_hidden, published_layers = "sum", 32, 6
    squash = True


class ProjectedGRUSorter(GRUSorter):
    """The same with 128 units and one dense head."""

    name = "gru-proj"
    published_head, published_hidden = "dense", 128


class SumGRUSorter(RecurrentSorter):
    """One bidirectional GRU layer of 4 units, summed: 168 weights, for lists of any length."""

    name = "gru-sum"
    cell = nn.GRU
    published_head, published_hidden, published_layers = "sum", 4, 1


class EndSorter(Sorter):
    """A GRU of 5 n units that reads the whole list n times; its last state, five units an item, is summed to the ranks.

    Called lstm-end after the published name (lstme), whose cell is a GRU.

    Args:
        seq_len: the length of list.
        normalize: see `Sorter`.
    """

    name = "lstm-end"
    units: ClassVar[int] = 5

    @classmethod
    def any_length(cls, config: Mapping[str, Any]) -> bool:
        """See `Sorter.any_length`."""
        return False

    def __init__(self, seq_len: int | None = None, *, normalize: bool = True) -> None:
        seq_len = need_seq_len(self.name, seq_len)
        super().__init__(seq_len, normalize=normalize)
        self.rnn = nn.GRU(seq_len, self.units * seq_len, batch_first=True)

    def network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """See `Sorter.network`."""
        n = x.shape[-1]
        state: Tensor = self.rnn(x.unsqueeze(1).expand(-1, n, -1))[1]  # (1, B, 5 n)
        return state.reshape(-1, n, self.units).sum(-1)


class CNNSorter(Sorter):
    """Nine convolutions of the list as a signal, and one dense layer from what is left to the ranks.

    The convolutions are not padded and shorten the list by 36. The published dense layer is 64 wide and so fits lists
    of 100 items only; here it is seq_len - 36 wide, which is the same network at 100 and one for any length from 37.

    Args:
        seq_len: the length of list.
        start: first weights. "comparing": those with which items are compared with the 36 on either side already, for
            scores of about unit scale (`sodeep._comparing`). "random": as published.
        normalize: see `Sorter`.
    """

    name = "cnn"
    widths: ClassVar[tuple[int, ...]] = (2, 3, 5, 7, 10, 7, 5, 3, 3)
    channels: ClassVar[tuple[int, ...]] = (1, 8, 16, 32, 64, 96, 128, 256, 256, 128)
    shortest = 37

    @classmethod
    def any_length(cls, config: Mapping[str, Any]) -> bool:
        """See `Sorter.any_length`."""
        return False

    @classmethod
    def recipe(cls, config: Mapping[str, Any]) -> Recipe:
        """See `Sorter.recipe`."""
        random = config.get("start") == "random"
        return Recipe() if random else Recipe(steps=16000, batch_size=64, lr=5e-4, gradient_weight=0.004)

    @classmethod
    def check_length(cls, seq_len: int) -> None:
        """See `Sorter.check_length`."""
        if seq_len < cls.shortest:
            raise ValueError(
                f"`seq_len` must be at least {cls.shortest} for the cnn sorter, whose convolutions shorten the list by "
                f"{cls.shortest - 1}, got {seq_len}. Use a length-free sorter such as 'set' for short lists."
            )

    def __init__(
        self,
        seq_len: int | None = None,
        *,
        start: Literal["comparing", "random"] = "comparing",
        normalize: bool = True,
    ) -> None:
        check_choice(start, ("comparing", "random"), "start")
        seq_len = need_seq_len(self.name, seq_len)
        self.check_length(seq_len)
        super().__init__(seq_len, normalize=normalize, start=start)
        self.layers = nn.Sequential()
        for i, width in enumerate(self.widths):
            into, out = self.channels[i : i + 2]
            norm = [nn.BatchNorm1d(out)] if i % 2 == 1 else []
            self.layers.append(nn.Sequential(nn.Conv1d(into, out, width), *norm, nn.PReLU()))
        self.head = _DenseHead(self.channels[-1], seq_len, seq_len - self.shortest + 1)
        if start == "comparing":
            start_comparing(self.layers, self.head)

    def network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """See `Sorter.network`."""
        return torch.sigmoid(self.head(self.layers(x.unsqueeze(1))))


class MLPSorter(Sorter):
    """Three dense layers over the list.

    Args:
        seq_len: the length of list.
        hidden: units of the two inner layers.
        normalize: see `Sorter`.
    """

    name = "mlp"

    @classmethod
    def any_length(cls, config: Mapping[str, Any]) -> bool:
        """See `Sorter.any_length`."""
        return False

    def __init__(self, seq_len: int | None = None, *, hidden: int = 2048, normalize: bool = True) -> None:
        seq_len = need_seq_len(self.name, seq_len)
        hidden = check_at_least(hidden, 1, "hidden")
        super().__init__(seq_len, normalize=normalize, hidden=hidden)
        self.layers = nn.Sequential(
            nn.Linear(seq_len, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, seq_len)
        )

    def network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """See `Sorter.network`."""
        ranks: Tensor = self.layers(x)
        return ranks


class SetSorter(Sorter):
    """A permutation-equivariant network for lists of any length: Fourier summaries of the list, read by each item.

    The standardised scores become bounded coordinates y in (-1/2, 1/2), the arctangent about a robust centre and scale.
    Each stage then replaces y_i by the mean over the list of a learned odd function of y_i - y_j, a centred rank where
    the function is steep. Written as a Fourier series it costs O(n) per frequency, not O(n²) (see `_FourierStage`).
    Later stages see the nearly evenly spread output of the ones before, in which few frequencies resolve every item.
    Untrained, the network is a soft rank already; training adapts the functions to the list at hand.

    The output is centred so that the ranks of every list sum to n (n + 1) / 2; the network reads masks itself.

    A function near the exact ranks is steep where items meet and flat elsewhere: its derivative is a poor guide for an
    optimiser. So the gradient is, unless told otherwise, that of one more, much smoother stage over the same scores,
    trained for nothing else (a straight-through estimator): the values are near the exact ranks, the gradient is
    smooth, and costs little. As with the handcrafted ranks, no gradient flows through the scale of the list. A second
    derivative is that of this stage, at that scale. Where an item lies more than about ten thousand times as far off as
    the others lie apart, these others get nearly one rank.

    Args:
        seq_len: ignored; the network takes any length.
        gradient: "smooth": as said. "values": the derivative of the values themselves, as of any other sorter.
        frequencies: how many in each stage; as many stages as entries.
        smoothness: at the start of training: the highest frequency in widths of the Gaussian that damps a series.
            Less is sharper, and rings more.
        condition: units of the networks that adapt the functions to the list.
        normalize: see `Sorter`.
    """

    name = "set"
    reads_masks = True

    @classmethod
    def recipe(cls, config: Mapping[str, Any]) -> Recipe:
        """See `Sorter.recipe`."""
        return Recipe(steps=4000, batch_size=32, lr=2e-3)

    def __init__(
        self,
        seq_len: int | None = None,
        *,
        gradient: Literal["smooth", "values"] = "smooth",
        frequencies: Sequence[int] = (16, 32, 40),
        smoothness: float = 1.5,
        condition: int = 64,
        normalize: bool = True,
    ) -> None:
        check_choice(gradient, ("smooth", "values"), "gradient")
        if not isinstance(frequencies, (list, tuple)) or not frequencies:
            raise ValueError(
                f"`frequencies` must be a list of whole numbers, one for each stage, got {describe(frequencies)}."
            )
        check_count(len(frequencies), "len(frequencies)")
        frequencies = [check_count(value, "frequencies") for value in frequencies]
        check_count(sum(frequencies), "sum(frequencies)")
        smoothness = check_positive(smoothness, "smoothness")
        condition = check_at_least(condition, 1, "condition")
        super().__init__(
            None,
            normalize=normalize,
            gradient=gradient,
            frequencies=frequencies,
            smoothness=smoothness,
            condition=condition,
        )
        self.stages = nn.ModuleList(_FourierStage(count, smoothness, condition) for count in frequencies)
        self.separate_gradient = gradient == "smooth"
        if self.separate_gradient:
            self.slope = _FourierStage(16, 2.5, condition)

    def network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """See `Sorter.network`."""
        values, count, location, scale = self._values(x, where)
        if not self.separate_gradient:
            return values
        # coordinates in nearly even proportion to the scores, but for far outliers; no narrower than a tenth of the
        # standard deviation, or the gradient of a list that is nearly all ties would be huge
        smooth = self.slope(bounded(x, location, 4 * scale.clamp(min=0.1)), where, count)
        ranks: Tensor = values - (smooth - smooth.detach())
        return ranks

    def value_network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """See `Sorter.value_network`."""
        return self._values(x, where)[0]

    def _values(self, x: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Normalised ranks (B, n) by the stages; and each list's number of items, location and scale, all (B, 1)."""
        if where is None:
            count = torch.full_like(x[..., :1], x.shape[-1])
        else:
            count = where.sum(-1, keepdim=True).clamp(min=1).to(x.dtype)
        fixed = x.detach() if self.separate_gradient else x
        location, scale = cauchy_fit(fixed, where)
        y = bounded(fixed, location, scale)
        for stage in self.stages:
            y = stage(y, where, count)
        return (count + 1) / (2 * count) - y, count, location, scale


def bounded(x: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """Scores as coordinates in (-1/2, 1/2)."""
    return torch.atan((x - location) / scale) / math.pi


def cauchy_fit(x: Tensor, where: Tensor | None, steps: int = 2) -> tuple[Tensor, Tensor]:
    """Location and scale (B, 1) of the Cauchy distribution nearest to standardised scores (B, n).

    Both come from a few steps of their fixed point, means reweighted by 1 / (1 + (x - m)² / s²), so that a few
    outliers do not squeeze all other items together.
    """
    location, scale2 = torch.zeros_like(x[..., :1]), torch.ones_like(x[..., :1])
    for _ in range(steps):
        square = (x - location) ** 2
        weight = 1 / (1 + square / scale2)
        total = masked_mean(weight, where, keepdim=True)
        total = total.masked_fill(total == 0, 1)  # of a list without a real item: 0 / 0 would be in its gradient
        location = masked_mean(weight * x, where, keepdim=True) / total
        spread = masked_mean(weight * square, where, keepdim=True) / total
        scale2 = torch.where(spread > 0, spread + 1e-6, 1.0)  # of a constant list any will do
    return location, scale2**0.5


class _FourierStage(nn.Module):
    """Coordinates y (B, n) to better ones: each item against the whole list, in O(n) per frequency.

    With C_k = mean_j cos(w_k y_j) and S_k = mean_j sin(w_k y_j), the mean over the list of sin(w_k (y_i - y_j)) is
    C_k sin(w_k y_i) - S_k cos(w_k y_i). At odd multiples w_k = 2π (2k + 1) / period and weights 2 / (π (2k + 1)) these
    sum to the Fourier series of sign(y_i - y_j) / 2, whose mean over j is the centred rank of item i. A learned filter
    over k, adapted to each list by a small network on its power spectrum C² + S², sets how sharp a step to count with.
    """

    period = 2.5
    """Above 2, so that the square wave is a sign function for all differences of coordinates in (-1, 1)."""

    frequencies: Tensor
    series: Tensor

    def __init__(self, frequencies: int, smoothness: float, condition: int) -> None:
        super().__init__()
        odd = [2 * k + 1 for k in range(frequencies)]
        self.register_buffer("frequencies", torch.tensor([2 * math.pi / self.period * m for m in odd]))
        self.register_buffer("series", torch.tensor([2 / math.pi / m for m in odd]))
        # Gaussian damping removes the ringing of a cut series
        self.filter = nn.Parameter(torch.tensor([math.exp(-((smoothness * m / odd[-1]) ** 2) / 2) for m in odd]))
        adapt = nn.Linear(condition, frequencies)
        nn.init.zeros_(adapt.weight)
        nn.init.zeros_(adapt.bias)
        self.condition = nn.Sequential(nn.Linear(frequencies + 1, condition), nn.SiLU(), adapt)

    def forward(self, y: Tensor, where: Tensor | None, count: Tensor) -> Tensor:
        angles = self.frequencies.unsqueeze(-1) * y.unsqueeze(-2)
        waves = torch.cat([angles.cos(), angles.sin()], -2)  # (B, 2 K, n)
        summary = waves.mean(-1) if where is None else (waves @ where.to(y.dtype).unsqueeze(-1)).squeeze(-1) / count
        cos, sin = summary.chunk(2, -1)  # (B, K)
        # 10: an input of about unit size, for lists of tens to thousands
        gain = 1 + self.condition(torch.cat([cos**2 + sin**2, 10 * count**-0.5], -1))
        weight = self.filter * self.series * gain
        reading = (torch.cat([-weight * sin, weight * cos], -1).unsqueeze(-2) @ waves).squeeze(-2)
        return reading - masked_mean(reading, where, keepdim=True)


def need_seq_len(name: str, seq_len: int | None, otherwise: str = "or use a length-free sorter such as 'set'") -> int:
    """`seq_len`, which a sorter tied to one length cannot do without."""
    if seq_len is None:
        raise ValueError(
            f"`seq_len` must be given for the {name} sorter, which is tied to one length of list, got None. "
            f"Give it, for example seq_len=100, {otherwise}."
        )
    return check_at_least(seq_len, 1, "seq_len")


def check_count(value: int, name: str) -> int:
    """A number of things that are built one by one."""
    if not is_whole(value) or not 1 <= value <= MAX_COUNT:
        raise ValueError(f"`{name}` must be a whole number from 1 to {MAX_COUNT}, got {describe(value)}.")
    return int(value)


SORTERS: dict[str, type[Sorter]] = {
    "cnn": CNNSorter,
    "lstm": LSTMSorter,
    "lstm-large": LargeLSTMSorter,
    "lstm-end": EndSorter,
    "gru": GRUSorter,
    "gru-proj": ProjectedGRUSorter,
    "gru-sum": SumGRUSorter,
    "mlp": MLPSorter,
    "set": SetSorter,
}
"""Every sorter by name."""


def build_sorter(name: str, seq_len: int | None = None, **config: Any) -> Sorter:
    """A sorter with fresh weights, trainable; what is random of them is drawn from PyTorch's global generator.

    Args:
        name: a key of `SORTERS`.
        seq_len: the length of list, for sorters tied to one; ignored by those that take any length.
        config: the sorter's options; see its class.

    Raises:
        ValueError: an unknown name or option, or a value the sorter cannot be built with.

    Example:
        >>> sorter = build_sorter("set")
        >>> sorter(torch.tensor([[0.3, -1.2, 0.8, 0.1]])).round().tolist()
        [[2.0, 4.0, 1.0, 3.0]]
        >>> sorter = build_sorter("lstm", seq_len=100)
        >>> sum(weight.numel() for weight in sorter.parameters())
        3089508
    """
    check_choice(name, SORTERS, "name")
    check_options(name, config)
    return SORTERS[name](seq_len=seq_len, **config)


def check_options(name: str, config: Mapping[str, Any]) -> None:
    """ValueError for an option that the sorter does not have."""
    options = list(inspect.signature(SORTERS[name]).parameters)
    for option in config:
        check_choice(option, options, f"config of the {name} sorter")
