"""Sensors and the runs that they request, over a real ledger."""
