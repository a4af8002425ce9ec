"""The demonstration: three simulated hospitals and a study between them, with a truth to compare with."""
