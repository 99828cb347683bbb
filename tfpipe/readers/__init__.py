"""Readers of the same shards without TensorFlow.

`record_reader` reads any Example of a split by its number, and `data_source` makes images and classes of them, as
`tfpipe.data_source` gives them. `batch_reader` makes the batches of the input pipeline, with the crops of
`numpy_crops`; `torch` and `jax` hand them over. The README beside them shows both at work.
"""
