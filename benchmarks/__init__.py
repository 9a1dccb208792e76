"""Performance claims, runnable by anyone: each beside a peer or the truth in the same run, written to `results/`."""
