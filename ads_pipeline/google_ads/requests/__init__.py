"""Builds requests: the GAQL of a range of days, the ranges, and the columns of the answer."""
