"""The steps of a study and the carriers that move its messages."""
