"""Untrusted input: reading files that may hang, decoding them, and parsing what users write."""
