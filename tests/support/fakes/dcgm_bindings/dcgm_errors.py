"""A fake of DCGM's bindings of this name: some numbers and a category of incidents."""

DCGM_FR_OK = 0
DCGM_FR_PCI_REPLAY_RATE = 3
DCGM_FR_VOLATILE_DBE_DETECTED = 4
DCGM_FR_FALLEN_OFF_BUS = 120
DCGM_FR_EC_HARDWARE_MEMORY = 4
