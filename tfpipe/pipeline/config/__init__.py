"""The options of a pipeline: what can be asked for, in code, in TOML and in JSON."""
