"""The same shards without TensorFlow.

`records.py` reads any Example of a split by its number, `images.py` makes images and classes of them: what
`tfpipe.open_records` gives.
"""
