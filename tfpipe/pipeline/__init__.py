"""The TensorFlow input pipeline: from shards to batches, as a tuple of named `tf.data` stages."""
