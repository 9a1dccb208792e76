"""The contract of the dcgm source, tested on a fake or a real DCGM: see `tests/dcgm/conftest.py`."""
