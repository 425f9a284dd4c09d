"""The networks published with SoDeep (Engilberge et al., CVPR 2019), with their parameter shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sodeep._core.checks import check_at_least, check_choice, is_whole
from sodeep.sorters._init_cnn import init_comparing
from sodeep.sorters._init_lstm import init_counting
from sodeep.sorters.base import Recipe, Sorter, check_count, require_seq_len


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
            head of an `LSTMSorter` with ``init="counting"``.
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

    @classmethod
    def recipe(cls, config: Mapping[str, Any]) -> Recipe:
        """See `Sorter.recipe`."""
        return Recipe(gradient_step=0.05)  # neither cuDNN nor oneDNN has a second derivative of recurrent cells

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
            seq_len = require_seq_len(self.name, seq_len, "or head='item' for lists of any length")
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
        init: initial weights. "counting": those with which the network is a soft rank before training, each cell a
            counter of the items above a threshold (`sodeep.sorters._init_lstm`). A count gives the rank in a list of
            known length only: without `seq_len`, with the sum head, and with fewer than 8 units, they are random in
            any case. "random": as published.
    """

    name = "lstm"
    cell = nn.LSTM
    published_head, published_hidden, published_layers = "dense", 128, 2

    @classmethod
    def recipe(cls, config: Mapping[str, Any]) -> Recipe:
        """See `Sorter.recipe`."""
        hidden: Any = config.get("hidden")
        large = not is_whole(hidden) or hidden >= 8  # None is the published width
        # a count gives the rank in a list of known length only
        fixed = not cls.any_length(config) or (config.get("head") == "item" and config.get("seq_len") is not None)
        counting = config.get("init") != "random" and fixed and large
        # a larger rate would destroy the initial solution
        recipe = super().recipe(config)
        return replace(recipe, steps=1500, batch_size=16, lr=2e-5) if counting else recipe

    def __init__(
        self,
        seq_len: int | None = None,
        *,
        head: Literal["dense", "item", "sum"] | None = None,
        hidden: int | None = None,
        layers: int | None = None,
        normalize: bool = True,
        init: Literal["counting", "random"] = "counting",
    ) -> None:
        check_choice(init, ("counting", "random"), "init")
        super().__init__(seq_len, head=head, hidden=hidden, layers=layers, normalize=normalize)
        self.config["init"] = "random"
        if init == "counting" and seq_len is not None and self.head is not None and self.rnn.hidden_size >= 8:
            self.seq_len = check_at_least(seq_len, 1, "seq_len")
            self.config |= {"seq_len": self.seq_len, "init": "counting"}
            init_counting(self.rnn, self.head, self.seq_len)


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
        seq_len = require_seq_len(self.name, seq_len)
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
        init: initial weights. "comparing": those with which each item is compared with the 36 on either side, for
            scores of about unit scale (`sodeep.sorters._init_cnn`). "random": as published.
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
        random = config.get("init") == "random"
        return Recipe() if random else Recipe(steps=16000, batch_size=64, lr=5e-4, gradient_weight=0.004)

    @classmethod
    def check_length(cls, seq_len: int) -> None:
        """See `Sorter.check_length`."""
        if seq_len < cls.shortest:
            raise ValueError(
                f"`seq_len` must be at least {cls.shortest} for the cnn sorter, whose convolutions shorten the list by "
                f"{cls.shortest - 1}, got {seq_len}. Use a sorter for any length such as 'set' for short lists."
            )

    def __init__(
        self,
        seq_len: int | None = None,
        *,
        init: Literal["comparing", "random"] = "comparing",
        normalize: bool = True,
    ) -> None:
        check_choice(init, ("comparing", "random"), "init")
        seq_len = require_seq_len(self.name, seq_len)
        self.check_length(seq_len)
        super().__init__(seq_len, normalize=normalize, init=init)
        self.layers = nn.Sequential()
        for i, width in enumerate(self.widths):
            into, out = self.channels[i : i + 2]
            norm = [nn.BatchNorm1d(out)] if i % 2 == 1 else []
            self.layers.append(nn.Sequential(nn.Conv1d(into, out, width), *norm, nn.PReLU()))
        self.head = _DenseHead(self.channels[-1], seq_len, seq_len - self.shortest + 1)
        if init == "comparing":
            init_comparing(self.layers, self.head)

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
        seq_len = require_seq_len(self.name, seq_len)
        hidden = check_at_least(hidden, 1, "hidden")
        super().__init__(seq_len, normalize=normalize, hidden=hidden)
        self.layers = nn.Sequential(
            nn.Linear(seq_len, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, seq_len)
        )

    def network(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """See `Sorter.network`."""
        ranks: Tensor = self.layers(x)
        return ranks
