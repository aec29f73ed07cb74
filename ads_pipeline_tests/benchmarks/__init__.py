"""Measures speed as ratios: the product beside a minimal baseline, by turns, in one process."""
