"""DCGM as a source."""
