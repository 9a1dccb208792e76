"""Fuzzing: mutated inputs for everything that parses content from outside. `python -m tests.fuzz --help`."""
