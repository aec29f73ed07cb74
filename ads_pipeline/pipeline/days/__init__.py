"""Describes days: condition, staleness, settlement, the run that can be restored, and the next steps."""
