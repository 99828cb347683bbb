"""The format of a dataset on disk, as docs/reference/format.md describes it: bytes in, bytes out; no file is opened."""
