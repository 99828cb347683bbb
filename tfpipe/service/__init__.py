"""Batches that workers make for trainers, here or on other machines: the engine behind a socket, for every framework.

```
trainer: RemoteMaker ── plan, epoch, step ──▶ worker: Server ── BatchMaker
                     ◀────── arrays ──────
```

Any worker can make any batch, so it does not matter which of them makes it, how many there are, and whether one ends.
"""
