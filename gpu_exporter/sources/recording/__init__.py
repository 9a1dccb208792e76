"""Recordings of real GPUs: their format, and the source that replays them."""
