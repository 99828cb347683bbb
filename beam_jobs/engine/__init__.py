"""The plan of inputs that are too large for one process: made in small tasks that exchange files. Loads no Beam."""
