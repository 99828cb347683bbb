"""Checks whether a dataset is intact, and saves every undamaged record of one that is not.

`verify.py` and `repair.py` hold the main flows. `check_file.py` and `repair_shard.py` do the work for one file, in a
worker process. No module here loads TensorFlow or Beam.
"""
