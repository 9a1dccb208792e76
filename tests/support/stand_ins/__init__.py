"""Stand-ins for libraries that CI does not install."""
