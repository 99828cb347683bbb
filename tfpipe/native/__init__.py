"""Calls into C that hold no lock of Python's: crops of JPEGs, records of TFRecord files, and whole batches of both.

`hatch_build.py` compiles the sources in `csrc/` at installation; ctypes opens the library at the first call.
"""
