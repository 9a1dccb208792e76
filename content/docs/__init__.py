"""The rendered pages of the documentation."""
