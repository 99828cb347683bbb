"""A change before it is known what it gives: what it does to the demands that were measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfpipe.profiler.diagnose.bottleneck import Model

REACHED = 0.97
"""Of what the cores allow that a pipeline gets which they limit; 0.94 to 0.99 (2 cores). The rest is lost where threads
wait for each other."""
AWAKE, AWAKENED = 0.9, 0.83
"""Of the processor time of an image that is left when the cores come to be busy all the time: threads that wait for
something go to sleep and wake up between two images, with cold caches. The first where the wall was a stage that
computed, and threads before it had work in store: 0.87 to 1.0, serial maps and decodes, Python. The second where the
wall itself waited, so that every image awakened all threads: 0.73 to 0.91, slow storage, a function that waits. Medians
of 8 runs or more on 2 cores, 500 x 375 and 2000 x 1500 JPEG."""


@dataclass(frozen=True)
class Proposal:
    """A fix, and the model of the pipeline that has it."""

    effort: int
    """0: an option that changes nothing the trainer sees; 1: one that the trainer or its memory feels, or a line of the
    user's own code; 2: other shards; 3: more machines."""
    reason: str
    model: Model
    changes: Mapping[str, Any] = field(default_factory=dict)
    action: str = ""
    most: float = float("inf")
    """Images a second that it cannot exceed, where the model does not say so."""
    efficiency: float | None = None
    """How near it comes to its bound, where that is not how near the pipeline came as it is."""
