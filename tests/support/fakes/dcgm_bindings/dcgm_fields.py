"""A fake of DCGM's bindings of this name: constants that 4.6 renamed resolve with a warning, as in the real ones."""

import warnings

DCGM_FI_DEV_GPU_TEMP_CELSIUS = 150
_DEPRECATED_ALIASES = {"DCGM_FI_DEV_GPU_TEMP": "DCGM_FI_DEV_GPU_TEMP_CELSIUS"}


def __getattr__(name: str) -> int:
    if name in _DEPRECATED_ALIASES:
        new = _DEPRECATED_ALIASES[name]
        warnings.warn(f"{name} is deprecated, use {new}", DeprecationWarning, stacklevel=2)
        return int(globals()[new])
    raise AttributeError(name)
