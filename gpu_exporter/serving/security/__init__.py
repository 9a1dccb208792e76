"""Access control: TLS, passwords, the token and the web configuration file."""
