"""Checks for authors of other event stores. Install `ads-pipeline[testing]`."""
