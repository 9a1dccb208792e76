"""Tests of single parts of the code."""
