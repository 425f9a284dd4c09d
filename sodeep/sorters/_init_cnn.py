"""Initialisation with which a CNN compares the items of a list before any training.

An output of a convolution sees a window of the list, one item longer for every tap of the kernel after the first: two
items after the first layer, 37 after the last. Two channels compare a pair of them: with a rectifier f (a PReLU of some
slope below zero) and the difference d of two scores, f(d + width) - f(d - width) is 2 width where d is above width,
2 slope width where it is below -width, and straight between. So every layer

1. copies the scores of the first and of the last item of its window;
2. compares the first item with those that are new at the far end, and the last item likewise;
3. keeps a count for each item: of those behind it in the window how many are above it, less those below, and the same
   of those before it. The comparisons of a layer enter the counts of the next, since they exist behind its rectifier.

Nearly all pairs of a window are so compared; those of an item near an end of the list lack up to 8.

The dense layer adds two counts for each item: of the items behind it, where the window starts at the item or ends with
the list, and of those before it. Items further off than that are taken as spread evenly. The rest is left to the
training: the sigmoid behind the dense layer needs the log-odds of a rank, not the rank, and items that share no window
meet in the dense layer only, in a sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

WIDTH = 0.2
"""Of a comparison, in standard deviations of the list: sharper ones have less error and a poorer gradient."""

OFFSET = 4.0
"""Added to the scores, so that rectifiers leave them unchanged from four standard deviations below the mean."""

FIRST, LAST = 0, 1
"""The ends of a window. What is done from the one is done from the other in mirror image."""


@dataclass(frozen=True)
class _Layer:
    """What the output channels of a convolution hold.

    =====================  ===================================================
    2                      the scores at either end of the window
    2 x (window - 1)       counts, as 1 + count / most, which is positive
    2 x 2 x (width - 1)    comparisons of either end with what is new to it
    =====================  ===================================================

    Args:
        most: highest count there can be, in the last layer.
        window: how many items an output sees.
        width: of the kernel.
        slope: of the PReLU, below zero.
    """

    most: int
    window: int = 1
    width: int = 1
    slope: float = 0.0

    def score(self, end: int) -> int:
        """Channel of the item at this end of the window."""
        return end if self.window > 1 else 0  # the input is the score itself

    def count(self, end: int, item: int) -> int:
        """Channel of the count of those further from the end than `item`, which is so many places off the end."""
        return 2 + end * (self.window - 1) + item

    def comparison(self, end: int, distance: int) -> int:
        """First of the two channels that compare this end with the item `distance`, from 1, past its former reach."""
        return 2 * self.window + 2 * end * (self.width - 1) + 2 * (distance - 1)

    @property
    def channels(self) -> int:
        """How many of the channels are taken; the others keep their random weights."""
        return 2 * self.window + 4 * (self.width - 1)

    def add_count(self, weight: Tensor, bias: Tensor, end: int, item: int, scale: float) -> None:
        """Let a linear map of the channels, weight (channels) and bias (), add scale count / most of an item."""
        if item < self.window - 1:
            weight[self.count(end, item)] += scale
            bias -= scale
        for distance in range(1, self.width if item == 0 else 1):
            gain = scale / self.most / (1 - self.slope)
            weight[self.comparison(end, distance)] += gain / WIDTH
            weight[self.comparison(end, distance) + 1] -= gain / WIDTH
            bias -= gain * (1 + self.slope)


@torch.no_grad()
def init_comparing(layers: nn.Sequential, head: nn.Conv1d) -> None:
    """Set the weights of convolutions over a list of standardised scores, and of the dense layer over their outputs.

    Args:
        layers: each a convolution, a batch norm or none, and a PReLU of one weight.
        head: its weight is (n, channels, positions).

    Raises:
        ValueError: a convolution with too few channels; those of the published network have enough.
    """
    if head.weight.is_meta:
        return
    n = head.out_channels
    layer = _Layer(most=sum(part.kernel_size[0] - 1 for part in layers.modules() if isinstance(part, nn.Conv1d)))
    signal = torch.from_numpy(np.random.default_rng(0).standard_normal((64, 1, n))).to(head.weight)
    for module in layers:
        parts: list[Any] = list(module.children())
        convolution, *norms, rectifier = parts
        before, width = layer, convolution.kernel_size[0]
        layer = _Layer(before.most, before.window + width - 1, width, rectifier.weight.item())
        if convolution.out_channels < layer.channels:
            raise ValueError(
                f"`init` must be 'random' where a convolution has fewer than {layer.channels} channels, "
                f"got {convolution.out_channels}."
            )
        _set_convolution(convolution, before, layer)
        signal = convolution(signal)
        for norm in norms:
            _set_identity(norm, signal)
        signal = rectifier(signal)
    _set_head(head, layer)


def _set_convolution(convolution: nn.Conv1d, before: _Layer, layer: _Layer) -> None:
    weight, bias = convolution.weight, convolution.get_parameter("bias")
    weight[: layer.channels] = 0
    bias[: layer.channels] = 0
    for end in (FIRST, LAST):
        other = LAST - end
        at = range(layer.width) if end == FIRST else range(layer.width)[::-1]  # positions in the kernel, from this end
        weight[layer.score(end), before.score(end), at[0]] = 1
        bias[layer.score(end)] = OFFSET if before.window == 1 else 0
        for distance in range(1, layer.width):
            for channel, sign in enumerate((1, -1), layer.comparison(end, distance)):
                weight[channel, before.score(other), at[distance]] += 1
                weight[channel, before.score(end), at[0]] -= 1
                bias[channel] = sign * WIDTH
        for item in range(layer.window - 1):
            channel = layer.count(end, item)
            bias[channel] = 1
            # to the window before that reaches furthest, which may be some items short
            shift = min(item, layer.width - 1)
            before.add_count(weight[channel, :, at[shift]], bias[channel], end, item - shift, 1)


def _set_identity(norm: nn.BatchNorm1d, signal: Tensor) -> None:
    """Make a batch norm the identity: in evaluation mode exactly, on a batch like `signal` (B, c, l) nearly."""
    variance, mean = torch.var_mean(signal, (0, 2), correction=0)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)
    norm.bias.copy_(mean)
    norm.weight.copy_((variance + norm.eps).sqrt())


def _set_head(head: nn.Conv1d, last: _Layer) -> None:
    n, _, positions = head.weight.shape
    # in the middle the log-odds of a rank, 4 (rank / n - 1/2), are so much times 1 + sum of sign(y_j - y_i) over j
    log_odds = 2 / n
    # of scores spread evenly with standard deviation 1, the fraction above y less the fraction below is y times this
    slope = -1 / math.sqrt(3)
    head.weight.zero_()
    bias = head.get_parameter("bias").fill_(log_odds)
    for item in range(n):
        out_of_reach = n - 1
        for end in (FIRST, LAST):
            at = range(positions) if end == FIRST else range(positions)[::-1]
            place = item if end == FIRST else n - 1 - item
            position = min(place, positions - 1)  # of the window that starts at the item, or ends with the list
            weight = head.weight[item, :, at[position]]
            last.add_count(weight, bias[item], end, place - position, log_odds * last.most)
            out_of_reach -= min(n - 1 - place, last.most)
            if position == place:
                score = weight[last.score(end)]
        if out_of_reach:
            score += log_odds * out_of_reach * slope
            bias[item] -= log_odds * out_of_reach * slope * OFFSET
