"""Measurements that are run by hand: `python -m experiments.NAME`."""
