"""The data service: workers on any machine make batches and send them to trainers of any framework by Arrow Flight.

```
trainer: RemoteMaker ── ticket: plan, epoch, step, rows ──▶ worker: Server ── BatchMaker
                     ◀────────── record batches ──────────
```

Any worker can make any batch, so the batches do not depend on the number of workers, nor on whether one ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfpipe.engine.batch import Maker


def serve_remotely(maker: Maker) -> Maker:
    """Returns a maker that gets its batches from the workers of `service`; without workers the given maker."""
    if not maker.plan.config.service.workers:
        return maker
    from tfpipe.service.client import RemoteMaker  # loads Arrow, which other makers do not need

    return RemoteMaker(maker)
