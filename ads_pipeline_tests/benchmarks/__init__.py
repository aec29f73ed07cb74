"""Speed as ratios: what we do beside the barest thing that could be done, in turns, in one run."""
