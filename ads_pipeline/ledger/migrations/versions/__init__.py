"""One module a revision. A released revision is never edited: mend it with the next one."""
