"""Puts the code location together: all definitions of one deployment, and the run of the demo over them."""
