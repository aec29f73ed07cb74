"""The validator: every run judged as pandera would judge it alone, and no hostile line believed."""
