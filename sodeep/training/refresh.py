"""Fine-tuning of a sorter on the scores of a model in training, between its epochs.

A sorter is trained on synthetic lists. While a model trains, its scores may drift to lists the sorter never saw.
`RefreshedSorter` replaces the sorter in the loss, keeps the most recent lists that it has ranked, and fine-tunes a copy
on them when `RefreshedSorter.refresh` is called.
"""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sodeep._core.checks import check_at_least, check_number, check_positive, readable
from sodeep._core.precision import working_dtype
from sodeep.generators import DEFAULT, check_mixture, draw
from sodeep.ranks import exact_rank
from sodeep.sorters.base import Sorter
from sodeep.training.objective import sorter_loss


class RefreshResult(NamedTuple):
    """The result of a `RefreshedSorter.refresh`."""

    before: float
    """Mean ``|rank error| / n`` on the remembered lists, before."""
    after: float
    """The same of the fine-tuned copy."""
    kept: bool
    """Whether the copy had the lower objective, of values and gradient together, and so replaced the weights."""
    lists: int
    """How many lists were remembered."""


class RefreshedSorter(nn.Module):
    """A rank function that is a copy of a sorter, and can be fine-tuned on the lists it has ranked.

    In training mode it remembers the most recent lists, detached, on their device; `refresh`, called between epochs,
    fine-tunes a copy of the current weights on them, mixed half and half with synthetic lists of the same lengths so
    that it does not forget, and takes the new weights if the objective of values and gradient is lower on the
    remembered lists. Between calls the weights are frozen; the sorter that was given is never changed.

    The remembered lists are not part of the ``state_dict``. Under torch.compile and torch.func nothing is remembered.
    With several processes, refresh in one and load its ``state_dict`` in the others.

    Args:
        sorter: any sorter; it is copied.
        capacity: how many of the most recent lists are remembered.
        steps: optimisation steps of a refresh.
        batch_size: remembered lists a step, and as many synthetic ones.
        lr: learning rate of Adam at the start of a refresh; it falls linearly to zero. None: a fifth of that
            of the sorter's training recipe, at most 3e-4.
        gradient_weight: weight of the gradient term beside the L1 loss, as in `TrainConfig`; None: that of the
            sorter's recipe there.
        distributions: mixture of the synthetic lists.
        seed: of every draw; the same lists and seed give the same weights, on the same machine.

    Example:
        >>> from sodeep.losses.rank import SpearmanLoss
        >>> from sodeep.sorters import build_sorter
        >>> ranker = RefreshedSorter(build_sorter("set"), steps=5)
        >>> criterion = SpearmanLoss(ranker)
        >>> for epoch in range(2):
        ...     scores = torch.rand(4, 20)  # of a model
        ...     loss = criterion(scores, torch.rand(4, 20))
        ...     result = ranker.refresh()
        >>> result.lists
        8
    """

    def __init__(
        self,
        sorter: Sorter,
        *,
        capacity: int = 4096,
        steps: int = 200,
        batch_size: int = 32,
        lr: float | None = None,
        gradient_weight: float | None = None,
        distributions: Mapping[str, float] = DEFAULT,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(sorter, Sorter):
            raise TypeError(
                f"`sorter` must be a sodeep.Sorter, got {type(sorter).__name__}. Load one: load_sorter('set')."
            )
        check_mixture(distributions)
        self.sorter = copy.deepcopy(sorter).freeze()
        self.sorter.source = None  # its weights are to be saved
        self.capacity = check_at_least(capacity, 1, "capacity")
        self.steps = check_at_least(steps, 1, "steps")
        self.batch_size = check_at_least(batch_size, 1, "batch_size")
        recipe = sorter.recipe(sorter.config)
        self.lr = check_positive(min(3e-4, recipe.lr / 5) if lr is None else lr, "lr")
        if gradient_weight is None:
            gradient_weight = recipe.gradient_weight
        self.gradient_weight = check_number(gradient_weight, "gradient_weight", low=0)
        self._gradient_step = recipe.gradient_step
        self.distributions = dict(distributions)
        self.seed = check_at_least(seed, 0, "seed")
        self._recent: deque[tuple[Tensor, Tensor | None]] = deque()
        self._remembering = 0
        self._refreshes = 0

    @property
    def seq_len(self) -> int | None:
        """The one length of list it takes, or None for any."""
        return self.sorter.seq_len

    def forward(self, scores: Tensor, where: Tensor | None = None) -> Tensor:
        """Ranks of `scores` (..., n), as the sorter; in training mode the lists are remembered."""
        ranks: Tensor = self.sorter(scores, where=where)
        if self.training and readable(scores) and scores.numel():
            self._remember(scores, where)
        return ranks

    def _remember(self, scores: Tensor, where: Tensor | None) -> None:
        lists = scores.detach().reshape(-1, scores.shape[-1])
        stride = -(-len(lists) // self.capacity) or 1  # of a batch beyond the capacity, every second or third list
        lists = lists[::stride].to(working_dtype(lists), copy=True)
        mask = None if where is None else where.expand(scores.shape).reshape(-1, lists.shape[-1])[::stride].clone()
        self._recent.append((lists, mask))
        self._remembering += len(lists)
        while self._remembering > self.capacity:
            self._remembering -= len(self._recent.popleft()[0])

    def _remembered(self) -> list[Tensor]:
        """The remembered lists without their masked items, a tensor (lists, n) for every n that occurs."""
        by_length: defaultdict[int, list[Tensor]] = defaultdict(list)
        for lists, where in self._recent:
            if where is None:
                by_length[lists.shape[-1]].append(lists)
                continue
            count = where.sum(-1)
            for n in set(count.tolist()) - {0}:
                by_length[n].append(lists[where & (count == n).unsqueeze(-1)].reshape(-1, n))
        device = next(self.sorter.parameters()).device
        return [torch.cat(parts).to(device) for n, parts in sorted(by_length.items()) if n >= 2]

    def refresh(self) -> RefreshResult:
        """Fine-tune on the remembered lists; see the class.

        Returns:
            `RefreshResult`: the rank errors before and after, and whether the new weights are kept.

        Raises:
            RuntimeError: no list of two or more items has passed in training mode.
        """
        groups = self._remembered()
        if not groups:
            raise RuntimeError(
                "`refresh` must come after lists of two or more items were ranked in training mode, got none. "
                "Call it at the end of an epoch, and check that the loss is not in evaluation mode."
            )
        generator = torch.Generator().manual_seed(self.seed + self._refreshes)
        self._refreshes += 1
        student = copy.deepcopy(self.sorter).unfreeze()
        for module in student.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()  # the remembered lists are too few to take statistics from
        optimizer = torch.optim.Adam(student.parameters(), lr=self.lr)
        sizes = torch.tensor([float(len(group)) for group in groups])
        with torch.enable_grad():
            for step in range(self.steps):
                optimizer.param_groups[0]["lr"] = self.lr * (1 - step / self.steps)
                group = groups[int(torch.multinomial(sizes, 1, generator=generator))]
                rows = torch.randint(len(group), (min(self.batch_size, len(group)),), generator=generator)
                remembered = group[rows.to(group.device)]
                synthetic = draw(self.distributions, len(remembered), remembered.shape[-1], generator)
                optimizer.zero_grad()
                lists = torch.cat([remembered, synthetic.to(remembered)])
                loss = self._loss(student, lists, generator)
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(student.parameters(), 1.0)
                optimizer.step()
        student.freeze()
        kept = self._objective(student, groups) < self._objective(self.sorter, groups)
        before, after = _error(self.sorter, groups), _error(student, groups)
        if kept:
            self.sorter.load_state_dict(student.state_dict())
        return RefreshResult(before, after, kept, int(sizes.sum()))

    def _objective(self, sorter: Sorter, groups: list[Tensor]) -> float:
        """The sum of `sorter_loss` over the remembered lists."""
        total = 0.0
        for group in groups:
            generator = torch.Generator().manual_seed(self.seed)
            with torch.enable_grad():
                loss = self._loss(sorter, group, generator)
            total += len(group) * float(loss.detach())
        return total

    def _loss(self, sorter: Sorter, lists: Tensor, generator: torch.Generator) -> Tensor:
        return sorter_loss(
            sorter, lists, generator, gradient_weight=self.gradient_weight, gradient_step=self._gradient_step
        )

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"capacity={self.capacity}, steps={self.steps}, batch_size={self.batch_size}, lr={self.lr}"


@torch.no_grad()
def _error(sorter: Sorter, groups: list[Tensor]) -> float:
    """Mean ``|rank error| / n`` over all lists."""
    errors = [(sorter(group) - exact_rank(group)).abs().mean(-1) / group.shape[-1] for group in groups]
    return float(torch.cat(errors).mean())
