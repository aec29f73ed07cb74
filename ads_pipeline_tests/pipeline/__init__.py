"""The rooms together: carried, read, demoted, reconciled, and killed in between."""
