"""HTTP: the server, its routes, and what a running exporter consists of."""
