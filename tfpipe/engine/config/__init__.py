"""The options of a pipeline, in code, in TOML and in JSON."""
