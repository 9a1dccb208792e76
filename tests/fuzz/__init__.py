"""Fuzzing: mutated inputs for all parsers of untrusted input. `python -m tests.fuzz --help`."""
