"""The commands for a whole deployment: `doctor`, and the groups `ledger` and `events`."""
