"""Weeks of normal operation, composed from recordings, with incidents: what the alerts say about them."""
