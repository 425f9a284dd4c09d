"""Initialisation with which an LSTM is a rank function before any training.

A cell whose forget gate is open is a sum. With the candidate tanh((y - b) / width) it holds by how many the items so
far that are above the threshold b outnumber those below; the output gate, which sees the current item, decides where on
the axis this count is read. Two cells of one threshold, the second subtracted and read from the next threshold on, are
read around their own threshold only. Over all thresholds and both directions that adds up to

    sum_j sign(y_j - y_i),

and so to the rank of item i. The first layer counts standardised scores, at thresholds that split a normal distribution
evenly. Every later one counts the ranks that the layer before computes: those are spread evenly whatever the scores
were, and the thresholds too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

OPEN = 12.0
"""Bias of the forget gate: a hundred items later, 0.9994 of a count is left."""


@torch.no_grad()
def init_counting(rnn: nn.RNNBase, head: nn.Conv1d | nn.Linear, n: int) -> None:
    """Set the weights of a bidirectional LSTM over one score an item, and of the head over its outputs.

    Args:
        rnn: an LSTM of two units or more. An odd one keeps its random weights.
        head: one dense map for the list, weight (n, n, 2 units): rank to, item and output from. Or one map for every
            item, weight (1, 2 units). The counts of all items are read alike, so the initial ranks are the same.
        n: length of the lists.
    """
    if head.weight.is_meta:
        return
    count = rnn.hidden_size // 2
    # the input gate keeps the counts of a whole list small, where tanh of them is linear
    gate = 0.1 / n
    reading = torch.zeros(rnn.hidden_size)
    reading[:count], reading[count : 2 * count] = 0.5 / (gate * n), -0.5 / (gate * n)
    reading = reading.repeat(2)  # of both directions: (rank - 1/2) / n - 1/2
    # no sharper than the items lie, or the gradient would vanish between them
    spread = max(1.0, count / n)
    levels = (torch.arange(count) + 0.5) / count
    _set_layer(rnn, 0, torch.ones(1), torch.special.ndtri(levels), 1.5 * spread, gate)
    for layer in range(1, rnn.num_layers):
        _set_layer(rnn, layer, -reading, levels - 0.5, 0.8 * spread, gate)
    head.weight.zero_()
    ranks = len(head.weight)
    head.weight.view(ranks, ranks, -1).diagonal().copy_(reading.unsqueeze(1))
    nn.init.constant_(head.get_parameter("bias"), (n + 1) / (2 * n))


def _set_layer(rnn: nn.RNNBase, layer: int, read: Tensor, thresholds: Tensor, spread: float, gate: float) -> None:
    """Both directions of a layer count the coordinate ``y = read @ input``."""
    count = len(thresholds)
    gaps = thresholds.diff()
    gaps = torch.cat([gaps[:1], gaps, gaps[-1:]]) if count > 1 else torch.ones(2)
    edges = torch.cat([thresholds - gaps[:-1] / 2, thresholds[-1:] + gaps[-1:] / 2])
    edges[0], edges[-1] = -1e2, 1e2  # the outermost bins are open
    width = spread * (gaps[:-1] + gaps[1:]) / 2
    softness = spread * gaps / 2
    both = torch.cat([thresholds, thresholds])
    for direction in ("", "_reverse"):
        into, bias = (getattr(rnn, f"{name}_ih_l{layer}{direction}") for name in ("weight", "bias"))
        recurrent, recurrent_bias = (getattr(rnn, f"{name}_hh_l{layer}{direction}") for name in ("weight", "bias"))
        # input, forget, candidate and output gate; an odd unit at the end is left random
        gates = [
            [part[: 2 * count] for part in tensor.split(rnn.hidden_size)]
            for tensor in (into, bias, recurrent, recurrent_bias)
        ]
        for part in (part for tensor in gates for part in tensor):
            part.zero_()
        (_, _, candidate, output), (input_bias, forget_bias, candidate_bias, output_bias) = gates[:2]
        input_bias.fill_(math.log(gate))
        forget_bias.fill_(OPEN)
        slope = torch.cat([1 / width, 1 / width])
        candidate.copy_(slope.unsqueeze(1) * read)
        candidate_bias.copy_(-slope * both)
        slope = torch.cat([1 / softness[:-1], 1 / softness[1:]])
        output.copy_(slope.unsqueeze(1) * read)
        output_bias.copy_(-slope * torch.cat([edges[:-1], edges[1:]]))
