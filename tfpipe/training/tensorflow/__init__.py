"""The reference trainer in TensorFlow: its step, models and exports."""
