"""Apache Beam jobs of tfpipe: images in, TFRecord shards out. Used through `tfpipe shard`."""
