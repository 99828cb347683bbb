"""Which steps a trainer makes itself: a pattern that the share alone decides."""

import pytest

from tfpipe.pipeline.plan.step_shares import StepShares


@pytest.mark.parametrize(
    ("share", "period", "local"),
    [
        (0, 1, ()),
        (0.25, 4, (0,)),
        (0.5, 2, (0,)),
        (0.4, 5, (0, 2)),
        (2 / 3, 3, (0, 1)),
        (0.001, 1, ()),
        (0.999, 20, tuple(range(19))),
    ],
)
def test_a_share_is_spread_evenly(share: float, period: int, local: tuple[int, ...]) -> None:
    assert StepShares.from_share(share) == StepShares(period, local)


def test_rates_side_by_side_give_the_share() -> None:
    assert str(StepShares.from_rates(1, 3)) == "1 of 4"
    assert str(StepShares.from_rates(0, 3)) == "0 of 1"
    assert StepShares.from_rates(5, 0).period == 20  # the workers still make a step of twenty
    assert StepShares.from_rates(1.02, 1) == StepShares.from_share(0.5)


@pytest.mark.parametrize("share", [0, 0.05, 0.3, 0.5, 0.999])
def test_places_count_the_steps_of_workers(share: float) -> None:
    shares = StepShares.from_share(share)
    remote = [step for step in range(60) if step % shares.period not in shares.local]
    assert [shares.count_remote(step) for step in remote] == list(range(len(remote)))
    assert shares.count_remote(0) == 0


def test_workers_make_the_steps_in_turns() -> None:
    shares = StepShares.from_share(0.25)  # steps 0, 4, 8, ... are made by the trainer
    assert [shares.find_worker(step, 2) for step in range(10)] == [None, 0, 1, 0, None, 1, 0, 1, None, 0]
    assert [StepShares.from_share(0).find_worker(step, 3) for step in range(5)] == [0, 1, 2, 0, 1]
