"""Profiler traces with one built-in cause each, as ground truth for the analysis of traces."""
