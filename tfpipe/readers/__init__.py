"""Batches and records of the same shards without TensorFlow: each reader fits `tfpipe.engine` to a framework."""
