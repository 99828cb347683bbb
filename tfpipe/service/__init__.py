"""Batches that workers make for trainers, here or elsewhere: the engine behind Arrow Flight, for every framework.

```
trainer: RemoteMaker ── ticket: plan, epoch, step, rows ──▶ worker: Server ── BatchMaker
                     ◀────────── record batches ──────────
```

Any worker can make any batch, so it does not matter which of them makes it, how many there are, and whether one ends.
"""
