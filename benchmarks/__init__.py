"""Performance claims, runnable by anyone: each compares with a peer in one run and prints the ratio."""
