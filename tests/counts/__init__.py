"""Counts of what a collection and a scrape cost, compared with committed numbers."""
