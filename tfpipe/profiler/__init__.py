"""The profiler: it measures why the accelerator waits, and says what to change.

    measure -> Profile -> diagnose -> Report (bottleneck, fixes) -> report -> text, JSON, page

`live` measures a training that runs. Only `measure` and `live` load TensorFlow.
"""
