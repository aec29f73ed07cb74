"""One home with a day in each condition, and what each surface says of them at one moment."""
