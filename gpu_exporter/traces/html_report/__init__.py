"""The report on traces as one self-contained HTML file, with charts as inline SVG."""
