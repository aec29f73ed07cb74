"""Declares each query's rows, one pandera model a schema version; `catalogue` finds them, `rules` reads them."""
