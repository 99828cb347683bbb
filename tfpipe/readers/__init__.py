"""Batches and records of the same shards without TensorFlow: each reader is a face of `tfpipe.engine`.

`data_source` gives images and classes by their number, for `tfpipe.data_source`; `grain` dictionaries, for Grain.
`torch` and `jax` turn the batches of the engine into tensors and arrays. The README beside them
shows both in use.
"""
