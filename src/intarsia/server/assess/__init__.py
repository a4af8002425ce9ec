"""What is to be thought of a fit: convergence, findings, sets, criticism, prediction."""
