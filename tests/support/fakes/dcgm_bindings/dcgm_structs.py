"""A fake of DCGM's bindings of this name: what the dcgm source uses of it.

Environment: `STANDIN_DCGM_LIBRARY=missing` is an installation without libdcgm.so, `STANDIN_DCGM=3` bindings of 3.3.
"""

import os
from ctypes import (
    Structure,
    Union,
    c_byte,
    c_char,
    c_double,
    c_int,
    c_int64,
    c_short,
    c_uint,
    c_uint32,
    c_ushort,
)

DCGM_ST_OK = 0
DCGM_ST_CONNECTION_NOT_VALID, DCGM_ST_TIMEOUT, DCGM_ST_LIBRARY_NOT_FOUND = -21, -11, -25
DCGM_MAX_STR_LENGTH, DCGM_MAX_BLOB_LENGTH = 256, 4096
MISSING = os.environ.get("STANDIN_DCGM_LIBRARY") == "missing"
OF_3 = os.environ.get("STANDIN_DCGM") == "3"


class DCGMError(Exception):
    """As in the real module: a class per code, with a text from the library."""

    _classes: "dict[int, type[DCGMError]]" = {}  # noqa: RUF012

    def __new__(cls, value: int) -> "DCGMError":
        if cls is DCGMError:
            cls = DCGMError._classes.setdefault(value, type(f"DCGMError_{-value}", (DCGMError,), {}))
        made = Exception.__new__(cls)
        made.value = value
        return made

    value: int

    def __str__(self) -> str:
        if MISSING:  # the real module fails here then
            raise AttributeError("'NoneType' object has no attribute 'dcgmErrorString'")
        return f"DCGM error {self.value}"


def _dcgmCheckReturn(code: int) -> int:
    if code != DCGM_ST_OK:
        raise DCGMError(code)
    return code


def _dcgmInit(libDcgmPath: "str | None" = None) -> None:
    if MISSING:
        raise DCGMError(DCGM_ST_LIBRARY_NOT_FOUND)


class c_dcgmGroupEntityPair_t(Structure):
    """An entity."""

    _fields_ = [("entityGroupId", c_uint32), ("entityId", c_uint32)]


class c_dcgmConnectV2Params_v2(Structure):
    """How to connect, for DCGM 3.3 and 4."""

    _fields_ = [
        ("version", c_uint),
        ("persistAfterDisconnect", c_uint),
        ("timeoutMs", c_uint),
        ("addressIsUnixSocket", c_uint),
    ]


if not OF_3:

    class c_dcgmConnectV3Params_v1(Structure):
        """How to connect, since DCGM 4.5."""

        _fields_ = [("version", c_uint), ("persistAfterDisconnect", c_uint), ("timeoutMs", c_uint)]


class c_dcgmFieldValue_v1_value(Union):
    """A value; texts are decoded."""

    _fields_ = [
        ("i64", c_int64),
        ("dbl", c_double),
        ("_str", c_char * DCGM_MAX_STR_LENGTH),
        ("blob", c_byte * DCGM_MAX_BLOB_LENGTH),
    ]

    @property
    def str(self) -> "str":
        return bytes(self._str).decode()


class c_dcgmFieldValue_v1(Structure):
    """A sample of a field."""

    _fields_ = [
        ("version", c_uint),
        ("fieldId", c_ushort),
        ("fieldType", c_short),
        ("status", c_int),
        ("ts", c_int64),
        ("value", c_dcgmFieldValue_v1_value),
    ]


class c_dcgmFieldValue_v2(Structure):
    """A sample of an entity's field."""

    _fields_ = [
        ("version", c_uint),
        ("entityGroupId", c_uint),
        ("entityId", c_uint),
        ("fieldId", c_ushort),
        ("fieldType", c_short),
        ("status", c_int),
        ("unused", c_uint),
        ("ts", c_int64),
        ("value", c_dcgmFieldValue_v1_value),
    ]


class c_dcgmNvLinkP2PStatus_v1:
    """The NVLinks between GPUs, to be filled in."""
