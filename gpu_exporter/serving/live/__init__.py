"""The live page: what it shows, the last hour of it, and the stream of updates."""
