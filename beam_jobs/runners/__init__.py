"""The runners that execute the Beam graph: this machine, Dataflow, and any other of Beam's by its name."""
