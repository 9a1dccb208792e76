"""Part of the tests."""
