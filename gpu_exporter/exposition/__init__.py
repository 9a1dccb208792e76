"""Render snapshots to bytes: which families are exposed, and under which names."""
