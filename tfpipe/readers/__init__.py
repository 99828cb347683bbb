"""The same shards without TensorFlow.

`records.py` reads any record of a split by its number.
"""
