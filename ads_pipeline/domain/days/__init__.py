"""Days: the one answer to "how is this day?", when a day closes and settles, and every state that is not final."""
