"""Every batch sampler resumes inside an epoch, with the batches that were left, and only where it is the same one."""

from __future__ import annotations

import io
import re
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch

from sodeep import BalancedBatchSampler, GroupBatchSampler

# Python 3.12 says so of every loader with workers in a process where torch has started its threads
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

SIZES = [40, 3, 11, 5, 1, 7, 20]
IDS = np.random.default_rng(0).permutation(np.repeat(np.arange(7), SIZES))
GROUPS = np.random.default_rng(0).permutation(np.repeat(np.arange(30), np.arange(30) % 7 + 1))

SAMPLERS = {
    "classes": partial(BalancedBatchSampler, IDS, 4, 3),
    "groups": partial(GroupBatchSampler, GROUPS, 20),
    "groups in order": partial(GroupBatchSampler, GROUPS, 20, shuffle=False),
    "classes, process 1 of 2": partial(BalancedBatchSampler, IDS, 2, 3, num_replicas=2, rank=1),
    "groups, process 2 of 3": partial(GroupBatchSampler, GROUPS, 10, num_replicas=3, rank=2),
}


@pytest.fixture(params=SAMPLERS)
def build(request):
    return SAMPLERS[request.param]


def epochs_of(build, count):
    """The first epochs, read from their first batch to their last."""
    sampler = build()
    return [list(sampler) for _ in range(count)]


@pytest.mark.parametrize("taken", [0, 1, 4, "all"])
def test_a_state_resumes_inside_an_epoch(build, taken):
    sampler, expected = build(), epochs_of(build, 3)
    taken = len(sampler) if taken == "all" else taken
    list(sampler)
    under_way = iter(sampler)
    assert [next(under_way) for _ in range(taken)] == expected[1][:taken]
    state = sampler.state_dict()
    assert (state["epoch"], state["batches"]) == (1, taken)
    resumed = build()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert resumed.epoch == 1
    resumed.set_epoch(1)  # what a training loop does before the pass
    iter(resumed)
    assert [list(resumed), list(resumed)] == [expected[1][taken:], expected[2]]


def test_a_state_goes_through_a_checkpoint_that_is_read_without_its_pickle(build):
    sampler = build(seed=np.int64(3))
    next(iter(sampler))
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed = build(seed=3)
    resumed.load_state_dict(state)
    assert list(resumed) == list(build(seed=3))[1:]


@pytest.mark.parametrize("sampler", [partial(BalancedBatchSampler, IDS, 2, 3), partial(GroupBatchSampler, GROUPS, 10)])
def test_the_state_of_the_first_process_is_for_all(sampler):
    """As a checkpoint has it, which the first process writes."""
    processes = [sampler(num_replicas=2, rank=rank) for rank in range(2)]
    steps = list(zip(*processes, strict=True))
    source = sampler(num_replicas=2, rank=0)
    first = iter(source)
    assert [next(first), next(first)] == [steps[0][0], steps[1][0]]
    state = source.state_dict()
    resumed = [sampler(num_replicas=2, rank=rank) for rank in range(2)]
    for process in resumed:
        process.load_state_dict(state)
    assert list(zip(*resumed, strict=True)) == steps[2:]


def test_a_state_of_version_0_1_has_no_settings():
    sampler = BalancedBatchSampler(IDS, 4, 3)
    sampler.load_state_dict({"epoch": 1, "batches": 2})
    assert list(sampler) == epochs_of(partial(BalancedBatchSampler, IDS, 4, 3), 2)[1][2:]


def settings(sampler):
    return sampler.state_dict()["settings"]


OTHERS = {
    "seed": (BalancedBatchSampler(IDS, 4, 3, seed=7), "seed=7", "seed=0"),
    "sizes": (
        BalancedBatchSampler(IDS, 3, 4),
        "classes_per_batch=3, samples_per_class=4",
        "classes_per_batch=4, samples_per_class=3",
    ),
    "number": (BalancedBatchSampler(IDS, 4, 3, num_batches=9), "num_batches=9", "num_batches=7"),
    "labels": (
        BalancedBatchSampler(IDS[::-1].copy(), 4, 3),
        "labels='87 samples of 7 classes, 0f7e2a4f'",
        "labels='87 samples of 7 classes, 0f7e2a4f'",
    ),
    "small classes": (
        BalancedBatchSampler(IDS, 4, 3, small_classes="drop", num_batches=7),
        "labels='86 samples of 6 classes, 0f7e2a4f'",
        "labels='87 samples of 7 classes, 0f7e2a4f'",
    ),
    "group: seed": (GroupBatchSampler(GROUPS, 20, seed=7), "seed=7", "seed=0"),
    "group: size and order": (
        GroupBatchSampler(GROUPS, 21, shuffle=False),
        "max_items=21, shuffle=False",
        "max_items=20, shuffle=True",
    ),
    "group: processes": (GroupBatchSampler(GROUPS, 20, num_replicas=2), "num_replicas=2", "num_replicas=1"),
    "group: ids": (
        GroupBatchSampler(GROUPS[::-1].copy(), 20),
        "group='115 items in 30 groups, 0f7e2a4f'",
        "group='115 items in 30 groups, 0f7e2a4f'",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_the_state_of_another_sampler_is_refused(case):
    other, theirs, ours = OTHERS[case]
    sampler = GroupBatchSampler(GROUPS, 20) if case.startswith("group") else BalancedBatchSampler(IDS, 4, 3)
    next(iter(sampler))
    position = sampler.state_dict()
    message = re.escape(
        f"`state_dict` must be of a sampler with the same data and settings, got {theirs}; here {ours}. Build the "
        "sampler as it was, or start an epoch anew: set_epoch(0)."
    ).replace("0f7e2a4f", "[0-9a-f]{8}")  # a checksum
    with pytest.raises(ValueError, match=f"^{message}$"):
        sampler.load_state_dict(other.state_dict())
    assert sampler.state_dict() == position


def test_names_of_classes_and_groups_are_no_part_of_the_state():
    names = [f"class {label}" for label in IDS]
    assert settings(BalancedBatchSampler(names, 4, 3)) == settings(BalancedBatchSampler(IDS, 4, 3))
    assert settings(GroupBatchSampler(names, 20)) == settings(GroupBatchSampler(torch.from_numpy(IDS), 20))


# ---- in loaders and trainers -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("taken", [0, 1, 4, "all"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["classes", "groups"])
def test_a_stateful_data_loader_resumes_inside_an_epoch(name, workers, taken):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    build = SAMPLERS[name]

    def loader():
        items = torch.arange(len(GROUPS))
        return stateful.StatefulDataLoader(items, batch_sampler=build(), num_workers=workers)

    first = loader()
    expected = epochs_of(build, 3)
    assert [batch.tolist() for batch in first] == expected[0]
    under_way = iter(first)
    seen = [batch.tolist() for batch in (under_way if taken == "all" else islice(under_way, taken))]
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    if taken != "all":  # a loader that had come to its end starts the next pass
        seen += [batch.tolist() for batch in second]
    assert seen == expected[1]
    assert [batch.tolist() for batch in second] == expected[2]


@pytest.mark.filterwarnings("ignore")  # those of Lightning are not ours to mend
@pytest.mark.parametrize("name", ["classes", "groups"])
def test_lightning_resumes_inside_an_epoch(tmp_path, name):
    """From a checkpoint written after two batches of its second epoch, a run goes on with the third."""
    lightning = pytest.importorskip("lightning")
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    build = SAMPLERS[name]
    seen = []

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def train_dataloader(self):
            return stateful.StatefulDataLoader(torch.arange(len(GROUPS)), batch_sampler=build())

        def training_step(self, batch, _):
            seen.append(batch.tolist())
            return self.weight.sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(steps, checkpoint=None):
        off = ("logger", "enable_progress_bar", "enable_model_summary", "use_distributed_sampler")
        save = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=taken, filename="{step}")
        trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", callbacks=[save], **dict.fromkeys(off, False))
        trainer.fit(Model(), ckpt_path=checkpoint)

    size = len(build())
    expected = [batch for epoch in epochs_of(build, 3) for batch in epoch]
    taken = size + 2
    fit(taken + 1)
    fit(2 * size + 1, tmp_path / f"step={taken}.ckpt")
    assert seen == expected[: taken + 1] + expected[taken : 2 * size + 1]
