"""A fake of DCGM's bindings of this name: some of the numbers of what its checks find, and a category of such."""

DCGM_FR_OK = 0
DCGM_FR_PCI_REPLAY_RATE = 3
DCGM_FR_VOLATILE_DBE_DETECTED = 4
DCGM_FR_FALLEN_OFF_BUS = 120
DCGM_FR_EC_HARDWARE_MEMORY = 4
