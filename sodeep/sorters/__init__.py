"""Sorters: networks that map the scores of a list to their ranks.

A sorter is a rank function: ``scores (..., n) -> ranks (..., n)``, the ranks in 1 ... n with 1 for the highest score,
differentiable, with ``where=`` for lists of unequal length. Eight of them are the networks published with the paper,
with their parameter shapes, so that published weights load. ``set`` is a new one: it takes lists of any length, is
equivariant to permutations and compiles.

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

A network of one's own is a subclass of `Sorter` with one method, `Sorter.network`. One of fixed length overrides
`Sorter.any_length`, and one whose training defaults differ overrides `Sorter.recipe`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from sodeep._core.checks import check_choice
from sodeep.sorters.base import Recipe as Recipe, Sorter as Sorter
from sodeep.sorters.published import (
    CNNSorter,
    EndSorter,
    GRUSorter,
    LargeLSTMSorter,
    LSTMSorter,
    MLPSorter,
    ProjectedGRUSorter,
    SumGRUSorter,
)
from sodeep.sorters.set import SetSorter

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
    """A new sorter, trainable; random initial weights are drawn from PyTorch's global generator.

    Args:
        name: a key of `SORTERS`.
        seq_len: the length of list, for sorters of fixed length; ignored by those for any length.
        config: the sorter's options; see its class.

    Raises:
        ValueError: an unknown name or option, or a value the sorter cannot be built with.

    Example:
        >>> import torch
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
