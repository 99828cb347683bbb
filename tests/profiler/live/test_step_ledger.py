"""The ledger, with times written by hand: which deliveries belong to which call, and what each waited."""

import pytest

from tfpipe.profiler.live.step_ledger import Delivery, StepLedger, TrainCall


def make_call(begin: float, end: float, resumed_at: float | None = None, steps: int = 1) -> TrainCall:
    return TrainCall(begin=begin, asks=begin, end=end, resumed_at=resumed_at, steps=steps)


def test_a_thread_between_clock_and_trainer_asks_early_and_the_trainer_does_not_wait() -> None:
    ledger = StepLedger()
    ledger.waiting.extend([make_call(10, 11), make_call(11, 12)])
    settled = ledger.settle([Delivery(0, 8.0, 9.5, 4), Delivery(1, 9.5, 11.25, 4), Delivery(2, 11.25, 12.5, 4)])
    assert [call.wait_s for call in settled] == [0, 0.25]


def test_an_epoch_begins_a_new_iterator_or_goes_on_with_the_old_one() -> None:
    ledger = StepLedger()
    ledger.waiting.extend([make_call(1, 2, resumed_at=1), make_call(2, 3)])
    # The first element was taken to build the model.
    deliveries = [Delivery(0, 0, 0.5, 1), Delivery(0, 1, 1.5, 1), Delivery(1, 2, 2.5, 1), Delivery(2, 2.5, 4, 1)]
    assert [call.wait_s for call in ledger.settle(deliveries)] == [0.5, 0.5]
    ledger.waiting.append(make_call(3, 5, resumed_at=3))
    assert [call.wait_s for call in ledger.settle([])] == [1.0]
    ledger.waiting.append(make_call(6, 7, resumed_at=6))
    settled = ledger.settle([Delivery(3, 4, 6.5, 1), Delivery(0, 6, 6.25, 1)])
    assert [call.wait_s for call in settled] == [0.25]


@pytest.mark.parametrize("per_step", [1, 2])
def test_replicas_take_a_batch_each_or_one_together(per_step: int) -> None:
    ledger = StepLedger(replicas=2)
    ledger.waiting.extend(make_call(i, i + 1) for i in range(8))
    settled = ledger.settle([Delivery(i, i / per_step, i / per_step + 0.25, 4) for i in range(8 * per_step + 2)])
    assert ledger.elements_per_step == per_step
    assert [call.images for call in settled] == [4 * per_step] * 8
    assert [call.wait_s for call in settled] == [0.25 * per_step] * 8


def test_a_call_of_several_steps_waits_for_all_its_deliveries() -> None:
    ledger = StepLedger()
    ledger.waiting.append(make_call(0, 4, steps=2))
    assert ledger.settle([Delivery(0, 0, 0.5, 3)]) == []
    (call,) = ledger.settle([Delivery(1, 2, 2.25, 3)])
    assert (call.wait_s, call.images) == (0.75, 6)


def test_a_step_whose_deliveries_are_lost_is_given_up() -> None:
    ledger = StepLedger()
    ledger.waiting.extend([make_call(0, 1), make_call(1, 2)])
    assert ledger.settle([]) == []
    assert ledger.forget_waiting() == 2
    ledger.waiting.append(make_call(2, 3))
    assert len(ledger.settle([Delivery(2, 2, 2.5, 1)])) == 1


def test_a_probe_leaves_out_the_wait_in_it() -> None:
    call = make_call(0, 3)
    call.set_probe(1, 3)
    assert call.compute_s is None  # the deliveries are not known yet
    call.receive([Delivery(0, 0, 1.5, 4)])
    assert (call.wait_s, call.compute_s) == (1.5, 1.5)


def test_a_probe_after_a_known_wait_is_all_compute() -> None:
    call = make_call(0, 3)
    call.wait_s = 1.0
    call.set_probe(1, 2.5)
    assert call.compute_s == 1.5


def test_the_typical_compute_time_is_the_median_of_counted_probes() -> None:
    ledger = StepLedger()
    assert ledger.get_typical_compute_s() is None
    for compute_s, counts in ((0.1, True), (0.3, True), (9.0, False), (0.2, True)):
        call = TrainCall(begin=0, asks=0, end=1, wait_s=0.0, counts=counts)
        call.compute_s = compute_s
        ledger.waiting.append(call)
    ledger.settle([])
    assert ledger.get_typical_compute_s() == 0.2
