"""The report for a person: as text, as JSON, and as a page with charts."""
