"""The engines that run the Beam graph: this machine, Dataflow, Dask, and any job service."""
