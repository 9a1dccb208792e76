"""From readings to the bytes of a page: the loop that reads GPUs, its snapshots, and how these are rendered."""
