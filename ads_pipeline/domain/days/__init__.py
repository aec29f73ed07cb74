"""Days: the one answer to "how is this day?", and when a day closes and settles."""
