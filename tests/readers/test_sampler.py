"""`ExactSampler` in a plain DataLoader: the order of the readers, its passes, resuming, ranks, and what is refused."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import BatchSampler, DataLoader

import tfpipe
from tests.refusals import refusal
from tfpipe import ExactSampler
from tfpipe.engine.order import Order
from tfpipe.errors import ConfigError
from tfpipe.readers.numpy import NumpyBatches

RECORDS = 25
STEPS = 6  # of an epoch of 25 records in batches of 4
ORDER = Order(RECORDS, 4, 1, seed=3)


def make_sampler(**changes: Any) -> ExactSampler:
    return ExactSampler(RECORDS, 4, **{"seed": 3, **changes})


def make_loader(sampler: ExactSampler, num_workers: int = 0) -> DataLoader[Any]:
    return DataLoader(range(RECORDS), batch_sampler=sampler, num_workers=num_workers)


def list_steps(first: int, stop: int) -> list[list[int]]:
    """The batches of some global steps, by the definition."""
    return [ORDER.list_numbers(*ORDER.locate(step)).tolist() for step in range(first, stop)]


def read(batches: Any) -> list[list[int]]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


@contextmanager
def fake_ranks(count: int) -> Iterator[None]:
    """Makes this process the second of some that PyTorch knows."""
    torch.distributed.init_process_group("fake", rank=1, world_size=count, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_pass_is_the_next_epoch(num_workers: int) -> None:
    sampler = ExactSampler(range(RECORDS), 4, seed=3)
    loader = make_loader(sampler, num_workers)
    assert len(loader) == STEPS
    assert read(loader) + read(loader) == list_steps(0, 2 * STEPS)
    assert sampler.position == (2, 0)
    assert repr(sampler) == "<ExactSampler: 6 batches of 4 from 25 records, epoch 2, step 0>"


def test_the_records_are_those_of_a_reader(small_dataset: Any) -> None:
    batches = NumpyBatches(
        small_dataset, "train", batch_size=4, seed=5, image_size=8, extra_features=("image/filename",)
    )
    records = tfpipe.data_source(small_dataset, "train")
    sampler = ExactSampler(records, 4, seed=5, block_records=batches.plan.order.block_records)
    for step, numbers in enumerate(sampler):
        names = [name.decode() for name in batches.read(step)["image/filename"]]
        assert [record.name for record in records.__getitems__(numbers)] == names


def test_a_pass_that_was_left_is_followed_by_a_whole_epoch_but_a_look_changes_nothing() -> None:
    sampler = make_sampler(start_step=2)
    assert list(islice(sampler, 2)) == list_steps(2, 4)
    assert sampler.position == (0, 4)
    assert list(sampler) == list_steps(STEPS, 2 * STEPS)
    sampler = make_sampler()
    assert next(iter(make_loader(sampler))).tolist() == list_steps(0, 1)[0]
    assert list(sampler) == list_steps(0, STEPS)
    sampler = make_sampler(start_step=STEPS - 1)
    assert list(sampler) == list_steps(STEPS - 1, STEPS)  # one batch, which is all of the pass
    assert list(sampler) == list_steps(STEPS, 2 * STEPS)


@pytest.mark.parametrize(("before", "after"), [((2, 1), (1, 0)), ((1, 0), (4, 2))])
def test_a_run_goes_on_with_other_ranks_and_workers(before: tuple[int, int], after: tuple[int, int]) -> None:
    def train(ranks: int, workers: int, state: dict[str, int] | None, steps: int) -> list[list[int]]:
        """Returns the global batches of the first steps that are left of an epoch."""
        rows: list[list[int]] = [[] for _ in range(steps)]
        for rank in range(ranks):
            sampler = make_sampler(rank=(rank, ranks))
            if state is not None:
                sampler.load_state_dict(state)
            for taken, batch in enumerate(make_loader(sampler, workers), 1):
                rows[taken - 1] += batch.tolist()
                if taken == steps:
                    states.append(sampler.state_dict(taken))
                    break
        return rows

    states: list[dict[str, int]] = []
    assert train(*before, None, 3) == list_steps(0, 3)
    state = {"seed": 3, "epoch": 0, "step": 3, "order": 1, "data": RECORDS}
    assert states == [state] * before[0]
    assert train(*after, json.loads(json.dumps(state)), STEPS - 3) == list_steps(3, STEPS)
    assert states[-1] == {**state, "epoch": 1, "step": 0}


def test_the_batches_that_workers_read_ahead_are_not_in_the_state_of_what_was_taken() -> None:
    sampler = make_sampler(start_step=1)
    batches = iter(make_loader(sampler, 2))
    next(batches)
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["step"]) == (1, 0)  # all are handed out already
    state = sampler.state_dict(taken=1)
    assert (state["epoch"], state["step"]) == (0, 2)
    again = make_sampler()
    again.load_state_dict(state)
    assert list(again) == read(batches) == list_steps(2, STEPS)


def test_a_pass_counts_although_an_older_one_goes_on() -> None:
    sampler = make_sampler()
    old = iter(sampler)
    next(old), next(old)
    new = iter(sampler)
    assert next(new) == list_steps(STEPS, STEPS + 1)[0]
    next(old)
    assert sampler.position == (1, 1)
    sampler.position = sampler.position._replace(epoch=4, step=2)
    next(new)
    assert sampler.position == (4, 2)
    assert list(sampler) == list_steps(4 * STEPS + 2, 5 * STEPS)


def test_set_epoch_keeps_the_step_of_a_state_and_refuses_another_epoch() -> None:
    sampler = make_sampler()
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 3, "step": 2})
    message = (
        "`set_epoch` must get epoch 3 of the state that was loaded, got 0. Count the epochs of the loop from there; a "
        "loader of Accelerate gets it by its own `set_epoch`."
    )
    assert refusal(ConfigError, sampler.set_epoch, 0) == message
    sampler.set_epoch(3)
    assert list(sampler) == list_steps(3 * STEPS + 2, 4 * STEPS)
    sampler.set_epoch(0)
    assert list(sampler) == list_steps(0, STEPS)


def test_ranks_are_asked_for_when_a_pass_begins_and_a_second_sharding_is_refused() -> None:
    from torch.utils.data.distributed import DistributedSampler

    message = (
        "An ExactSampler gives each rank its rows, so nothing may shard it again. In Lightning set "
        "Trainer(use_distributed_sampler=False); with Accelerate leave the loader out of `prepare`, or give the "
        "sampler `rank` (0, 1) and Accelerate split_batches=True."
    )
    with fake_ranks(2):
        assert refusal(ConfigError, getattr, make_sampler(), "drop_last", False) == message
    assert make_sampler(rank=(0, 1)).drop_last is True
    assert not isinstance(make_sampler(), BatchSampler | DistributedSampler)  # which Lightning makes anew
    batches = iter(make_sampler())
    with fake_ranks(2):
        assert list(batches) == [rows[2:] for rows in list_steps(0, STEPS)]


def test_it_needs_no_pytorch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from tfpipe import ExactSampler\n"
        "sys.modules.pop('torch')\n"
        "print(list(ExactSampler(25, 4, seed=3)), 'torch' in sys.modules, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{list_steps(0, STEPS)} False False\n"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ExactSampler(iter(()), 4), "`data` must be a dataset with a length, or a number of records, got"),
        (lambda: ExactSampler([], 4), "`data` must be at least 1, got 0."),
        (lambda: ExactSampler(3, 4), "`batch_size` must be at most the 3 records of an epoch, got 4. Use 3 or less,"),
        (lambda: ExactSampler(9, 4.0), "`batch_size` must be a whole number, got 4.0."),
        (lambda: ExactSampler(9, 4, seed=2**64), "`seed` must be a whole number that fits into 64 bits, got"),
        (lambda: ExactSampler(9, 4, block_records=0), "`block_records` must be at least 1, got 0."),
        (lambda: ExactSampler(9, 4, start_step=-1), "`start_step` must be at least 0, got -1."),
        (lambda: ExactSampler(9, 4, rank=(0, 3)), "`batch_size` 4 must be divisible by 3 replicas; use 3 or 6."),
        (lambda: ExactSampler(9, 4, rank=(2, 2)), "`rank` must be a process's number, from 0, and that of "),
        (lambda: make_sampler().set_epoch(-1), "`epoch` must be at least 0, got -1."),
        (
            lambda: make_sampler().state_dict(taken=1),
            "`taken` must be at most the 0 batches that were handed out in this pass, got 1. Count from 1 in each pass",
        ),
        (
            lambda: make_sampler().load_state_dict({**make_sampler().state_dict(), "data": 1024}),
            "The position must be of 25 records, got one of 1,024. Use the dataset that it was saved with, or begin",
        ),
        (
            lambda: make_sampler().load_state_dict(make_sampler(seed=4).state_dict()),
            "The position must be of a run with seed 3, got seed 4.",
        ),
    ],
)
def test_what_is_refused(call: Any, message: str) -> None:
    assert refusal(ConfigError, call).startswith(message)
