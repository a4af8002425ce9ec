"""The server's side: it sees sketches only."""
