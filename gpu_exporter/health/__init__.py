"""Whether a GPU is fit for work."""
