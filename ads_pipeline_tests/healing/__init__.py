"""Weeks of simulated time under faults: everything heals, or needs a person who is told and has a command."""
