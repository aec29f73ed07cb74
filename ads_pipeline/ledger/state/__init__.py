"""Reads partition states, records verdicts, and keeps the warehouse pointers."""
