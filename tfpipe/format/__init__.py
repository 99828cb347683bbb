"""What a dataset is on disk: Example bytes, record framing, index, schema, manifest and names.

Bytes and text in, bytes and text out. Nothing here opens a file, and nothing here imports TensorFlow or
Apache Beam, so that writers, readers and tools of every kind can share one description of the format.
"""
