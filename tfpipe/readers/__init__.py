"""Readers of the same shards without TensorFlow.

`record_reader` reads any Example of a split by its number, many at once in the blocks of `record_block`, and
`data_source` turns them into images and classes, for `tfpipe.data_source`; `grain` into dictionaries, for Grain.
`batch_reader` makes the batches of the input pipeline, with the crops of `numpy_crops`; `torch` and `jax` turn them
into tensors and arrays. `device_images` leaves decoding to a GPU. The README beside them shows both in use.
"""
