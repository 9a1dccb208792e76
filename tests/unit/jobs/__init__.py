"""Tests of the messages of training loops."""
