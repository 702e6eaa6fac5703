"""The sizes that graphs are compiled for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from graphcache.errors import LadderError


class Ladder:
    """Ordered sizes; a length goes to the smallest that holds it.

    Raises:
        LadderError: no size, a size below 1, or sizes that do not increase.
    """

    __slots__ = ("sizes",)

    def __init__(self, sizes: Iterable[int]) -> None:
        self.sizes = tuple(sizes)
        if not self.sizes or self.sizes[0] < 1:
            raise LadderError(f"ladder: {self.sizes!r} is not allowed; allowed: sizes of at least 1")
        for low, high in zip(self.sizes, self.sizes[1:], strict=False):
            if high <= low:
                raise LadderError(f"ladder: {high} after {low} is not allowed; allowed: sizes that increase")

    def __iter__(self) -> Iterator[int]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ladder) and self.sizes == other.sizes

    def __hash__(self) -> int:
        return hash(self.sizes)

    def __repr__(self) -> str:
        return f"Ladder({list(self.sizes)})"

    @property
    def top(self) -> int:
        """The largest size: the limit of what can be served."""
        return self.sizes[-1]

    def bucket(self, length: int) -> int:
        """Return the smallest size that holds ``length`` tokens.

        Raises:
            LadderError: ``length`` is below 1, or above the top.
        """
        if length < 1:
            raise LadderError(f"length: {length} is not allowed; allowed: 1 to {self.top}")
        index = bisect_left(self.sizes, length)
        if index == len(self.sizes):
            raise LadderError(
                f"length: {length} is above the ladder's top of {self.top}; raise the ladder's max"
            )
        return self.sizes[index]

    @classmethod
    def pow2(cls, low: int, high: int) -> Ladder:
        """Double from ``low`` up to ``high``, which is the last size even where it is no such multiple.

        Raises:
            LadderError: ``low`` below 1, or above ``high``.
        """
        _check_ends(low, high)
        sizes = [low]
        while sizes[-1] * 2 < high:
            sizes.append(sizes[-1] * 2)
        return cls(sizes if sizes[-1] == high else [*sizes, high])

    @classmethod
    def linear(cls, low: int, high: int, step: int) -> Ladder:
        """Go from ``low`` to ``high`` by ``step``; ``high`` is the last size in any case.

        Raises:
            LadderError: ``low`` or ``step`` below 1, or ``low`` above ``high``.
        """
        _check_ends(low, high)
        if step < 1:
            raise LadderError(f"step: {step} is not allowed; allowed: at least 1")
        sizes = list(range(low, high + 1, step))
        return cls(sizes if sizes[-1] == high else [*sizes, high])


def _check_ends(low: int, high: int) -> None:
    if low < 1:
        raise LadderError(f"min: {low} is not allowed; allowed: at least 1")
    if high < low:
        raise LadderError(f"max: {high} is not allowed; allowed: at least min, which is {low}")
