"""Tests of the real command."""
