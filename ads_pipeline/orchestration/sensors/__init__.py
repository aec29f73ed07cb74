"""Sensors and schedules, and the runs that they request."""
