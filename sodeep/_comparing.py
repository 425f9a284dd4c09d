"""First weights with which the convolutions compare the items of a list, before any training.

An output of the last convolution sees a window of 37 items, and every layer on the way there a shorter one. Two units
are enough to compare a pair: f(d + width) - f(d - width) of two rectified units is 2 width where the difference d is
above width, 0 (or what the slope of the PReLU makes of it) where it is below -width, and straight between. So every
layer compares the first item of its window with those that the layer before did not reach, and the last item likewise;
it hands on the scores of these two, and for each item of the window how many of those behind it, and of those before
it, were found above it so far.

The dense layer then adds up for every item the two windows that reach furthest, and takes those out of reach as spread
evenly. The rest is left to the training: the sigmoid behind the dense layer needs the log-odds of a rank, not the rank;
and what lies more than 36 places off can be told from the other end of the list only in sum.
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
"""Added to the scores, so that the rectified units pass them on as they are: four standard deviations."""

FIRST, LAST = 0, 1
"""The ends of a window. What is done from the one is done from the other in mirror image."""


@dataclass(frozen=True)
class _Layer:
    """What the output channels of a convolution hold.

    Args:
        window: how many items an output sees.
        width: of its kernel.
        slope: of its PReLU, below zero.
    """

    window: int = 1
    width: int = 1
    slope: float = 0.0

    def score(self, end: int) -> int:
        """Of the item at this end of the window."""
        return end if self.window > 1 else 0  # the input is the score itself

    def count(self, end: int, item: int) -> int:
        """How many further from the end than `item` (0 at the end) are above it, less those below."""
        return 2 + end * (self.window - 1) + item

    def step(self, end: int, distance: int) -> int:
        """Whether the item at this end is below the one `distance` (from 1) past the end's former reach; two units."""
        return 2 * self.window + 2 * end * (self.width - 1) + 2 * (distance - 1)

    @property
    def channels(self) -> int:
        """How many of the channels are taken; the others keep their random weights."""
        return 2 * self.window + 4 * (self.width - 1)

    def add_count(self, weight: Tensor, bias: Tensor, end: int, item: int, scale: float, most: int) -> None:
        """Let a linear map of these channels, weight (channels) and bias (), add `scale` count / most of an item.

        The channels hold 1 + count / most, positive so that rectified units pass it on.
        """
        if item < self.window - 1:
            weight[self.count(end, item)] += scale
            bias -= scale
        for distance in range(1, self.width if item == 0 else 1):
            step = scale / most / (1 - self.slope)
            weight[self.step(end, distance)] += step / WIDTH
            weight[self.step(end, distance) + 1] -= step / WIDTH
            bias -= step * (1 + self.slope)


@torch.no_grad()
def start_comparing(layers: nn.Sequential, head: nn.Conv1d) -> None:
    """Set the weights of convolutions over a list of standardised scores, and of the dense layer over their outputs.

    Args:
        layers: each a convolution, a batch norm or none, and a PReLU of one weight. There must be enough channels, and
            those of the published network are.
        head: its weight is (n, channels, positions).
    """
    if head.weight.is_meta:
        return
    most = sum(part.kernel_size[0] - 1 for part in layers.modules() if isinstance(part, nn.Conv1d))
    n = head.out_channels
    normal = torch.from_numpy(np.random.default_rng(0).standard_normal((64, 1, n))).to(head.weight)
    here = _Layer()
    for layer in layers:
        parts: list[Any] = list(layer.children())
        convolution, *norms, rectifier = parts
        before, width = here, convolution.kernel_size[0]
        here = _Layer(before.window + width - 1, width, rectifier.weight.item())
        _set_convolution(convolution, before, here, most)
        normal = convolution(normal)
        for norm in norms:
            _pass_on(norm, normal)
        normal = rectifier(normal)
    _set_head(head, here, most)


def _set_convolution(convolution: nn.Conv1d, before: _Layer, here: _Layer, most: int) -> None:
    weight, bias = convolution.weight, convolution.get_parameter("bias")
    weight[: here.channels] = 0
    bias[: here.channels] = 0
    for end in (FIRST, LAST):
        other = LAST - end
        at = range(here.width) if end == FIRST else range(here.width)[::-1]  # positions in the kernel, from this end
        weight[here.score(end), before.score(end), at[0]] = 1
        bias[here.score(end)] = OFFSET if before.window == 1 else 0
        for distance in range(1, here.width):
            for unit, sign in enumerate((1, -1), here.step(end, distance)):
                weight[unit, before.score(other), at[distance]] += 1
                weight[unit, before.score(end), at[0]] -= 1
                bias[unit] = sign * WIDTH
        for item in range(here.window - 1):
            channel = here.count(end, item)
            bias[channel] = 1
            shift = min(item, here.width - 1)  # to the window before that reaches furthest
            before.add_count(weight[channel, :, at[shift]], bias[channel], end, item - shift, 1, most)


def _pass_on(norm: nn.BatchNorm1d, signal: Tensor) -> None:
    """Let a batch norm pass on what has the statistics of `signal` (B, c, l)."""
    variance, mean = torch.var_mean(signal, (0, 2), correction=0)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)
    norm.bias.copy_(mean)
    norm.weight.copy_((variance + norm.eps).sqrt())


def _set_head(head: nn.Conv1d, last: _Layer, most: int) -> None:
    n, _, positions = head.weight.shape
    # the log-odds of a rank in the middle, 4 (rank / n - 1/2), are this slope times 1 + sum of sign(y_j - y_i) over j
    slope = 2 / n
    head.weight.zero_()
    bias = head.get_parameter("bias").fill_(slope)
    for item in range(n):
        out_of_reach = n - 1
        for end in (FIRST, LAST):
            at = range(positions) if end == FIRST else range(positions)[::-1]
            place = item if end == FIRST else n - 1 - item
            window = min(place, positions - 1)
            last.add_count(head.weight[item, :, at[window]], bias[item], end, place - window, slope * most, most)
            out_of_reach -= min(n - 1 - place, most)
            if window == place:
                own = head.weight[item, last.score(end), at[window]]
        # of scores spread evenly, whose standard deviation is 1, this share is above y less the share below
        share = -1 / math.sqrt(3)
        own += slope * out_of_reach * share
        bias[item] -= slope * out_of_reach * share * OFFSET
