"""The kit of every HTTP listener: admission, limits, timeouts, passwords, TLS and tokens. It knows no page."""
