"""Why the accelerator waits: measured (`measure`, `monitor`), then pure numbers in, pure numbers out.

    measure -> Profile -> analysis -> Bottleneck -> advice -> Fix ... -> report

Only the modules that measure load TensorFlow.
"""
