"""The format of a dataset on disk: Example bytes, record framing, index, schema, manifest and file names.

Bytes and text in, bytes and text out. No module here opens a file or imports TensorFlow or Apache Beam. So writers,
readers and tools of every kind share one description of the format.
"""
