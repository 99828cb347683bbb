"""From a path or URL to the manifest of a dataset: its parts on disk, its layers, its views."""
