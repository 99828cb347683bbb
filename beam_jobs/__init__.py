"""The Apache Beam jobs of tfpipe: images in, TFRecord shards out. `tfpipe shard` runs them."""
