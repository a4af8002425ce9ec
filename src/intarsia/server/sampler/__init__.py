"""Priors, full conditionals, moves, the sweep and its chains."""
