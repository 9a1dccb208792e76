"""Whether a GPU is fit, and what happened to it: verdicts, XIDs and the kernel log."""
