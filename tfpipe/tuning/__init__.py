"""Pipelines measured against each other, and the options that come out of it.

- `contestant.py` runs a pipeline in a process of its own that can be halted;
- `turns.py` lets several of them run in turns, and says how their rates compare;
- `trials.py` tries the profiler's fixes; `search.py` goes on from there, within a time budget;
- `bench.py` measures one pipeline so that it can be compared with itself another day;
- `notes.py` writes the options that were found, with the host and the data they were tried on.
"""
