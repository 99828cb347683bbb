"""The same shards without TensorFlow.

`records.py` reads any Example of a split by its number, `images.py` makes images and classes of them: what
`tfpipe.data_source` gives. `batches.py` makes the batches of the input pipeline, with the windows of `crops.py`;
`torch.py` and `jax.py` hand them over. The README beside them shows both at work.
"""
