"""The profiler of any loader of batches: PyTorch's DataLoader, Grain, Keras' PyDataset, or an iterable.

    make_loader() -> measure (probe in every process, classify) -> LoaderProfile -> diagnose -> LoaderReport -> report

Nothing of the loader is changed, and no framework is loaded that the loader does not load itself.
"""
