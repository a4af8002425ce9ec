"""Φ from the key, and the sketch of a table."""
