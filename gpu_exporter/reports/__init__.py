"""What all reports share: the HTML document, charts, flame graphs, masking, Markdown, and numbers as text."""
