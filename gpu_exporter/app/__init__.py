"""The running exporter: it wires sources, pipeline, server and live page together."""
