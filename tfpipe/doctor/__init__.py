"""Checks of data, pipeline and machine before the first step, so that no accelerator is paid for in vain."""
