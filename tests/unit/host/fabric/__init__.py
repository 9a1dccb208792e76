"""Tests of what is read of network cards."""
