"""Whole numbers in bits: of fixed width, and of any size."""

from __future__ import annotations

import numpy as np


class DamagedBits(ValueError):
    """Bits that nothing was written as."""


class BitWriter:
    """Collects bits, the highest of a number first."""

    def __init__(self) -> None:
        self._bits: list[int] = []

    def __len__(self) -> int:
        return len(self._bits)

    def fixed(self, value: int, width: int) -> None:
        """A number below 2^width."""
        self._bits += [value >> i & 1 for i in range(width - 1, -1, -1)]

    def number(self, value: int) -> None:
        """A number of any size, in groups of four bits, each behind one that says if it is not the
        last."""
        groups = [value & 15]
        while value := value >> 4:
            groups.append(value & 15)
        for place, group in enumerate(groups):
            self.fixed(int(place + 1 < len(groups)), 1)
            self.fixed(group, 4)

    def join(self, other: BitWriter) -> None:
        """The bits of another behind those of this one."""
        self._bits += other._bits

    def raw(self, content: bytes) -> None:
        """Bytes as they are."""
        for byte in content:
            self.fixed(byte, 8)

    def content(self) -> bytes:
        """All bits as bytes; zeros fill the last."""
        return np.packbits(np.array(self._bits, np.uint8)).tobytes()


class BitReader:
    """The inverse of :class:`BitWriter`.

    Raises:
        DamagedBits: by all methods, where the bits end too early.
    """

    def __init__(self, content: bytes) -> None:
        self._bits = np.unpackbits(np.frombuffer(content, np.uint8))
        self._at = 0

    @property
    def left(self) -> int:
        """Bits that are not read."""
        return len(self._bits) - self._at

    def fixed(self, width: int) -> int:
        if width > self.left:
            raise DamagedBits("it ends too early")
        value = 0
        for bit in self._bits[self._at : self._at + width].tolist():
            value = value << 1 | bit
        self._at += width
        return value

    def number(self) -> int:
        value = shift = 0
        more = 1
        while more:
            if shift > 64:
                raise DamagedBits("a number is too long")
            more = self.fixed(1)
            value |= self.fixed(4) << shift
            shift += 4
        return value

    def raw(self, count: int) -> bytes:
        if 8 * count > self.left:
            raise DamagedBits("it ends too early")
        return bytes(self.fixed(8) for _ in range(count))

    def close(self) -> None:
        """Only the zeros that fill the last byte may be left."""
        if self.left >= 8 or (self.left and self.fixed(self.left)):
            raise DamagedBits("there is more in it than it says")
