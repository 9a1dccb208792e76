"""What all reports share: the HTML document, flame graphs, Markdown, and numbers as text."""
