"""Tests of the control plane: acts, what is due, and verdicts by order."""
