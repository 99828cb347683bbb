"""The profiler says why the accelerator waits, and what to change: measure, diagnose, report. See README.md."""
