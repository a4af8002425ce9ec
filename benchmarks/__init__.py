"""Measurements of intarsia. Each module prints one JSON object as its last line and keeps it in benchmarks/results."""
