"""What the dcgm source promises, on fakes or on a real DCGM: see `tests/dcgm/conftest.py`."""
