"""Fakes of what the tests cannot have, such as NVIDIA's driver."""
