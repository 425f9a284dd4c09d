"""Arithmetic with masks by their bytes equals torch's own with bools."""

import pytest
import torch
from torch.testing import assert_close

from sodeep._core.masks import any_of, as_bytes, filled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 4, 7), (0, 3)])
def test_equals_operations_on_bools(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=dtype) * (torch.finfo(dtype).max / 8)
    mask = torch.rand(shape, generator=generator) < 0.3
    assert_close(any_of(mask), mask.any(-1), rtol=0, atol=0)
    assert_close(x * as_bytes(mask), x * mask, rtol=0, atol=0)
    for value in (torch.finfo(dtype).min / 4, 1.0):
        assert_close(filled(x, mask, value), x.masked_fill(mask, value), rtol=0, atol=0)


def test_of_a_transposed_mask_inside_transforms_and_a_graph():
    mask = torch.tensor([[True, False, False], [True, True, False]])
    assert_close(any_of(mask.T), torch.tensor([True, True, False]))
    assert_close(torch.vmap(as_bytes)(mask), mask.to(torch.uint8))
    assert_close(torch.vmap(any_of)(mask), torch.tensor([True, True]))
    x = torch.ones(2, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(filled(x, mask, -1.0).sum(), x)
    assert_close(grad, (~mask).float())
