"""The measurement of one pipeline: its steps, its stages, and the costs of other options."""
