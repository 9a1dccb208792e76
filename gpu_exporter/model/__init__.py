"""The types that every other subpackage uses. Imports no other part of the package."""
