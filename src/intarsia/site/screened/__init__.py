"""A site's part of a screened study: its features shared once, then rounds of a few kept columns, and looks between them."""
