"""Writes a dataset in the format of another tool: WebDataset, Parquet or ArrayRecord."""
