"""The trainer's side: shards in, batches out, as a tuple of named `tf.data` stages."""
