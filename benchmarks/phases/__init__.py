"""Programs with a known limit, fault or loss, run and recorded on real GPUs: the ground truth of the diagnosis."""
