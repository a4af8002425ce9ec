"""A site's part of a Gram study: its columns in fixed point, its shares of them, its share of the products."""
