"""The commands about what is fetched: `backfill`, and the groups `accounts` and `queries`."""
