"""Tests of `content/`."""
