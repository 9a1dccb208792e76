"""The version, where everything may import it."""

__version__ = "0.2.0"
