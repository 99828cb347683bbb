"""The batch of a step of a mixture: fixed shares of several datasets, spread evenly over the rows.

At step N each dataset stands after N times its share of a batch, so a run goes on at any step with any number of hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfpipe.engine.batch import Batch, BatchMaker, Maker
from tfpipe.engine.cached_batch import join_rows
from tfpipe.engine.plan import MixedPlan
from tfpipe.system.hash_permutation import IntArray


class MixedMaker(Maker):
    """A maker of any batch of a mixture, as `BatchMaker` is for one dataset."""

    def __init__(self, plan: MixedPlan, makers: Sequence[BatchMaker]) -> None:
        self.plan: MixedPlan = plan
        self._makers = tuple(makers)
        self.clocks = makers[0].clocks
        for maker in makers:
            maker.clocks = self.clocks

    @property
    def block_steps(self) -> int:
        """The steps in which a row uses a block of records up, of the dataset that needs most."""
        return max(maker.block_steps for maker in self._makers)

    def announce(self, numbers: Sequence[IntArray], soon: Sequence[Sequence[IntArray]] = ()) -> None:
        """Asks storage for records that are read soon."""
        for part, maker in enumerate(self._makers):
            maker.announce(numbers[part], [each[part] for each in soon])

    def for_rows(self, first: int, end: int) -> MixedMaker:
        """Returns a maker of some of the rows of this host's batches. It shares all that this one has open."""
        makers, part_rows = [], []
        for maker, rows in zip(self._makers, self.plan.part_rows, strict=True):
            begin, stop = np.searchsorted(rows, (first, end)).tolist()
            makers.append(maker.for_rows(begin, stop))
            part_rows.append(rows[begin:stop] - first)
        parts = tuple(maker.plan for maker in makers)
        plan = replace(self.plan, parts=parts, part_rows=tuple(part_rows), rows=self.plan.rows[first:end])
        return MixedMaker(plan, makers)

    def read(self, epoch: int, step: int, numbers: Sequence[IntArray] | None = None) -> list[Any]:
        """Reads the records of one batch, those of each dataset for themselves."""
        listed = self.list_numbers(epoch, step) if numbers is None else numbers
        places = self.plan.locate(epoch, step)
        return [maker.read(*place, each) for maker, place, each in zip(self._makers, places, listed, strict=True)]

    def decode(self, stored: Sequence[Any], threads: int = 1) -> Batch:
        """Makes the arrays of a batch out of the records of each dataset."""
        out = self._makers[0].allocate_images(self.plan.batch_size) if self.plan.parts[0].source.has_images else None
        per_record, parts = self.plan.num_images or 1, []
        for maker, part, rows in zip(self._makers, stored, self.plan.part_rows, strict=True):
            images = (rows[:, None] * per_record + np.arange(per_record)).reshape(-1)
            parts.append(maker.decode(part, threads, out, images))
        return join_rows(parts, self.plan.part_rows, per_record)

    def make_example_image(self) -> Any:
        """Returns the result of the transform for the first image."""
        return self._makers[0].make_example_image()

    @property
    def is_remote(self) -> bool:
        """Whether a dataset lies in an object store."""
        return any(maker.is_remote for maker in self._makers)
