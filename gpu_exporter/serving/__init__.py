"""The HTTP server, its routes, and the parts of a running exporter."""
