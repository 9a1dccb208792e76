"""Tests of what is read of the host."""
