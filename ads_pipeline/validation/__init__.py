"""The contract of each query: one pandera model per schema version, the registry, and the rules read from them."""
