"""The base of all losses: the check of options, the reduction over the defined lists, and the Module form."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, ParamSpec, Protocol, TypeVar, cast, overload

import torch
from torch import Tensor, nn

from sodeep._core.checks import check_choice, describe, on_device, one_read, read_number, readable
from sodeep._core.lists import Lists, masked_mean, one_item_hint
from sodeep._core.masks import any_of, as_bytes
from sodeep._core.precision import full_precision
from sodeep._core.warn import warn
from sodeep.groups import pad_arguments, positional_names
from sodeep.losses._chunks import are_few, in_chunks
from sodeep.ranks import drop_other_state

__all__ = [
    "ListStats",
    "Loss",
    "LossFunction",
    "LossModule",
    "UndefinedListWarning",
    "check_range",
    "check_reduction",
    "loss_function",
    "optional",
    "reduce_defined",
    "reduce_over_both",
]

P = ParamSpec("P")

Stats = TypeVar("Stats", covariant=True)

REDUCTIONS = ("mean", "none")

WEIGHTS = ("weight", "weights", "sample_weight")
"""What weights are called, here and in other packages; those of an item are `weight` here."""

_WEIGHED: list[str] = []
"""The losses that take a `weight` for each item."""

Check = Callable[..., Any]
"""``check(value, name=...)`` of `sodeep._core.checks`: returns the value, converted if need be, or raises."""


class ListStats(NamedTuple):
    """How many lists a loss was given, and over how many of them its mean is.

    A list is left out where the loss has no meaning for it (no relevant item, say).
    """

    total: int
    defined: Tensor


class LossFunction(Protocol[P, Stats]):
    """The type of a loss: a tensor, and with ``return_stats=True`` its stats beside it.

    Without `return_stats` the options are those of the function; with it they are checked when the loss is called.
    """

    __name__: str

    @overload  # the first that fits is taken, and a `return_stats` fits the last as well
    def __call__(  # type: ignore[overload-overlap]
        self, scores: Tensor, *target: Tensor, return_stats: Literal[True], **options: Any
    ) -> tuple[Tensor, Stats]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, scores: Tensor, *target: Tensor, return_stats: bool, **options: Any
    ) -> Tensor | tuple[Tensor, Stats]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...


def _with_hints(init: Callable[..., None]) -> Callable[..., None]:
    """An ``__init__`` that says what to do where it is given what belongs in the call of the loss."""
    names = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        loss = type(self).__name__
        for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and value.numel() > 1:
                raise TypeError(
                    f"`{name}` must be an option of {loss}, got {describe(value)}. Build the loss first, and call it "
                    f"with its tensors: loss_fn = {loss}(...), then loss_fn(...)."
                )
            if name in WEIGHTS and name not in names:
                raise TypeError(
                    f"`{name}` must not be given where {loss} is built: weights go with the tensors that they weigh. "
                    f"Build the loss first, and call it: loss_fn(..., weight=...)."
                )
        init(self, *args, **kwargs)

    return wrapper


class LossModule(nn.Module, Generic[Stats]):
    """A Module with the type of a loss, where torch's is Any."""

    _in_partials: tuple[tuple[functools.partial[Any], str, str], ...] = ()
    """Partial, keyword, and the name here of its parameter."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls) and cls.__module__.startswith("sodeep."):
            cls.__init__ = _with_hints(cls.__init__)  # type: ignore[method-assign]

    def _register_parameters_in(self, name: str, value: object) -> None:
        """Those that an attribute brings along in a `functools.partial`: ``rank_fn_tau``, say."""
        for path, holder, keyword in _parameters_of(name, value):
            self.register_parameter(path, holder.keywords[keyword])
            self._in_partials += ((holder, keyword, path),)

    def _hand_parameters_over(self) -> None:
        """Let the partials have what the Module has: it may have put another tensor in a parameter's place."""
        for holder, keyword, path in self._in_partials:
            if holder.keywords[keyword] is not (own := getattr(self, path)):
                holder.keywords[keyword] = own

    if TYPE_CHECKING:

        @overload
        def __call__(self, *args: Any, return_stats: Literal[True], **kwargs: Any) -> tuple[Tensor, Stats]: ...
        @overload
        def __call__(self, *args: Any, return_stats: bool, **kwargs: Any) -> Tensor | tuple[Tensor, Stats]: ...
        @overload
        def __call__(self, *args: Any, **kwargs: Any) -> Tensor: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class UndefinedListWarning(UserWarning):
    """No list of the batch was defined, so the loss was a constant zero, or NaN for each list without a reduction."""


@overload
def reduce_defined(
    values: Tensor, defined: Tensor, scores: Tensor, reduction: str = ..., *, needs: str = ..., other: str = ...
) -> Tensor: ...
@overload
def reduce_defined(
    values: Tensor,
    defined: Tensor,
    scores: Tensor,
    reduction: str,
    return_stats: bool,
    needs: str = ...,
    other: str = ...,
) -> Tensor | tuple[Tensor, ListStats]: ...
def reduce_defined(
    values: Tensor,
    defined: Tensor,
    scores: Tensor,
    reduction: str = "mean",
    return_stats: bool = False,
    needs: str = "a relevant item",
    other: str = "relevant",
) -> Tensor | tuple[Tensor, ListStats]:
    """Mean of `values` (Q,) over the `defined` lists (Q,); when none is, a zero that keeps the graph of `scores`.

    Args:
        values: one value a list; those of undefined lists are dropped, NaN included.
        defined: bool, which lists count.
        scores: (..., N), whose graph the zero keeps.
        reduction: "none" gives the values in place of their mean: (...), NaN where undefined.
        return_stats: also return the `ListStats`.
        needs: what a list needs to be defined, for the warning.
        other: the argument beside `scores`, for the warning.
    """
    count = torch.count_nonzero(defined) if readable(defined) else defined.sum()
    number = read_number(count) if readable(count) else None
    if reduction == "mean":
        # of all lists, as nearly always: one operation in place of six
        loss = values.mean() if number and number == defined.numel() else masked_mean(values, defined)
    else:
        loss = values.masked_fill(~defined, torch.nan).view(scores.shape[:-1])
    if not values.requires_grad:
        loss = loss + scores.flatten()[:0].sum()  # zero terms: 0 * scores would be NaN where a masked score is
    if number == 0:
        outcome = "the loss is a constant 0 for this batch" if reduction == "mean" else "every value is NaN"
        warn(
            f"0 of {defined.numel()} lists have {needs}{one_item_hint(scores, other)}: {outcome}.",
            UndefinedListWarning,
        )
    return (loss, ListStats(defined.numel(), count)) if return_stats else loss


def reduce_over_both(
    values: Tensor,
    lists: Lists,
    scores: Tensor,
    reduction: str,
    return_stats: bool,
    needs: str = "both a relevant item and one that is not",
) -> Tensor | tuple[Tensor, ListStats]:
    """`reduce_defined` of a loss on pairs, which is defined for a list with an item in P and one in N."""
    if reduction == "mean" and not return_stats and values.requires_grad and _all_have_both(lists):
        return values.mean()
    defined = any_of(lists.positive) & any_of(lists.negative)
    return reduce_defined(values, defined, scores, reduction, return_stats, needs=needs)


def _all_have_both(lists: Lists) -> bool:
    """Whether all lists are seen to have both at once: nearly always so, and a tenth of the time of small losses."""
    positive = lists.positive
    if lists.masked or not positive.is_cpu or not readable(positive) or positive.shape[0] == 0:
        return False
    fewest, most = torch.aminmax(as_bytes(positive).sum(-1, dtype=torch.int32))
    return int(fewest) > 0 and int(most) < positive.shape[-1]


def loss_function(
    *together: Check, mean_over_lists: bool = True, in_closed_form: bool = False, **checks: Check
) -> Callable[[Callable[P, Tensor | tuple[Tensor, Stats]]], LossFunction[P, Stats]]:
    """Decorator of every loss: checks its options, pads flat tensors with `group`, and runs it in full precision.

    The options are checked when the loss is called and, by `check_options`, when its Module is built.

    Args:
        together: ``check(**options)`` of several options at once, after each alone.
        mean_over_lists: whether the loss is the mean of its values without a reduction, so that processes can share
            the lists out, and many of them are taken in chunks.
        in_closed_form: whether it computes its gradient with its value, so that chunks of lists gain nothing.
        checks: what each option must be.
    """

    def decorate(function: Callable[P, Tensor | tuple[Tensor, Stats]]) -> LossFunction[P, Stats]:
        parameters = inspect.signature(function).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
        run = full_precision(function)
        names = positional_names(function)
        checks.setdefault("reduction", check_reduction)
        takes = {p.name for p in parameters}
        weightless = [name for name in WEIGHTS if name not in takes]
        if "weight" in takes:
            _WEIGHED.append(function.__name__)

        def check_options(given: Mapping[str, Any]) -> dict[str, Any]:
            checked = {
                name: checks[name](value, name=name) if name in checks else value for name, value in given.items()
            }
            for check in together:
                check(**{**defaults, **checked})
            return checked

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Tensor | tuple[Tensor, Stats]:
            for name in weightless:
                if name in kwargs:
                    raise TypeError(_no_weights(name, function.__name__, "weight" in takes, checks["reduction"]))
            args, kwargs = pad_arguments(names, args, kwargs)  # type: ignore[assignment]
            options = check_options(kwargs)
            if args and on_device(args[0]):
                with one_read():
                    return value_of(args, options)
            return value_of(args, options)

        def value_of(args: tuple[Any, ...], options: dict[str, Any]) -> Tensor | tuple[Tensor, Stats]:
            if mean_over_lists and not in_closed_form and len(args) <= len(names) and not (args and are_few(args[0])):
                values = in_chunks(run, {**defaults, **dict(zip(names, args, strict=False)), **options})
                if values is not None:
                    reduced = str(options.get("reduction", "mean")), bool(options.get("return_stats"))
                    return reduce_defined(values, ~values.isnan(), values[:, None], *reduced)  # type: ignore[return-value]
            return run(*args, **options)

        wrapper.check_options = check_options  # type: ignore[attr-defined]
        wrapper.mean_over_lists = mean_over_lists  # type: ignore[attr-defined]
        return cast(LossFunction[P, Stats], wrapper)

    return decorate


def _no_weights(name: str, loss: str, of_items: bool, reduction: Check) -> str:
    """What to do in place of giving weights by a name that a loss does not know."""
    if of_items:
        return f"`{name}` must be given to {loss} as weight=, a number for each item."
    has_values = reduction is check_reduction  # a statistic of the whole batch has none
    of_lists = f' Lists are weighed by their values: (weights * {loss}(..., reduction="none")).nansum().' * has_values
    return (
        f"`{name}` must not be given to {loss}, in which all items count the same.{of_lists} "
        f"A weight for each item is taken by {', '.join(sorted(_WEIGHED))}."
    )


def check_reduction(reduction: str, name: str) -> str:
    """How the values of the lists become a loss."""
    return check_choice(reduction, REDUCTIONS, name)


def check_range(low: float, high: float, **_: object) -> None:
    """An interval that is not empty."""
    if not low < high:
        raise ValueError(f"`low` must be below `high`, got low={low} and high={high}.")


def optional(check: Check) -> Check:
    """The same check, for an option that may be None."""
    return lambda value, name: None if value is None else check(value, name=name)


class Loss(LossModule[Stats]):
    """A loss function with its keyword arguments stored: the Module form of every loss.

    A subclass sets `function` and calls `super().__init__(name=value, ...)` with that function's keyword arguments,
    which are checked and become attributes. A sorter among them so becomes a submodule, which ``.to(device)`` moves,
    and is frozen: the loss has no trainable parameters but those given as an option.
    """

    function: Callable[..., Any]
    """The loss as a pure function: ``function = staticmethod(x_loss)``, a `loss_function`."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        options = type(self).function.check_options(options)  # type: ignore[attr-defined]
        self._options = tuple(options)
        for name, value in options.items():
            if isinstance(value, nn.Module):
                _freeze(value)
            setattr(self, name, value)
            self._register_parameters_in(name, value)

    @property
    def mean_over_lists(self) -> bool:
        """Whether it is the mean of what it gives with ``reduction="none"``."""
        return bool(type(self).function.mean_over_lists)  # type: ignore[attr-defined]

    def forward(
        self, scores: Tensor, *target: Tensor, where: Tensor | None = None, **extra: Any
    ) -> Tensor | tuple[Tensor, Stats]:
        """The loss of `scores` (..., N) against a target of the same shape; see the function of the same name.

        The target may go by its name there (`relevant=`, say), and `where` may be the third argument. What else that
        function takes can be given as well, such as ``return_stats=True``.
        """
        if len(target) > 1:
            *target, where = target  # type: ignore[assignment]
        self._hand_parameters_over()
        options = {name: getattr(self, name) for name in self._options}
        loss: Tensor | tuple[Tensor, Stats] = type(self).function(scores, *target, where=where, **{**options, **extra})
        return loss

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in self._options:
            if name not in self._modules:
                drop_other_state(state_dict, f"{prefix}{name}.")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The options, for repr(), without a `reduction` to the mean; modules among them are shown below."""
        values = {name: getattr(self, name) for name in self._options}
        return ", ".join(
            f"{name}={_shown(value)}"
            for name, value in values.items()
            if not isinstance(value, nn.Module) and (name, value) != ("reduction", "mean")
        )


def _parameters_of(name: str, value: object) -> Iterator[tuple[str, functools.partial[Any], str]]:
    """Where partials hold parameters as keywords: a name for it, the partial and the keyword.

    They may be in a wrapper of rank functions, or in one another.
    """
    while value is not None and not isinstance(value, LossModule):  # a loss has registered its own
        if isinstance(value, functools.partial):
            for keyword, given in value.keywords.items():
                path = f"{name}_{keyword}"
                if isinstance(given, nn.Parameter):
                    yield path, value, keyword
                else:
                    yield from _parameters_of(path, given)
            value = value.func
        else:
            value = getattr(value, "rank_fn", None)


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{float(value.detach()):g}" if value.numel() == 1 else describe(value)
    return getattr(value, "__name__", repr(value))


def _freeze(rank_fn: nn.Module) -> None:
    """Freeze `rank_fn` and all modules in it."""
    rank_fn.requires_grad_(False)
    for module in rank_fn.modules():
        if callable(freeze := getattr(module, "freeze", None)):
            freeze()
