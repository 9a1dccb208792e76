"""The kit of HTTP: listeners with admission, limits, passwords, TLS and tokens, and the client of other exporters.

It knows no page and no metric.
"""
