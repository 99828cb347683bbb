"""The runners that execute the Beam graph: this machine, Dataflow, Dask and any job service."""
