import gc
import signal
import sys

import pytest
import torch
import torch.distributed as dist

torch.set_num_threads(1)  # tensors of a test are small: on a busy machine threads cost up to forty times what they save


@pytest.fixture(autouse=True, scope="session")
def heeded():
    """Tests send Ctrl-C, which is ignored in what a shell runs in the background."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def seeded():
    """No test depends on the order of the tests."""
    torch.manual_seed(0)


@pytest.fixture
def process_group(tmp_path):
    """torch.distributed over gloo, with this process alone.

    A DDP module must not outlive its group: its end waits for a thread of gloo, which may wait for the interpreter's
    lock, and both for ever. Here the variables of the test are gone, and the module is in cycles that `gc` finds.
    """
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    gc.collect()
    dist.destroy_process_group()


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
