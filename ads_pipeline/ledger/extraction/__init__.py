"""Stores the known accounts and the budget of API operations, which all runs share."""
