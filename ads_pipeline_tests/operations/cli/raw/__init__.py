"""Tests of `ads-pipeline events`."""
