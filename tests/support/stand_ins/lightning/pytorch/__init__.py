"""Stands for `lightning.pytorch`."""
