"""`IdleMonitor` as a callback of Keras."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfpipe.profiler.live.graph_clock import block_until_done

if TYPE_CHECKING:
    from tfpipe.profiler.live.idle_monitor import IdleMonitor
    from tfpipe.profiler.live.step_recorder import Step


def idle_callback(monitor: IdleMonitor) -> tf.keras.callbacks.Callback:
    """The callback as a class of Keras, which is not loaded before somebody asks for one."""

    class IdleCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
        """Knows when steps begin.

        Has no hook for their end: Keras would fetch the logs of every step for it, and with that wait for the device.
        """

        def __init__(self) -> None:
            super().__init__()
            self._probe: Step | None = None
            self._steps = 1

        def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
            strategy = getattr(self.model, "distribute_strategy", None) or tf.distribute.get_strategy()
            monitor.use_strategy(strategy)
            self._steps = int(getattr(self.model, "steps_per_execution", 1) or 1)

        def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            monitor.pause()

        def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
            self._end_step()
            probing = monitor.probes_now()
            if probing:
                self._wait_for_device()
            step = monitor.begin_step(time.time(), self._steps)
            self._probe = step if probing else None

        def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
            self._leave_step()
            monitor.pause()

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            self._leave_step()
            found = monitor.end_epoch()
            if logs is not None:
                logs.update(found)

        def _end_step(self) -> None:
            probe, self._probe = self._probe, None
            if probe is not None:
                self._wait_for_device()
                probe.compute_from, probe.compute_until = probe.begin, time.time()
            monitor.end_step(time.time())

        def _leave_step(self) -> None:
            # Keras has prepared an evaluation, or the logs of the epoch, since the last step has ended.
            self._probe = None
            monitor.leave_step()

        def _wait_for_device(self) -> None:
            if not monitor.runs_in_step:
                weights = self.model.trainable_variables[-1:]
                block_until_done([weight.value for weight in weights])

    return IdleCallback()
