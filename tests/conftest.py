import gc
import os
import runpy
import signal
import sys

import pytest
import torch
import torch._dynamo
import torch.distributed as dist

torch.set_num_threads(1)  # tensors of a test are small: on a busy machine threads cost up to forty times what they save


def pytest_collection_finish():
    """What is there by now stays: thousands of tests, torch and its compiler. The collector need not look at it again.

    The compiler would be imported by the first optimizer.
    """
    gc.collect()
    gc.freeze()


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


@pytest.fixture(scope="session")
def processes():
    """The `multiprocessing` context of new processes, that of comparisons."""
    from sodeep.comparison.executors import process_context

    return process_context()


def run_as_main(script, options, output):
    """In a process of its own: a script, with what it prints in a file."""
    sys.argv = [str(script), *options]
    written = os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(written, stream)
    runpy.run_path(str(script), run_name="__main__")


@pytest.fixture
def run_script(processes, tmp_path):
    """Runs a script to its end; gives its exit status and what it printed."""

    def run(script, *options):
        process = processes.Process(target=run_as_main, args=(script, options, tmp_path / "printed"))
        process.start()
        process.join()
        return process.exitcode, (tmp_path / "printed").read_text(encoding="utf-8")

    return run


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
