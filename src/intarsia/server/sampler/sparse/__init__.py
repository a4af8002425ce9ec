"""Sparse effects on a dense background: the default prior, sampled by what it includes. Start with `sweep`."""
