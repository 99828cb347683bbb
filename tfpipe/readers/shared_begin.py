"""The position at which the next pass of PyTorch's workers begins, in memory that they share with the trainer.

PyTorch tells its workers only the seed of a pass. So the first worker that begins a pass writes down where, as one
number, and the others find it there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tfpipe.engine.position import Position
from tfpipe.system.extras import importing

with importing("`tfpipe.readers.torch`", "PyTorch", "tfpipe[torch]"):
    import torch

_SEED_BITS, _PASS_BITS, _STEP_BITS = 20, 9, 33
_MAX_WORKERS = 1024


class _Word(NamedTuple):
    """The parts of the number."""

    step: int  # global, at which the pass begins
    runs_on: bool  # whether the pass goes on with the next epoch
    number: int  # of the pass: the lowest bits
    seed: int  # bits of the pass's seed; 0 if no process has begun it

    @classmethod
    def unpack(cls, word: int) -> _Word:
        word, seed = divmod(word, 1 << _SEED_BITS)
        word, number = divmod(word, 1 << _PASS_BITS)
        step, runs_on = divmod(word, 2)
        return cls(step, bool(runs_on), number, seed)

    def pack(self) -> int:
        word = self.step % (1 << _STEP_BITS) * 2 + self.runs_on
        word = (word << _PASS_BITS) + self.number % (1 << _PASS_BITS)
        return (word << _SEED_BITS) + self.seed


class SharedBegin:
    """The begin of a pass, which is copied to workers as shared memory."""

    def __init__(self, position: Position, steps_per_epoch: int) -> None:
        # The word, and for each worker the number of the pass that it has begun last, plus 1.
        self._memory = torch.zeros(1 + _MAX_WORKERS, dtype=torch.int64).share_memory_()
        self.set(position, steps_per_epoch)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._memory = state["_memory"].share_memory_()  # a copy has memory of its own

    def set(self, position: Position, steps_per_epoch: int, *, runs_on: bool = False) -> None:
        """Lets the next pass begin at a position."""
        step = position.epoch * steps_per_epoch + position.step
        self._write(_Word(step, runs_on, self._read().number, 0))

    def find_next(self, steps_per_epoch: int) -> Position:
        """Returns the position at which the next pass begins."""
        return Position(*divmod(_find_next_step(self._read(), steps_per_epoch), steps_per_epoch))

    def begin_pass(self, worker: Any, steps_per_epoch: int) -> tuple[Position, bool]:
        """Begins a pass in this process; returns where, and whether it goes on with the next epoch."""
        word = self._read()
        slot = 0 if worker is None else 1 + worker.id % _MAX_WORKERS
        seed = 1 if worker is None else 1 + (worker.seed - worker.id) % ((1 << _SEED_BITS) - 1)
        joins = slot and word.seed == seed and int(self._memory[slot]) != 1 + word.number
        if not joins:
            step = _find_next_step(word, steps_per_epoch)
            number = (word.number + 1) % (1 << _PASS_BITS)
            word = _Word(step, word.runs_on and not word.seed, number, seed)
            self._write(word)
        if slot:
            self._memory[slot] = 1 + word.number
        return Position(*divmod(word.step, steps_per_epoch)), word.runs_on

    def _read(self) -> _Word:
        return _Word.unpack(int(self._memory[0]))

    def _write(self, word: _Word) -> None:
        self._memory[0] = word.pack()


def _find_next_step(word: _Word, steps_per_epoch: int) -> int:
    """Returns the step at which the pass after the one that a word tells of begins."""
    return (word.step // steps_per_epoch + 1) * steps_per_epoch if word.seed else word.step
