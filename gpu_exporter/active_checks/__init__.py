"""Active checks: a few seconds of known work on each GPU, through nothing but the CUDA driver."""
