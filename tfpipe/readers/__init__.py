"""Batches and records of the same shards without TensorFlow: each reader is a face of `tfpipe.engine`."""
