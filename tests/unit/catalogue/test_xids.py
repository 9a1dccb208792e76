"""The XID table: it is complete and consistent, and users can override it."""

from __future__ import annotations

import csv
import os
from dataclasses import fields
from pathlib import Path

import pytest

from gpu_exporter.catalogue.xids import COLUMNS, PACKAGED, Xid, XidKind, load, unknown
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.verdict import Action
from tests.support.table import table_test

FIX = "fix: correct the row in gpu_exporter/catalogue/xids.csv"

# Aliases that expand to 9^30 values.
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
TABLE = load()
ROWS = list(csv.DictReader(PACKAGED.read_text(encoding="utf-8").splitlines()))


@pytest.mark.drift
def test_the_table_has_every_documented_code_once_and_in_order() -> None:
    """NVIDIA's catalog of 2025-10-29 documents 1 to 172 without a gap."""
    codes = [int(row["code"]) for row in ROWS]
    assert codes == sorted(set(codes)), FIX
    assert codes[:172] == list(range(1, 173)), FIX
    assert [xid.code for xid in TABLE] == codes, FIX
    assert ["code", *COLUMNS] == [column.name for column in fields(Xid)] == list(ROWS[0]), FIX


@pytest.mark.drift
@table_test("row", ROWS, lambda row: row["code"])
def test_a_row_is_complete(row: dict[str, str]) -> None:
    """Every column has text, and the reader kept all of it."""
    xid = TABLE[int(row["code"])]
    assert all(row.values()), FIX
    assert (xid.mnemonic, xid.meaning, xid.source, xid.date) == tuple(
        row[name] for name in ("mnemonic", "meaning", "source", "date")
    ), FIX
    assert (xid.kind.value, xid.action.value) == (row["kind"], row["action"]), FIX
    assert xid.kind is not XidKind.UNKNOWN, FIX
    assert xid.mnemonic == xid.mnemonic.upper(), FIX
    assert not xid.meaning.endswith("."), FIX


@pytest.mark.drift
def test_mnemonics_are_unique() -> None:
    """A mnemonic names one code."""
    assert len({xid.mnemonic for xid in TABLE}) == len(list(TABLE)), (
        "fix: correct the row in gpu_exporter/catalogue/xids.csv; one of two codes with the same name is wrong"
    )


def test_drain_codes() -> None:
    """They are stable, because their counters start at 0. A drain is for a repair."""
    assert TABLE.drain_codes == (48, 64, 79, 95, 119, 120, 140, 143)
    assert all(TABLE[code].action in (Action.GPU_RESET, Action.NODE_REBOOT) for code in TABLE.drain_codes)


def test_the_application_is_blamed_where_nvidia_does() -> None:
    """The device plugin ignores these XIDs as the application's; 45 only follows another one."""
    assert [TABLE[code].kind.value for code in (13, 31, 43, 68, 109)] == ["application"] * 5
    assert TABLE[45].kind is XidKind.INFORMATIONAL
    assert {xid.action for xid in TABLE if xid.kind is XidKind.APPLICATION} == {Action.NONE, Action.RESTART_APP}
    assert {xid.action for xid in TABLE if xid.kind is XidKind.INFORMATIONAL} == {Action.NONE}


@pytest.mark.parametrize("code", [0, int(ROWS[-1]["code"]) + 1, 999, 65535])
def test_an_unknown_code_never_drains(code: int) -> None:
    """It alerts as unknown, without any automatic action."""
    assert TABLE[code] == unknown(code)
    assert (TABLE[code].kind, TABLE[code].action, TABLE[code].drain) == (XidKind.UNKNOWN, Action.NONE, False)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("xids.yaml", "63: {action: gpu_reset, drain: yes}\n999: {meaning: Ours,   kind: driver}\n"),
        ("xids.yml", "# all of it\n'63':\n  drain: true\n  action: gpu_reset\n999:\n  kind: driver\n  meaning: Ours\n"),
        ("xids.csv", "code,meaning,kind,action,drain\n63,,,gpu_reset,true\n999,Ours,driver,,\n"),
        ("xids.CSV", "\ufeffdrain,code,action,kind,meaning\r\ntrue,63,gpu_reset,,\r\n,999,,driver,Ours\r\n"),
    ],
)
def test_overrides(tmp_path: Path, name: str, content: str) -> None:
    """Only the named columns change, and the row is no longer marked as NVIDIA's."""
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    table = load(path)

    changed = table[63]
    assert (changed.action, changed.drain, changed.source, changed.date) == (Action.GPU_RESET, True, name, "")
    assert (changed.mnemonic, changed.meaning, changed.kind) == (TABLE[63].mnemonic, TABLE[63].meaning, TABLE[63].kind)
    assert (table[999].meaning, table[999].kind, table[999].action) == ("Ours", XidKind.DRIVER, Action.NONE)
    assert [xid for xid in table if xid.code not in (63, 999)] == [xid for xid in TABLE if xid.code != 63]
    assert [xid.code for xid in table] == [*(xid.code for xid in TABLE), 999]


@pytest.mark.parametrize(("name", "content"), [("a.yaml", ""), ("a.yaml", "# none\n"), ("a.csv", "code,action\n")])
def test_no_overrides(tmp_path: Path, name: str, content: str) -> None:
    """An empty file changes nothing."""
    (tmp_path / name).write_text(content)
    assert load(tmp_path / name) == TABLE


@pytest.mark.parametrize(
    ("name", "content", "line", "why"),
    [
        ("a.yaml", "63:\n  action: gpu_rest", 2, "action of 63: 'gpu_rest' is not one of none, restart_app"),
        ("a.yaml", "63:\n  action: gpu_rest", 2, "did you mean gpu_reset?"),
        ("a.yaml", "63: {kind: aplication}", 1, "did you mean application?"),
        ("a.yaml", "63: {kind: unknown}", 1, "'unknown' is not one of application, hardware"),
        ("a.yaml", "\n63: {drains: true}", 2, "'drains' is not one of the columns mnemonic"),
        ("a.yaml", "\n63: {drains: true}", 2, "did you mean drain?"),
        ("a.yaml", "63: {drain: maybe}", 1, "drain of 63: 'maybe' is neither true nor false"),
        ("a.yaml", "63: {date: tomorrow}", 1, "date of 63: 'tomorrow' is not a date"),
        ("a.yaml", "63: {meaning: ' '}", 1, "meaning of 63: ' ' is empty"),
        ("a.yaml", "63: {action: }", 1, "action of 63: '' is not one of"),
        ("a.yaml", "63: {code: 64}", 1, "'code' is not one of the columns"),
        ("a.yaml", "0: {drain: true}", 1, "code: '0' is not an XID code; use 1 to 65535"),
        ("a.yaml", "65536: {drain: true}", 1, "code: '65536' is not an XID code"),
        ("a.yaml", "Xid63: {drain: true}", 1, "code: 'Xid63' is not an XID code"),
        ("a.yaml", "\u0666\u0663: {drain: true}", 1, "is not an XID code"),
        ("a.yaml", "63: gpu_reset", 1, "must be a mapping of columns to values, for code 63"),
        ("a.yaml", "63: [gpu_reset]", 1, "must be a mapping"),
        ("a.yaml", "63: {drain: [true]}", 1, "drain of 63 needs one value"),
        ("a.yaml", "63: {drain: true}\n63: {drain: false}", None, "line 2: 63 is a duplicate key; keep one"),
        ("a.yaml", "063: {drain: true}", None, "line 1: 063 is an octal number in YAML"),
        ("a.yaml", BOMB, None, "its aliases expand to more than"),
        ("a.yaml", "- 63", 1, "must be a mapping of codes"),
        ("a.yaml", "{[1]: {drain: true}}", 1, "must be a mapping of codes"),
        ("a.yaml", "a: b: c", None, "not YAML"),
        ("a.yaml", "\x00", None, "not YAML"),
        ("a.csv", "action\ngpu_reset", 1, "no column 'code'"),
        ("a.csv", "", 1, "no column 'code'"),
        ("a.csv", "code,action\n63,gpu_rest\n", 2, "did you mean gpu_reset?"),
        ("a.csv", "code,acton\n63,gpu_reset\n", 2, "did you mean action?"),
        ("a.csv", "code,meaning\n63,bad, memory\n", 2, "more cells than columns"),
        ("a.csv", "code,drain\n\n,true\n", 3, "code: '' is not an XID code"),
        ("a.csv", 'code,meaning\n63,"bad', None, "unexpected end of data"),
    ],
)
def test_bad_overrides(tmp_path: Path, name: str, content: str, line: int | None, why: str) -> None:
    """The error is one line with file, line, value and what is allowed."""
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(GpuExporterError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.yaml", "a.csv"])
def test_overrides_that_would_block_or_fill_the_memory(tmp_path: Path, name: str) -> None:
    """A FIFO without a writer, and a file that is too large."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(GpuExporterError, match=f"{name}: not a regular file"):
        load(tmp_path / name)
    (tmp_path / f"large-{name}").write_bytes(b"\n" * (1 << 21))
    with pytest.raises(GpuExporterError, match=f"{name}: larger than 1 MiB"):
        load(tmp_path / f"large-{name}")


@pytest.mark.parametrize("name", ["none.yaml", "none.csv", "folder.yaml", "folder.csv", "bytes.yaml", "bytes.csv"])
def test_unreadable_overrides(tmp_path: Path, name: str) -> None:
    """A missing file, a directory, or bytes that are no text."""
    if name.startswith("folder"):
        (tmp_path / name).mkdir()
    if name.startswith("bytes"):
        (tmp_path / name).write_bytes(b"code\n\xff\xfe\xfd")
    with pytest.raises(GpuExporterError, match=name) as caught:
        load(tmp_path / name)
    assert "\n" not in str(caught.value)
