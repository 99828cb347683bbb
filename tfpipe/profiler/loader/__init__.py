"""The profiler of any loader of batches. It loads no framework that the loader does not load itself."""
