"""The machine below: cores and memory, worker processes, files, units of bytes and seconds."""
