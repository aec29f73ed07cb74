"""What extraction shares between all runs: the known accounts, and the budget of API operations."""
