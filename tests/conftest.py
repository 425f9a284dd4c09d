import pytest
import torch

torch.set_num_threads(1)  # tensors of a test are small: on a busy machine threads cost up to forty times what they save


@pytest.fixture(autouse=True)
def seeded():
    """No test depends on the order of the tests."""
    torch.manual_seed(0)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)
