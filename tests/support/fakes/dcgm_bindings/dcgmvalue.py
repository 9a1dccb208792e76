"""A stand-in for DCGM's binding of this name."""

DCGM_INT64_BLANK = 0x7FFFFFFFFFFFFFF0
