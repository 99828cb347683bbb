"""Batches that workers make for trainers, here or elsewhere: the engine behind Arrow Flight, for every framework.

```
trainer: RemoteMaker ── ticket: plan, epoch, step, rows ──▶ worker: Server ── BatchMaker
                     ◀────────── record batches ──────────
```

Any worker can make any batch, so it does not matter which of them makes it, how many there are, and whether one ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfpipe.engine.batch import Maker


def serve_remotely(maker: Maker) -> Maker:
    """Returns a maker whose batches workers make, if the options name a `service`; otherwise the maker itself."""
    if not maker.plan.config.service.workers:
        return maker
    from tfpipe.service.client import RemoteMaker  # loads Arrow, which other makers do not need

    return RemoteMaker(maker)
