"""The profile for a person: text, JSON and a page with charts."""
