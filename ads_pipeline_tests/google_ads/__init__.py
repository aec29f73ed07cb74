"""Tests of the extraction from Google Ads, against a server made from the client's own messages."""
