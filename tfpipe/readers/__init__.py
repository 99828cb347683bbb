"""The same shards without TensorFlow.

`dataset.py` opens a finished dataset directory, `records.py` reads any record of a split by its number.
"""
