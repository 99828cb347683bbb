"""Measures pipelines against each other, and finds faster options that way.

- `pipeline_process.py` runs a pipeline in a separate process that can be halted;
- `paired_benchmark.py` lets several of them run in turns, and says how their rates compare;
- `trials.py` tries the profiler's fixes; `search.py` goes on from there, within a time budget;
- `bench.py` measures one pipeline so that it can be compared with itself another day;
- `tuned_file.py` writes the options that were found, with the host and the data they were tried on.

The words: a *candidate* is a pipeline with a change, and runs in turns with the *best* so far. A change is *kept* if it
is better beyond noise; the candidate is the best from then on.
"""
