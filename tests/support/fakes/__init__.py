"""Stand-ins for what the tests cannot have: NVIDIA's driver."""
