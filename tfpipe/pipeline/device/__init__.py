"""The augmentation of a whole batch on the accelerator, as one XLA-compiled function."""
