"""A queue in which no client waits for all that another asked for before it. Who enters always leaves."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

_MOST_NAMES = 1 << 12


@dataclass(eq=False)
class Turn:
    """A request that waits or works."""

    keys: tuple[str, tuple[str, str]]  # the address, and the plan behind it
    num_bytes: int  # while it works
    arrived: int  # its number among all
    granted: threading.Event = field(default_factory=threading.Event)
    is_refused: bool = False


class FairQueue:
    """The slots, and who gets them: the client that has fewest and was served longest ago; then its plan, likewise.

    A plan gets at most half of several slots. One request may take more than `num_bytes` alone. If more than
    `most_waiting` wait, the newest of the client with most of them is refused.
    """

    def __init__(self, slots: int, num_bytes: int, most_waiting: int) -> None:
        self._slots, self._free_bytes, self._most_waiting = slots, num_bytes, most_waiting
        self._lock = threading.Lock()  # guards what follows
        self._numbers = itertools.count(1)
        self._waiting: list[Turn] = []
        self._working: set[Turn] = set()
        self._counts: Counter[object] = Counter()
        self._served: OrderedDict[object, int] = OrderedDict()

    def enter(self, address: str, plan: str, num_bytes: int = 0) -> Turn:
        """Adds a request."""
        with self._lock:
            turn = Turn((address, (address, plan)), num_bytes, next(self._numbers))
            self._waiting.append(turn)
            if len(self._waiting) > self._most_waiting:
                counts = Counter(key for each in self._waiting for key in each.keys)
                last = max(self._waiting, key=lambda each: (*(counts[key] for key in each.keys), each.arrived))
                self._waiting.remove(last)
                last.is_refused = True
                last.granted.set()
            self._grant()
        return turn

    def leave(self, turn: Turn) -> None:
        """Removes a request, whether it waits, works, or was refused."""
        with self._lock:
            if turn in self._working:
                self._working.remove(turn)
                self._free_bytes += turn.num_bytes
                self._counts.subtract(turn.keys)
                self._counts += Counter()  # drops those without any
            elif turn in self._waiting:
                self._waiting.remove(turn)
            self._grant()

    def _grant(self) -> None:
        while len(self._working) < self._slots:
            fitting = [turn for turn in self._waiting if self._fits(turn)]
            if not fitting:
                return
            turn = min(fitting, key=self._rank)
            self._waiting.remove(turn)
            self._working.add(turn)
            self._free_bytes -= turn.num_bytes
            self._counts.update(turn.keys)
            number = next(self._numbers)
            for key in turn.keys:
                self._served[key] = number
                self._served.move_to_end(key)
            while len(self._served) > _MOST_NAMES:
                self._served.popitem(last=False)
            turn.granted.set()

    def _fits(self, turn: Turn) -> bool:
        most = max(self._slots // 2, 1) if self._slots > 2 else self._slots
        has_room = turn.num_bytes <= self._free_bytes or not self._working
        return has_room and self._counts[turn.keys[1]] < most

    def _rank(self, turn: Turn) -> tuple[int, ...]:
        ranks = ((self._counts[key], self._served.get(key, turn.arrived)) for key in turn.keys)
        return (*itertools.chain.from_iterable(ranks), turn.arrived)
