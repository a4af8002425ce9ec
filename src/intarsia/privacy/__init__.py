"""Leakage in bits, differential privacy, attacks a site runs on its own sketch, the gate and the card."""
