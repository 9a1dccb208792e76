"""What the dcgm source promises, on stand-ins or on a real DCGM: see `tests/dcgm/conftest.py`."""
