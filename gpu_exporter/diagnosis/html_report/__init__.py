"""A diagnosis as one HTML file that needs no script, no network and no server. Imported only by `--report`."""
