"""What one step can need at once, held against a budget before a server takes requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphcache import batch
from graphcache.batch import Batch
from graphcache.bytesize import format_bytes
from graphcache.coarse import Family, joined
from graphcache.errors import ConfigError
from graphcache.policy.protocol import Policy, View


def families(policy: Policy, max_num_seqs: int, *, generates: bool) -> list[Family]:
    """Return the kinds of graphs that one step can need at once, where it needs the most.

    A step holds up to ``max_num_seqs`` sequences; of a server that ``generates``, some with cached tokens.
    """
    state = policy.start()
    plans = (policy.plan(each, View({}), state) for each in _mixed(max_num_seqs, generates))
    return max((sorted(joined(launch.key for launch in plan.launches)) for plan in plans), key=len)


def check_graphs(needed: Sequence[Family], graphs: int | None, setting: str) -> None:
    """Check a budget of graphs; ``setting`` is what of the server's asks for so many.

    Raises:
        ConfigError: one step can need more.
    """
    if graphs is not None and graphs < len(needed):
        raise ConfigError(
            f"budget.graphs {graphs} is too small for {setting}: one step can need {len(needed)} graphs at"
            f" once ({_names(needed)}); set budget.graphs to {len(needed)} or more"
        )


def check_bytes(needed: Sequence[Family], view: View, setting: str) -> None:
    """Check a budget of bytes, once a warm-up has told what graphs hold.

    Raises:
        ConfigError: the graphs that one step can need do not fit together.
    """
    most, resident = view.budget.bytes, view.resident
    if most is None or not resident:
        return
    largest = max(resident.values())
    held = sum(
        max((nbytes for key, nbytes in resident.items() if Family.of(key) == family), default=largest)
        for family in needed
    )
    if held > most:
        raise ConfigError(
            f"budget.bytes {format_bytes(most)} is too small for {setting}: one step can need {len(needed)}"
            f" graphs at once ({_names(needed)}), which hold {format_bytes(held)}; raise budget.bytes"
        )


def _names(needed: Sequence[Family]) -> str:
    return ", ".join(map(str, needed))


def _mixed(max_num_seqs: int, generates: bool) -> Iterator[Batch]:
    """Yield the shortest sequences of each kind, beside the others that a step may hold."""
    decoding, behind, new = batch.Sequence(1, 1), batch.Sequence(2, 1), batch.Sequence(1)
    reads = (decoding, behind) if generates else ()
    for prompts in ((new,), (new, new), ()):
        for cached in (reads, reads[:1], ()):
            sequences = (*prompts, *cached)
            if 0 < len(sequences) <= max_num_seqs:
                yield Batch(sequences)
