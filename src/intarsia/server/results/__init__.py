"""What the draws say: posterior, diagnostics, verdict, selection."""
