"""Measuring one pipeline: step by step, stage by stage, option by option."""
