"""The words of the project as types. Imports nothing else of the package."""
