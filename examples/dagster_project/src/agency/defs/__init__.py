"""The folders of components."""
