"""Whether a dataset is whole, and what can be saved of one that is not. Without TensorFlow and without Beam.

`verify.py` and `repair.py` say what is done; `check_file.py` and `rescue.py` do it to one file, in a worker process.
"""
