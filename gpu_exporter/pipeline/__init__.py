"""The loop that reads GPUs and publishes snapshots."""
