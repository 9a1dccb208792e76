"""The live page and its API."""
