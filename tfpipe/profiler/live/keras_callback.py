"""The Keras callback that records the steps of `model.fit`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfpipe.profiler.live.device_sync import block_until_done, count_local_replicas
from tfpipe.profiler.live.step_ledger import TrainCall
from tfpipe.profiler.live.step_recorder import StepRecorder


def make_keras_callback(
    recorder: StepRecorder, end_epoch: Callable[[], dict[str, float]]
) -> tf.keras.callbacks.Callback:
    """Returns a callback that tells a recorder when steps begin and end.

    The class is defined inside because the first use of `tf.keras` loads Keras.

    Args:
        recorder: The recorder.
        end_epoch: Ends an epoch of the recorder, and returns the figures for its logs.
    """

    class IdleCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
        """A callback without a hook for the end of a step.

        For such a hook Keras would fetch the logs of every step, and with that wait for the device.
        """

        def __init__(self) -> None:
            super().__init__()
            self._probe: TrainCall | None = None
            self._steps = 1

        def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
            strategy = getattr(self.model, "distribute_strategy", None) or tf.distribute.get_strategy()
            recorder.set_replicas(count_local_replicas(strategy))
            self._steps = int(getattr(self.model, "steps_per_execution", 1) or 1)

        def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            recorder.pause(time.time())

        def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
            self._end_call()
            is_probe = recorder.decide_probe()
            if is_probe:
                self._wait_for_device()
            call = recorder.begin(time.time(), self._steps)
            self._probe = call if is_probe else None

        def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
            self._leave_call()
            recorder.pause(time.time())

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            self._leave_call()
            idle_logs = end_epoch()
            if logs is not None:
                logs.update(idle_logs)

        def _end_call(self) -> None:
            probe, self._probe = self._probe, None
            if probe is not None:
                self._wait_for_device()
                probe.set_probe(probe.begin, time.time())
            recorder.end(time.time())

        def _leave_call(self) -> None:
            # Since the last step ended, Keras has prepared an evaluation or the logs of the epoch.
            self._probe = None
            recorder.leave(time.time())

        def _wait_for_device(self) -> None:
            if not recorder.is_synchronous:
                weights = self.model.trainable_variables[-1:]
                block_until_done([weight.value for weight in weights])

    return IdleCallback()
