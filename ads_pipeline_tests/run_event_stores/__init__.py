"""One conformance suite for stores of run events, and the stores that are held to it."""
