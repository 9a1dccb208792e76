"""Tests of what publishes a release."""
