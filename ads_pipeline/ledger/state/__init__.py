"""Stores partition states: runs, verdicts, demotions and warehouse pointers."""
