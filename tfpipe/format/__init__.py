"""The format of a dataset on disk: bytes and text in, bytes and text out.

No module here opens a file, or loads TensorFlow or Beam. docs/reference/format.md describes the format.
"""
