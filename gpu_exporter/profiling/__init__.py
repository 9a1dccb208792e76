"""On-demand profiles of running jobs: stacks sampled from outside, and traces that PyTorch records itself."""
