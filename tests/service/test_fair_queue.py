"""Who gets the next slot, by hand."""

from typing import Any

from tfpipe.service.fair_queue import FairQueue, Turn


def enter(queue: FairQueue, *request: Any) -> Turn:
    turn = queue.enter(*request)
    assert turn is not None
    return turn


def list_granted(*turns: Turn) -> list[bool]:
    return [turn.granted.is_set() for turn in turns]


def test_clients_take_turns_and_so_do_their_plans() -> None:
    queue = FairQueue(1, 0, 100)
    first = enter(queue, "a", "1")
    waiting = {name: enter(queue, *name.split()) for name in ("a 1", "a 2", "b 1", "c 1")}
    waiting |= {"b 2": enter(queue, "b", "2"), "a 1 again": enter(queue, "a", "1")}
    order, working = [], first
    while waiting:
        queue.leave(working)
        name, working = next((name, turn) for name, turn in waiting.items() if turn.granted.is_set())
        order.append(name)
        del waiting[name]
    # "a" was served before "b" and "c" came; then they come first, and after them the plan of "a" that was not served.
    assert order == ["a 1", "b 1", "c 1", "a 2", "b 2", "a 1 again"]


def test_new_plans_do_not_pass_by_one_that_waits() -> None:
    queue = FairQueue(1, 0, 1000)
    working = enter(queue, "a", "good")
    good = enter(queue, "a", "good")
    bad = [enter(queue, "a", f"new {number}") for number in range(20)]
    queue.leave(working)
    while not good.granted.is_set():
        (working,) = (turn for turn in bad if turn.granted.is_set())
        bad.remove(working)
        bad.append(enter(queue, "a", f"newer {len(bad)} {working.arrived}"))
        queue.leave(working)
    assert len(bad) == 20
    assert good.granted.is_set()


def test_a_plan_takes_half_of_the_slots() -> None:
    queue = FairQueue(4, 0, 100)
    turns = [enter(queue, "a", "1") for _ in range(4)]
    assert list_granted(*turns) == [True, True, False, False]
    others = [enter(queue, "a", "2"), enter(queue, "b", "1"), enter(queue, "c", "1")]
    assert list_granted(*others) == [True, True, False]
    queue.leave(turns[0])
    assert list_granted(turns[2], turns[3], others[2]) == [False, False, True]


def test_bytes_are_shared_and_one_request_alone_may_take_more() -> None:
    queue = FairQueue(8, 100, 100)
    large = enter(queue, "a", "1", 150)
    small, medium = enter(queue, "b", "1", 60), enter(queue, "c", "1", 50)
    assert list_granted(large, small, medium) == [True, False, False]
    queue.leave(large)
    assert list_granted(small, medium) == [True, False]
    queue.leave(small)
    assert list_granted(medium) == [True]


def test_clients_share_the_room_for_those_that_wait() -> None:
    queue = FairQueue(1, 0, 4)
    working = enter(queue, "a", "1")
    greedy = [enter(queue, "greedy", str(number)) for number in range(4)]
    assert queue.enter("greedy", "5") is None
    good = [enter(queue, "good", str(number)) for number in range(2)]
    assert queue.enter("good", "3") is None  # half of the room
    assert queue.enter("other", "1") is not None
    queue.leave(greedy[0])  # one that waits may leave
    queue.leave(working)
    assert list_granted(*greedy[1:], *good) == [True, False, False, False, False]
