"""Profiler traces: readers of several formats, and where the time of each GPU went."""
