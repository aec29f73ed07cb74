"""One module for each revision. A released revision is never edited; the next one corrects it."""
