import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    """No test depends on the order of the tests."""
    torch.manual_seed(0)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)
