"""The base class of sorters: standardised scores in, ranks out, with masks, freezing and checkpoints.

A subclass implements the network alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from sodeep._core.checks import (
    capturing,
    check_at_least,
    check_finite,
    check_scores,
    check_where,
    compiling,
    describe,
    in_forward_mode,
    is_whole,
    readable,
)
from sodeep._core.lists import masked_mean
from sodeep._core.precision import full_precision, wide_dtype, working_dtype
from sodeep._core.warn import warn
from sodeep.ranks import exact_rank, fill_by_length
from sodeep.sorters._frozen import FrozenWeights, unmark

if TYPE_CHECKING:
    from typing_extensions import Self


WORST_ERROR = 0.15
"""Mean |rank error| / n from which on a network is no rank function: 0.25 is that of equal ranks."""

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
    deviation = centred.detach() if fixed else centred
    variance = masked_mean(deviation * deviation, where, keepdim=True)
    return centred * torch.where(variance > 0, variance, 1).rsqrt()


@contextlib.contextmanager
def double_backward() -> Iterator[None]:
    """A context for a sorter's forward pass of which the gradient will itself be differentiated.

    cuDNN's recurrent networks have no double backward: within this context they run on PyTorch's own kernels.
    It changes nothing for other sorters or on a CPU.

    Example:
        >>> from sodeep import build_sorter
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
    """Training defaults of a sorter, which `TrainConfig` may override; these suit networks with random weights."""

    steps: int = 20000
    batch_size: int = 256
    lr: float = 1e-3
    gradient_weight: float = 0.01
    """0: its gradient is not trained."""
    gradient_step: float = 0.0
    """0: its gradient is trained by double backward."""


class Sorter(nn.Module):
    """A network that is a rank function; subclasses implement `network`.

    Calling a sorter on ``scores (..., n)`` gives ``ranks (..., n)``, near 1 for the highest score and near n for the
    lowest. It computes in the dtype of its weights (float32, or float64 after ``.double()``), outside autocast: ranks
    do not fit half precision, so ``.half()`` and ``.bfloat16()`` of a module that holds a sorter leave its weights
    wide. The result has the wider dtype of weights and scores; the gradient comes back in the dtype of the scores.

    A sorter inside a loss should be **frozen** (`freeze`; `load_sorter` returns it so): it then passes gradients on to
    the scores, is the same function in training and evaluation mode, and has no trainable parameter, so that an
    optimiser given the whole criterion leaves it unchanged. What follows for the code around it:

    * **Checkpoints.** While its weights are those of a file, a sorter adds nothing to the ``state_dict`` of a module
      that holds it, and on loading it stays as it is where the checkpoint has no weights that fit it: one written
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
        trained: the metadata of its training from its file (see `save_sorter`); empty when unknown.
        source: what `load_sorter` was given for it, as long as its weights are those of that file; else None.

    Example:
        >>> from sodeep import build_sorter
        >>> sorter = build_sorter("set").freeze()
        >>> sorter(torch.tensor([[0.2, 0.9, 0.5]])).shape
        torch.Size([1, 3])
    """

    name: ClassVar[str]
    reads_masks: ClassVar[bool] = False
    """Whether `network` handles `where` by itself. Otherwise lists are run without their masked items."""
    separate_gradient: bool = False
    """Whether the gradient is another's than that of the values, known in closed form: then see `value_network`."""
    source: str | None = None
    _weights: FrozenWeights | None = None
    shortest: ClassVar[int] = 2
    """Fewest items of lists that it can be trained for."""
    _warned_lengths: bool = False
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
        """Normalised ranks (B, n), the best 1/n and the worst 1, of scores `x` (B, n), standardised if `normalize`.

        `where` (B, n) is given only to a class that sets `reads_masks`; masked items of `x` are then 0.
        """
        raise NotImplementedError

    def value_network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """`network` without what only makes its gradient: its values are fitted by this."""
        return self.network(x, where)

    @classmethod
    def any_length(cls, config: Mapping[str, Any]) -> bool:
        """Whether it takes lists of any length, if built with these options and no `seq_len`."""
        return True

    @classmethod
    def recipe(cls, config: Mapping[str, Any]) -> Recipe:
        """Its training defaults, if built with these options (or those that it has, `config`)."""
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
            >>> from sodeep import build_sorter
            >>> sorter = build_sorter("set")
            >>> scores = torch.tensor([0.3, -1.2, 0.8], requires_grad=True)
            >>> torch.equal(sorter.values(scores), sorter(scores))
            True
            >>> torch.autograd.grad(sorter.values(scores)[0], scores, allow_unused=True)
            (None,)
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
        self._check_frozen()
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
                f"got {n} real items. Leave a shorter last batch out (drop_last=True), use a sorter for any length "
                f"such as 'set'{trained if n >= self.shortest else '.'}"
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
        """Warn of raw scores far outside the range that a network without normalisation was trained on."""
        trained = None if self.normalize else self.trained_range
        if trained is None or not readable(scores):
            return
        real = scores.detach() if where is None else scores.detach()[where]
        beyond = (trained[1] - trained[0]) / 2  # as another draw of the same scores may be
        if real.numel() and (real.amin() < trained[0] - beyond or real.amax() > trained[1] + beyond):
            warn(
                f"The scores reach from {real.amin().item():g} to {real.amax().item():g}, and this {self.name} sorter, "
                f"which does not normalise them, was trained on {trained[0]:g} to {trained[1]:g}: its ranks are "
                "unreliable. Scale the scores, or use a sorter that normalises.",
            )

    def _warn_lengths(self, scores: Tensor, where: Tensor | None) -> None:
        """Warn once of lists shorter or longer than those it is known to work on. A single item always has rank 1."""
        if self.seq_len is not None or self._warned_lengths or not readable(scores):
            return
        known = self.known_lengths
        if known is None or (known[0] <= 2 and scores.shape[-1] <= known[1]):
            return
        counts = {scores.shape[-1]} if where is None else set(where.sum(-1).flatten().tolist())
        outside = sorted(count for count in counts if count > 1 and not known[0] <= count <= known[1])
        if outside:
            self._warned_lengths = True
            low, high = min(outside[0], known[0]), max(outside[-1], known[1])
            warn(
                f"`scores` has a list of {outside[0]} items, and this {self.name} sorter is known to work on lists of "
                f"{known[0]} to {known[1]}: beyond, its ranks or their gradient may be poor. Use a handcrafted rank "
                f"such as laplace_rank, or train one: sodeep train-sorter --sorter {self.name} --lengths {low} {high}",
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

    def _check_frozen(self) -> None:
        """Frozen weights are constants: undo a ``requires_grad = True``, and check that the values have not changed.

        A loop over a larger module's parameters may have changed either.
        """
        if not self._frozen or compiling() or capturing(next(self.parameters())):
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
            current = {prefix + name: tensor for name, tensor in self.state_dict().items()}
            given = {key: tensor for key, tensor in state_dict.items() if key.startswith(prefix)}
            fit = {key for key in current if key in given and given[key].shape == current[key].shape}
            absent = prefix and self.source is not None  # from the state dicts of the module around it
            if absent and not (len(fit) == len(current) == len(given) and self._accepts(given, current, prefix)):
                for key in given:
                    del state_dict[key]
                state_dict.update(current)
            else:
                for key in fit:
                    if not self._weights.expect(key.removeprefix(prefix), state_dict[key]):
                        self.source = None
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _accepts(self, given: Mapping[str, Tensor], current: Mapping[str, Tensor], prefix: str) -> bool:
        """Whether weights from the checkpoint of a larger module are to replace those of the file.

        Those of a fine-tuned sorter are. Not those that a framework had initialised before they were saved.
        """
        if all(torch.equal(tensor.to(current[key]), current[key]) for key, tensor in given.items()):
            return True
        weight = next(self.parameters())
        scores = torch.randn(4, self.seq_len or 50, generator=torch.Generator().manual_seed(0)).to(weight)
        tensors = {key.removeprefix(prefix): tensor.to(current[key]) for key, tensor in given.items()}
        with torch.no_grad():
            ranks = torch.func.functional_call(self, tensors, (scores,))
        error = float((ranks - exact_rank(scores)).abs().mean()) / scores.shape[-1]
        if error < WORST_ERROR:
            return True
        warn(
            f"The checkpoint has weights for this frozen {self.name} sorter with which it does not rank (a mean error "
            f"of {error:.2g} of the length of a list): a framework may have initialised them before they were saved. "
            f"They are left out, and it stays as load_sorter({self.source!r}) gave it.",
        )
        return False

    def extra_repr(self) -> str:
        """The options, for ``print(sorter)``."""
        options = ", ".join(f"{key}={value!r}" for key, value in self.config.items())
        return f"{options}, frozen={self._frozen}"


def require_seq_len(
    name: str, seq_len: int | None, alternative: str = "or use a sorter for any length such as 'set'"
) -> int:
    """`seq_len`, which a sorter of fixed length needs."""
    if seq_len is None:
        raise ValueError(
            f"`seq_len` must be given for the {name} sorter, which has a fixed length of list, got None. "
            f"Give it, for example seq_len=100, {alternative}."
        )
    return check_at_least(seq_len, 1, "seq_len")


def check_count(value: int, name: str) -> int:
    """A number of parts, from 1 to `MAX_COUNT`."""
    if not is_whole(value) or not 1 <= value <= MAX_COUNT:
        raise ValueError(f"`{name}` must be a whole number from 1 to {MAX_COUNT}, got {describe(value)}.")
    return int(value)
