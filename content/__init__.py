"""Catalogues to the files that are committed."""
