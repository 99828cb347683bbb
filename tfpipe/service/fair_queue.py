"""A queue in which no client waits for all that another asked for before it. Who enters always leaves."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Turn:
    """A request that waits or works."""

    keys: tuple[str, tuple[str, str]]  # the client, and the plan of this client
    num_bytes: int  # while it works
    arrived: float = field(default_factory=time.monotonic)
    granted: threading.Event = field(default_factory=threading.Event)
    sent: float = math.inf  # when its last message was sent


class FairQueue:
    """The slots, and who gets them: the client that has fewest and was served longest ago; then its plan, likewise.

    A plan gets at most half of several slots. One request may take more than `num_bytes` alone. Clients share the room
    for `most_waiting` requests equally.
    """

    def __init__(self, slots: int, num_bytes: int, most_waiting: int) -> None:
        self._slots, self._num_bytes, self._most_waiting = slots, num_bytes, most_waiting
        self._lock = threading.Lock()  # guards what follows
        self.turns: list[Turn] = []
        self._served: dict[object, float] = {}

    def enter(self, client: str, plan: str, num_bytes: int = 0) -> Turn | None:
        """Adds a request; returns None if too many of the client wait."""
        turn = Turn((client, (client, plan)), num_bytes)
        with self._lock:
            waiting = [each.keys[0] for each in self.turns if not each.granted.is_set()]
            if waiting.count(client) >= self._most_waiting // len({client, *waiting}):
                return None
            self.turns.append(turn)
            self._grant()
        return turn

    def leave(self, turn: Turn) -> None:
        """Removes a request, whether it waits or works."""
        with self._lock:
            self.turns.remove(turn)
            present = {key for each in self.turns for key in each.keys}
            self._served = {key: served for key, served in self._served.items() if key in present}
            self._grant()

    def _grant(self) -> None:
        while turn := self._choose():
            self._served.update(dict.fromkeys(turn.keys, time.monotonic()))
            turn.granted.set()

    def _choose(self) -> Turn | None:
        working = [turn for turn in self.turns if turn.granted.is_set()]
        counts = Counter(key for turn in working for key in turn.keys)
        free_bytes = self._num_bytes - sum(turn.num_bytes for turn in working)

        def fits(turn: Turn) -> bool:
            half = self._slots // 2 if self._slots > 2 else self._slots
            has_room = turn.num_bytes <= free_bytes or not working
            return not turn.granted.is_set() and has_room and counts[turn.keys[1]] < half

        def rank(turn: Turn) -> list[Any]:
            return [(counts[key], self._served.get(key, turn.arrived)) for key in turn.keys]

        is_full = len(working) == self._slots
        return None if is_full else min(filter(fits, self.turns), key=rank, default=None)
