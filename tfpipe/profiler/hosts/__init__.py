"""Compares the hosts of one training: which is late, by how much, and what all others lose."""
