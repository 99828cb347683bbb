"""TFRecord files that another program wrote: `tfpipe index` describes them without changing them."""
