"""The same work on every kind of Spark that a deployment may name: local, a standalone cluster, Spark Connect."""
