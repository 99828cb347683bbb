"""Calls into C that release Python's lock: they decode crops of JPEGs, read TFRecord files, and do so in batches.

`hatch_build.py` compiles the sources in `csrc/` at installation; ctypes loads the library at the first call.
"""
