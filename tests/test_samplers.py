"""Batches of P classes with K samples."""

from __future__ import annotations

import collections
import re

import numpy as np
import pytest
import torch

from sodeep import BalancedBatchSampler

# Python 3.12 says so of every loader with workers in a process where torch has started its threads
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

SIZES = [40, 3, 11, 5, 1, 7, 20]
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(7), SIZES))


def refuses(error: type[Exception], message: str):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize(("p", "k"), [(2, 2), (3, 4), (7, 5), (5, 3)])
def test_batches_hold_p_classes_with_k_samples(p, k):
    sampler = BalancedBatchSampler(LABELS, p, k)
    batches = list(sampler)
    assert len(batches) == len(sampler) == max(sum(SIZES) // (p * k), 1)
    for batch in batches:
        counts = collections.Counter(LABELS[batch].tolist())
        assert list(counts.values()) == [k] * p
        for label in counts:
            # no sample twice unless the class is too small, and then as evenly as can be
            drawn = collections.Counter(i for i in batch if LABELS[i] == label)
            assert len(drawn) == min(k, SIZES[label])
            assert max(drawn.values()) - min(drawn.values()) <= 1


@pytest.mark.parametrize(("p", "k"), [(2, 2), (3, 4), (5, 2)])
def test_an_epoch_shows_classes_and_samples_evenly(p, k):
    sampler = BalancedBatchSampler(LABELS, p, k, num_batches=23)
    for _ in range(3):
        drawn = np.concatenate(list(sampler))
        classes = collections.Counter(LABELS[drawn].tolist())
        assert len(classes) == 7
        assert max(classes.values()) - min(classes.values()) in (0, k)
        for label in range(7):
            samples = [np.sum(drawn == i) for i in np.flatnonzero(label == LABELS)]
            assert max(samples) - min(samples) <= 1


def test_small_classes_may_be_dropped():
    sampler = BalancedBatchSampler(LABELS, 2, 4, small_classes="drop")
    assert len(sampler) == (sum(SIZES) - 3 - 1) // 8
    drawn = np.concatenate(list(sampler))
    assert set(LABELS[drawn].tolist()) == {0, 2, 3, 5, 6}


def test_an_epoch_is_a_function_of_seed_and_number():
    sampler = BalancedBatchSampler(LABELS, 3, 2, seed=5)
    epochs = [list(sampler) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    again = BalancedBatchSampler(LABELS, 3, 2, seed=5)
    again.set_epoch(2)
    assert list(again) == epochs[2]
    again.set_epoch(1)
    assert list(again) == epochs[1]
    assert list(again) == epochs[2]
    assert list(BalancedBatchSampler(LABELS, 3, 2, seed=6)) != epochs[0]


def test_the_state_of_global_generators_is_left_alone():
    torch.manual_seed(0)
    state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    list(BalancedBatchSampler(LABELS, 3, 2))
    assert torch.equal(torch.get_rng_state(), state[0])
    np.testing.assert_array_equal(np.random.get_state()[1], state[1])  # noqa: NPY002


def test_processes_have_different_classes_in_every_step():
    samplers = [BalancedBatchSampler(LABELS, 2, 3, num_replicas=3, rank=rank) for rank in range(3)]
    assert [len(sampler) for sampler in samplers] == [sum(SIZES) // 18] * 3
    for _ in range(2):
        for step in zip(*samplers, strict=True):
            assert [len(batch) for batch in step] == [6, 6, 6]
            assert len({int(label) for batch in step for label in LABELS[batch]}) == 6
    single = list(BalancedBatchSampler(LABELS, 6, 3, num_batches=4))
    parts = zip(*(BalancedBatchSampler(LABELS, 2, 3, num_batches=4, num_replicas=3, rank=r) for r in range(3)))  # noqa: B905
    assert [[index for batch in step for index in batch] for step in parts] == single


def test_every_form_of_labels_gives_the_same_batches():
    expected = list(BalancedBatchSampler(LABELS, 3, 2))
    for labels in (
        LABELS.tolist(),
        torch.from_numpy(LABELS),
        torch.from_numpy(LABELS)[:, None],
        LABELS.astype(np.float32),
        [f"class {label}" for label in LABELS],
        [f"class {label}".encode() for label in LABELS],
        LABELS.astype(object),
        LABELS + 10**12,
    ):
        assert list(BalancedBatchSampler(labels, 3, 2)) == expected


def test_data_loader():
    data = torch.utils.data.TensorDataset(torch.arange(len(LABELS)), torch.from_numpy(LABELS))
    sampler = BalancedBatchSampler(LABELS, 4, 3)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    assert len(loader) == len(sampler)
    epochs = [[indices.tolist() for indices, _ in loader] for _ in range(2)]
    sampler.set_epoch(0)
    assert epochs == [list(sampler), list(sampler)]


def position(sampler) -> tuple[int, int]:
    """The epoch of its state, and how many batches of it were drawn."""
    state = sampler.state_dict()
    return state["epoch"], state["batches"]


def epochs_of(sampler: BalancedBatchSampler, count: int) -> list[list[list[int]]]:
    """The first epochs, read by hand from a sampler of the same labels and options."""
    sizes = sampler.classes_per_batch, sampler.samples_per_class
    again = BalancedBatchSampler(LABELS, *sizes, num_replicas=sampler.num_replicas, rank=sampler.rank)
    return [list(again) for _ in range(count)]


@pytest.mark.parametrize("chosen", [False, True], ids=["counted", "set_epoch"])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_the_passes_of_a_data_loader_are_the_epochs_in_turn(workers, persistent, chosen):
    sampler = BalancedBatchSampler(LABELS, 4, 3)
    loader = torch.utils.data.DataLoader(
        torch.arange(len(LABELS)), batch_sampler=sampler, num_workers=workers, persistent_workers=persistent
    )
    seen = []
    for epoch in range(3):
        if chosen:
            sampler.set_epoch(epoch)
        seen.append([batch.tolist() for batch in loader])
    assert seen == epochs_of(sampler, 3)


def test_iterators_that_nobody_reads_are_no_passes():
    sampler = BalancedBatchSampler(LABELS, 3, 2)
    unread = [iter(sampler) for _ in range(3)]
    assert list(sampler) == epochs_of(sampler, 1)[0]
    assert list(unread[2]) == epochs_of(sampler, 2)[1]
    assert sampler.epoch == 2


def test_a_pass_that_is_broken_off_counts():
    sampler = BalancedBatchSampler(LABELS, 3, 2)
    firsts = [next(iter(sampler)) for _ in range(3)]
    assert firsts == [batches[0] for batches in epochs_of(sampler, 3)]
    assert sampler.epoch == 2


def test_an_old_pass_does_not_move_the_epoch():
    sampler = BalancedBatchSampler(LABELS, 3, 2)
    old, new = iter(sampler), iter(sampler)
    next(old), next(new)
    assert list(old) == epochs_of(sampler, 1)[0][1:]
    assert position(sampler) == (1, 1)


def test_set_epoch_during_a_pass_is_for_the_next():
    sampler = BalancedBatchSampler(LABELS, 3, 2)
    under_way = iter(sampler)
    next(under_way)
    sampler.set_epoch(0)
    next(under_way)
    assert position(sampler) == (0, 2)
    assert list(sampler) == epochs_of(sampler, 1)[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("chosen", [False, True], ids=["counted", "set_epoch"])
def test_a_process_that_looks_at_a_batch_stays_in_step(workers, chosen):
    samplers = [BalancedBatchSampler(LABELS, 2, 2, num_replicas=2, rank=rank) for rank in range(2)]
    loaders = [
        torch.utils.data.DataLoader(torch.arange(len(LABELS)), batch_sampler=sampler, num_workers=workers)
        for sampler in samplers
    ]
    next(iter(loaders[0]))
    for epoch in range(2):
        for sampler in samplers if chosen else ():
            sampler.set_epoch(epoch)
        seen = [[batch.tolist() for batch in loader] for loader in loaders]
        assert seen == [epochs_of(sampler, 2)[epoch] for sampler in samplers]


def test_passes_never_read_to_their_end_warn_where_they_do_not_count():
    sampler = BalancedBatchSampler(LABELS, 2, 2, num_replicas=2)
    firsts = [next(iter(sampler)) for _ in range(2)]
    message = (
        "BalancedBatchSampler deals epoch 0 for the third time: no pass was read to its end. "
        "With several processes call set_epoch before every pass, with a new number."
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        firsts.append(next(iter(sampler)))
    assert firsts[0] == firsts[1] == firsts[2]
    for epoch in range(4):
        sampler.set_epoch(epoch)
        assert next(iter(sampler)) == epochs_of(sampler, 4)[epoch][0]


def test_as_many_batches_as_an_epoch_has_are_a_pass():
    sampler = BalancedBatchSampler(LABELS, 2, 2, num_replicas=2)
    for batches in epochs_of(sampler, 3):
        batch = iter(sampler)
        assert [next(batch) for _ in range(len(sampler))] == batches


def test_another_epoch_than_the_loaded_one_starts_at_its_first_batch():
    sampler = BalancedBatchSampler(LABELS, 4, 3)
    sampler.load_state_dict({"epoch": 0, "batches": 5})
    sampler.set_epoch(1)
    assert list(sampler) == epochs_of(sampler, 2)[1]


ERRORS = {
    "P": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 1, 2),
        "`classes_per_batch` must be a whole number of at least 2, got 1.",
    ),
    "K": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 2, 1),
        "`samples_per_class` must be a whole number of at least 2, got 1.",
    ),
    "few": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 8, 2),
        "`labels` must have at least classes_per_batch * num_replicas = 8 classes, got 7. Lower classes_per_batch.",
    ),
    "few processes": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 2, 2, num_replicas=4),
        "`labels` must have at least classes_per_batch * num_replicas = 8 classes, got 7. Lower classes_per_batch.",
    ),
    "few large": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 3, 11, small_classes="drop", num_replicas=2),
        "`labels` must have at least classes_per_batch * num_replicas = 6 classes with 11 samples or more, got 3. "
        "Lower classes_per_batch.",
    ),
    "small_classes": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 2, 2, small_classes="keep"),
        "`small_classes` must be one of repeat, drop, got 'keep'.",
    ),
    "rank": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 2, 2, num_replicas=2, rank=2),
        "`rank` must be a whole number from 0 to 1, got 2.",
    ),
    "batches": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 2, 2, num_batches=0),
        "`num_batches` must be a whole number of at least 1, got 0.",
    ),
    "seed": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 2, 2, seed=-1),
        "`seed` must be a whole number of at least 0, got -1.",
    ),
    "multi-hot": (
        ValueError,
        lambda: BalancedBatchSampler(torch.eye(4), 2, 2),
        "`labels` must have shape (n,), one label a sample, got shape (4, 4).",
    ),
    "nan": (
        ValueError,
        lambda: BalancedBatchSampler([0.0, float("nan")], 2, 2),
        "`labels` must not be NaN, got 1 NaN of 2 labels, the first at index 1. "
        "NaN equals nothing, not even itself: drop those rows.",
    ),
    "kind": (
        TypeError,
        lambda: BalancedBatchSampler([0, "a"], 2, 2),
        "`labels` must be all numbers or all strings, got 0 at index 0 and 'a' at index 1. "
        "Make them of one kind, for example with str().",
    ),
    "state of another form": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 2, 2).load_state_dict({"epoch": 1}),
        "`state_dict` must be what state_dict() gave, with epoch and batches, got {'epoch': 1}.",
    ),
    "state with other things": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 2, 2).load_state_dict({"epoch": 1, "batches": 1, "settings": 3}),
        "`state_dict` must be what state_dict() gave, with epoch and batches, got {'epoch': 1, 'batches': 1, "
        "'settings': 3}.",
    ),
    "state of version 0.1 of another sampler": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 4, 3).load_state_dict({"epoch": 1, "batches": 8}),
        "`state_dict` must be of a sampler with the same data and settings, got 8 batches of an epoch that has 7 here.",
    ),
    "state": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 2, 2).load_state_dict({"epoch": 1, "batches": -1}),
        "`batches` must be a whole number of at least 0, got -1.",
    ),
    "epoch": (
        ValueError,
        lambda: BalancedBatchSampler(LABELS, 2, 2).set_epoch(-1),
        "`epoch` must be a whole number of at least 0, got -1.",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
    error, call, message = ERRORS[case]
    with refuses(error, message):
        call()
