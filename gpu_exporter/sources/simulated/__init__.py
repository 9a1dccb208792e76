"""Simulated nodes as a source."""
