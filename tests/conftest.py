import sys

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


@pytest.fixture
def uninstall(monkeypatch):
    """Makes a package look as if it were not installed."""

    def hide(module):
        for name in [name for name in sys.modules if name.partition(".")[0] == module]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, module, None)

    return hide
