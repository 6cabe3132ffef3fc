"""The signs of a vector under random rotations, and how many signs of two vectors differ: 48 bytes an
entry.

The share of differing signs estimates the angle between two vectors (Charikar, 2002), within about 0.04 in
cosine at 384 signs. The rotation is two rounds of random signs and a Hadamard transform: nothing to keep but a few
hundred signs.
"""

import numpy as np
import numpy.typing as npt

SIGN_COUNT = 384
WORD_COUNT = SIGN_COUNT // 64

Rows = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint64]
Sequences = npt.NDArray[np.int64]

_ROUNDS = 2
# From as many rows on, the rotation pays as a matrix.
_MATRIX_ROWS = 256


class SignCoder:
    """Codes vectors of one size. Two coders of the same size and seed give the same codes."""

    def __init__(self, dimension_count: int, seed: int = 0) -> None:
        self._dimension_count = dimension_count
        exponent = (max(dimension_count, SIGN_COUNT) - 1).bit_length()
        self._size = 2**exponent
        self._left, self._right = _hadamard(2 ** (exponent // 2)), _hadamard(2 ** (exponent - exponent // 2))
        generator = np.random.default_rng(seed)
        self._signs = generator.choice(np.array([-1, 1], np.int8), (_ROUNDS, self._size))

    @property
    def size_bytes(self) -> int:
        """Return the memory that the rotation takes."""
        return self._signs.nbytes + self._left.nbytes + self._right.nbytes

    def encode(self, rows: Rows) -> Codes:
        """Return codes (rows, WORD_COUNT) of float32 rows (rows, dimension_count)."""
        if len(rows) < _MATRIX_ROWS:
            turned = self._turn(rows)
        else:
            turned = rows @ self._turn(np.eye(self._dimension_count, dtype=np.float32))
        return np.packbits(turned > 0, axis=1).view(np.uint64)

    def _turn(self, rows: Rows) -> Rows:
        turned = np.zeros((len(rows), self._size), np.float32)
        turned[:, : self._dimension_count] = rows
        for signs in self._signs:
            turned *= signs
            # The Hadamard transform of a product of powers of two is that of its factors.
            square = turned.reshape(len(rows), len(self._left), len(self._right))
            turned = (self._left @ (square @ self._right)).reshape(len(rows), self._size)
        return turned[:, :SIGN_COUNT]


class CodeSet:
    """The codes of entries, each with the entry's number, searched for the nearest by scanning all codes.

    Kept by the word, so that a scan reads memory in order. Grows by a thirty-second. One thread at a time may add;
    searches may run meanwhile.
    """

    def __init__(self, codes: Codes, numbers: Sequences) -> None:
        self._words = np.ascontiguousarray(codes.T)
        self._numbers = np.ascontiguousarray(numbers, np.int64)
        self._count = len(codes)

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """Return the memory that the entries take, room to grow included."""
        return self._words.nbytes + self._numbers.nbytes

    @property
    def codes(self) -> Codes:
        """Return a copy of the codes (count, WORD_COUNT), in the order they came."""
        return np.ascontiguousarray(self._words[:, : self._count].T)

    @property
    def numbers(self) -> Sequences:
        """Return a copy of the entries' numbers."""
        return self._numbers[: self._count].copy()

    def kept(self, numbers: Sequences, until: int) -> "CodeSet":
        """Return the set of the entries with these numbers, and of all above `until`."""
        own = self._numbers[: self._count]
        keep = np.isin(own, numbers) | (own > until)
        return CodeSet(self.codes[keep], self.numbers[keep])

    def add(self, codes: Codes, numbers: Sequences) -> None:
        """Add codes (rows, WORD_COUNT) of entries with these numbers."""
        count = self._count + len(codes)
        if count > self._words.shape[1]:
            self._grow(count + count // 32)
        self._words[:, self._count : count] = codes.T
        self._numbers[self._count : count] = numbers
        self._count = count  # last: a search that runs now sees whole codes alone

    def nearest(self, code: Codes) -> int:
        """Return the number of signs that differ from the nearest code; SIGN_COUNT if there is none."""
        count, words = self._count, self._words
        if count == 0:
            return SIGN_COUNT
        differing, bits = np.empty(count, np.uint64), np.empty(count, np.uint8)
        distances = np.zeros(count, np.uint16)
        for row, word in zip(words, code, strict=True):
            np.bitwise_xor(row[:count], word, out=differing)
            distances += np.bitwise_count(differing, out=bits)
        return int(distances.min())

    def _grow(self, capacity: int) -> None:
        words = np.zeros((WORD_COUNT, capacity), np.uint64)
        words[:, : self._count] = self._words[:, : self._count]
        numbers = np.zeros(capacity, np.int64)
        numbers[: self._count] = self._numbers[: self._count]
        self._words, self._numbers = words, numbers


def sign_distances(codes: Codes, others: Codes) -> npt.NDArray[np.uint16]:
    """Return the numbers of differing signs (codes, others)."""
    if len(codes) < len(others):
        return np.ascontiguousarray(sign_distances(others, codes).T)
    distances = np.empty((len(codes), len(others)), np.uint16)
    for column, other in enumerate(others):
        distances[:, column] = np.bitwise_count(codes ^ other).sum(axis=1, dtype=np.uint16)
    return distances


def similarities(distances: npt.NDArray[np.uint16]) -> Rows:
    """Return the cosines that numbers of differing signs stand for."""
    return _COSINES[distances]


_COSINES = np.cos(np.pi * np.arange(SIGN_COUNT + 1, dtype=np.float32) / SIGN_COUNT)


def _hadamard(size: int) -> npt.NDArray[np.int8]:
    matrix = np.ones((1, 1), np.int8)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
