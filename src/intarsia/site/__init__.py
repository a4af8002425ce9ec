"""Behind a site's wall: the only code that sees raw columns and the key."""
