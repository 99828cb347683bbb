"""The reference trainer in TensorFlow: its step, models, checkpoints and exports."""
