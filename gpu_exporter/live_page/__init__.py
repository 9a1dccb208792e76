"""The live page: its files, its stream, and the last hour of each GPU."""
