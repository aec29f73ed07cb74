"""Stores run events and the snapshots folded from them."""
