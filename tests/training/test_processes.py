"""Several processes that train one sorter."""

import os
import re
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from sodeep import TrainConfig, load_sorter, train_sorter
from sodeep.training import run as run_module
from sodeep.training.processes import Processes
from sodeep.training.train import TrainingInterrupted

CONFIG = TrainConfig(sorter="set", steps=8, batch_size=5, lengths=(3, 20), validate_every=4, seed=3)
WHOLE = run_module.draw


def cut(world, rank):
    """`draw` with the part of one process of the lists that one process would draw."""

    def drawn(weights, count, n, generator, user):
        if not isinstance(count, Share):
            return WHOLE(weights, count, n, generator, user)
        lists = WHOLE(weights, count.total, n, torch.Generator().manual_seed(count.total * 100 + n), user)
        return lists[count.total * rank // world : count.total * (rank + 1) // world]

    return drawn


class Share(int):
    """A number of lists, and that of all processes."""

    total = 0


class Cut(Processes):
    """Processes that draw parts of the same lists."""

    def share(self, total):
        share = Share(super().share(total))
        share.total = total
        return share


def worker(rank, folder, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    results = {}

    # the same lists, cut in two
    run_module.draw = cut(world, rank)
    run = run_module.Run(CONFIG.resolve(), Cut())
    for _ in range(3):
        run.advance()
    results["cut"] = {name: tensor.clone() for name, tensor in run.weights.items()}
    run_module.draw = WHOLE

    # a whole training, with files
    result = train_sorter(CONFIG, f"{folder}/whole.safetensors", log_dir=f"{folder}/log")
    results["whole"] = dict(result.sorter.state_dict())
    results["errors"], results["path"] = result.errors, str(result.path)

    # the lists of the two
    run = run_module.Run(CONFIG.resolve(), Processes())
    stream = run.processes.stream(run.generator, 3, 0)
    results["lists"] = run.draw(stream, run.lengths, shared=True)

    # one process is told to stop; the other stops with it
    if rank == 1:
        advance = run_module.Run.advance

        def stops(self):
            advance(self)
            if self.step == 2:
                signal.raise_signal(signal.SIGTERM)

        run_module.Run.advance = stops
    try:
        train_sorter(CONFIG, f"{folder}/stopped.safetensors")
    except TrainingInterrupted as stop:
        results["stopped"] = (stop.step, stop.checkpoint is not None)
    try:
        train_sorter(CONFIG, f"{folder}/whole.safetensors")
    except FileExistsError as error:
        results["refused"] = str(error)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # the threads of gloo sometimes abort a process that ends through the interpreter


@pytest.fixture(scope="module")
def two(tmp_path_factory, processes):
    folder = tmp_path_factory.mktemp("processes")
    mp.start_processes(worker, args=(str(folder), 2), nprocs=2, start_method=processes.get_start_method())
    return folder, [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def test_a_step_is_that_of_one_process_on_the_same_lists(two, monkeypatch):
    monkeypatch.setattr(run_module, "draw", cut(1, 0))
    config = CONFIG.resolve()
    run = run_module.Run(config, Cut())
    for _ in range(3):
        run.advance()
    for results in two[1]:
        for name, weight in run.weights.items():
            torch.testing.assert_close(results["cut"][name], weight, rtol=1e-4, atol=1e-5)  # float32 through Adam


def test_all_processes_end_with_one_sorter_and_one_file(two):
    folder, (first, second) = two
    assert first["whole"].keys() == second["whole"].keys()
    for name, weight in first["whole"].items():
        assert torch.equal(weight, second["whole"][name])
    assert first["errors"] == second["errors"]
    assert first["path"] == second["path"] == str(folder / "whole.safetensors")
    for name, weight in load_sorter(folder / "whole.safetensors").state_dict().items():
        assert torch.equal(weight, first["whole"][name])
    assert not (folder / "whole.safetensors.run").exists()
    assert len([*(folder / "log").glob("events.*")]) == 1


def test_each_draws_its_share_from_its_own_stream(two):
    first, second = (results["lists"] for results in two[1])
    n = first.shape[1]
    assert second.shape[1] == n
    assert len(first) + len(second) == max(1, round(CONFIG.batch_size * 100 / n))
    assert not torch.equal(first[: len(second)], second[: len(first)])


def test_a_signal_to_one_stops_all_and_one_process_goes_on(two, tmp_path):
    folder, results = two
    assert [result["stopped"] for result in results] == [(2, True), (2, False)]
    state = folder / "stopped.safetensors.run"
    (tmp_path / "stopped.safetensors.run").write_bytes(state.read_bytes())
    result = train_sorter(None, tmp_path / "stopped.safetensors", resume=True)
    assert result.steps == 8
    assert result.error < 0.5


def test_an_error_of_the_first_is_raised_in_all(two):
    folder, results = two
    for result in results:
        assert result["refused"].startswith(f"`out` {folder / 'whole.safetensors'} ")


def test_under_torchrun(tmp_path):
    out = tmp_path / "set.safetensors"
    options = ["--steps", "6", "--batch-size", "4", "--lengths", "3", "20", "--out", str(out)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "sodeep"]
    done = subprocess.run([*command, "train-sorter", *options], capture_output=True, text=True, check=True, timeout=300)
    assert len(re.findall("^Trained 6 steps", done.stdout, re.MULTILINE)) == 1
    assert load_sorter(out).trained["steps"] == 6
