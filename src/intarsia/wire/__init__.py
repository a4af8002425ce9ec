"""What crosses the wall between a site and the server, and nothing else."""
