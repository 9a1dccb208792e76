"""Tests of whole outputs."""
