"""Build the documentation site from docs/ with MkDocs: no page asks another host, and a copy opens without a server."""
