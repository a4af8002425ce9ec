"""Draws, and the labelled posterior that they make."""
