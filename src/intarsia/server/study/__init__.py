"""The server's side of a study, free of any engine."""
