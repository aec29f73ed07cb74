"""Joins the parts: fetch, judge, load, act, reconcile, describe days. Nothing else joins them."""
