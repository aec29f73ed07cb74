"""The sensors, one file each, and the runs that they request."""
