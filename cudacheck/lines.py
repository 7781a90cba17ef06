"""Map addresses in a compiled kernel to lines of its text, from the compiler's debug information.

The line table is stored as a program (DWARF 4, section 6.2), whose instructions advance an address and a line number
and sometimes emit a row of the table. We decode it here, so that readers need not install binutils or LLVM.
"""

import struct
from bisect import bisect_right
from pathlib import Path


def line_table(library: str | Path, name: str) -> "LineTable":
    """Read the line table of the text called `name` from an ELF library."""
    data = Path(library).read_bytes()
    rows = []
    section = _section(data, b".debug_line")
    while section:
        (length,) = struct.unpack_from("<I", section)
        rows += _unit(section[4 : 4 + length], name)
        section = section[4 + length :]
    return LineTable(sorted(set(rows)))


class LineTable:
    """Sorted rows (address, line); call the table with an address to get the line."""

    def __init__(self, rows: list[tuple[int, int]]):
        self.addresses, self.lines = [a for a, _ in rows], [n for _, n in rows]

    def __call__(self, address: int) -> int:
        """Return the line of the instruction before a return address; 0 if the instruction is not in the text."""
        at = bisect_right(self.addresses, address - 1) - 1
        return self.lines[at] if at >= 0 else 0


def _section(data: bytes, wanted: bytes) -> bytes:
    if data[:4] != b"\x7fELF":
        return b""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)

    def header(i):
        return struct.unpack_from("<IIQQQQ", data, table + i * size)

    text = header(names)[4]
    for i in range(count):
        name, _, _, _, start, length = header(i)
        if data[text + name : data.index(b"\0", text + name)] == wanted:
            return data[start : start + length]
    return b""


class _Reader:
    def __init__(self, data: bytes, at: int = 0):
        self.data, self.at = data, at

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def number(self, signed: bool = False) -> int:
        """Read a variable-length number (LEB128): seven bits per byte, lowest first."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - (1 << shift) if signed and byte & 0x40 else value

    def text(self) -> bytes:
        start, self.at = self.at, self.data.index(b"\0", self.at) + 1
        return self.data[start : self.at - 1]

    def fixed(self, size: int) -> int:
        """Read a little-endian number of `size` bytes."""
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "little")


def _files_named(name: str, read: _Reader) -> set[int]:
    """Read a unit's tables of directories and files; return the numbers, from 1, of the files called `name`."""
    while read.text():
        pass  # directories
    files = []
    while file := read.text():
        files.append(file)
        for _ in range(3):
            read.number()  # its directory, time and length
    return {i + 1 for i, file in enumerate(files) if Path(file.decode()).name == name}


def _unit(data: bytes, name: str) -> list[tuple[int, int]]:
    version, header_length, step, _, _, base, width, opcodes = struct.unpack_from("<HIBBBbBB", data)
    if version != 4:
        return []
    read = _Reader(data, 12)
    operands = [read.byte() for _ in range(opcodes - 1)]
    ours = _files_named(name, read)
    read.at = 6 + header_length
    rows, address, line, file = [], 0, 1, 1

    def row():  # line 0 marks code from a different file
        if line or file not in ours:  # our code without a line belongs to the row before
            rows.append((address, line if file in ours else 0))

    while read.at < len(data):
        opcode = read.byte()
        if opcode >= opcodes:
            address += (opcode - opcodes) // width * step
            line += base + (opcode - opcodes) % width
            row()
        elif opcode == 0:
            end = read.number() + read.at  # number() advances read.at past the length
            extended = read.byte()
            if extended == 1:  # end of a sequence
                rows.append((address, 0))
                address, line, file = 0, 1, 1
            elif extended == 2:
                address = read.fixed(end - read.at)
            read.at = end
        elif opcode == 1:
            row()
        elif opcode == 2:
            address += read.number() * step
        elif opcode == 3:
            line += read.number(signed=True)
        elif opcode == 4:
            file = read.number()
        elif opcode == 8:
            address += (255 - opcodes) // width * step
        elif opcode == 9:
            address += read.fixed(2)
        else:
            for _ in range(operands[opcode - 1]):
                read.number()
    return rows
