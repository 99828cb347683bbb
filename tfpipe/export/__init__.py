"""Writes a dataset in the format of another tool: WebDataset, Parquet, ArrayRecord, or a folder of images."""
