"""The commands for a whole deployment: `doctor`, `metrics`, and the groups `ledger` and `events`."""
