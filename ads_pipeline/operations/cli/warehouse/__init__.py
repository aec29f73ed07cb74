"""The `warehouse` commands, and `reconcile`."""
