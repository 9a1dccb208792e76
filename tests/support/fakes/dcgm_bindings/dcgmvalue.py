"""A fake of DCGM's bindings of this name."""

DCGM_INT64_BLANK = 0x7FFFFFFFFFFFFFF0
