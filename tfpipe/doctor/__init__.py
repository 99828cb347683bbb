"""The facts that a report of an error needs."""
