"""Columns in, in row blocks."""
