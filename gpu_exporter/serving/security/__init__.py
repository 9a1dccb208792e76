"""Who may ask: TLS, passwords and the web configuration file."""
