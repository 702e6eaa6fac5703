"""Why a graph was not in the store: what it was compared with, and which fact was another."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from graphcache.errors import ConfigError
from graphcache.key import GraphKey, dominates
from graphcache.store.protocol import Record

MATTERS = "other code may be generated, so the entry is not used"
SERVES = "the stored graph is large enough to serve it: with `on_miss: fallback` it would, once resident"
OTHER_SIZE = "another graph: neither serves what the other is for"
MAX_FACTS_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact or field that differs, how it was wanted and is stored, and whether that matters."""

    label: str
    wanted: str | None
    stored: str | None
    verdict: str = MATTERS


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was wanted, the nearest entry that is stored, and how they differ: nothing means they match."""

    key: str
    namespace: str
    nearest: str | None
    nearest_key: str | None
    nearest_namespace: str | None
    differences: tuple[Difference, ...]


class Entry(NamedTuple):
    """A stored entry, by digest."""

    digest: str
    record: Record


def explain(wanted: Record, entries: Iterable[Entry]) -> Explanation:
    """Compare what was wanted with the entry that differs from it least.

    Of ``wanted`` only namespace, facts and key are looked at.
    """
    compared = [(differences(wanted, entry.record), entry) for entry in entries]
    if not compared:
        return Explanation(wanted.key, wanted.namespace, None, None, None, ())
    differing, nearest = min(compared, key=lambda pair: (_distance(pair[0]), -pair[1].record.created))
    record = nearest.record
    return Explanation(
        wanted.key, wanted.namespace, nearest.digest, record.key, record.namespace, tuple(differing)
    )


def differences(wanted: Record, stored: Record) -> list[Difference]:
    """Return all that differs between what was wanted and what is stored, the facts first."""
    found = differing_facts(wanted.facts, stored.facts)
    if wanted.key != stored.key:
        found.append(Difference("key", wanted.key, stored.key, _verdict(wanted.key, stored.key)))
    if not found and wanted.namespace != stored.namespace:
        found.append(Difference("namespace", wanted.namespace, stored.namespace))
    return found


def differing_facts(wanted: Iterable[tuple[str, str]], stored: Iterable[tuple[str, str]]) -> list[Difference]:
    """Return the facts that differ, in the order of ``wanted``, those only stored at the end."""
    before, after = dict(wanted), dict(stored)
    labels = [*before, *(label for label in after if label not in before)]
    return [
        Difference(label, before.get(label), after.get(label))
        for label in labels
        if before.get(label) != after.get(label)
    ]


def last_misses(entries: Sequence[Entry], count: int) -> list[Explanation]:
    """Explain the compiles that were stored last, each beside what was stored before it.

    A graph is in the store because it was missing: its record says what was wanted then.
    """
    by_age = sorted(entries, key=lambda entry: entry.record.created)
    newest = range(len(by_age) - 1, max(-1, len(by_age) - 1 - count), -1)
    return [explain(by_age[number].record, by_age[:number]) for number in newest]


def wanted_record(key: str, entries: Sequence[Entry], namespace: str | None = None) -> Record:
    """Return a record of what a key would want: in the given namespace, else in the one used last.

    Raises:
        ConfigError: the text is no key, or no entry is of such a namespace.
    """
    text = str(GraphKey.parse(key))
    within = [entry.record for entry in entries if entry.record.namespace.startswith(namespace or "")]
    if not entries:
        raise ConfigError(f"{text}: the store has no entry yet to compare it with")
    if not within:
        known = sorted({entry.record.namespace[:12] for entry in entries})
        raise ConfigError.of("namespace", namespace, ", ".join(known))
    newest = max(within, key=lambda record: record.created)
    return Record.of(newest.namespace, text, b"", facts=newest.facts)


def explain_all(
    scanned: Iterable[tuple[str, Record]], what: Sequence[str], misses: int = 0, namespace: str | None = None
) -> list[Explanation]:
    """Explain a key that is wanted, an entry or another host's facts beside others, or the last misses.

    Raises:
        ConfigError: it is none of these, or no entry is meant.
    """
    entries = [Entry(digest, record) for digest, record in scanned]
    if len(what) == 2 and all(Path(name).is_file() for name in what):
        return [explain(read_facts(what[0]), [Entry(what[1], read_facts(what[1]))])]
    match what:
        case [] if misses > 0:
            return last_misses(entries, misses)
        case [key]:
            return [explain(wanted_record(key, entries, namespace), entries)]
        case [one, other]:
            return [explain(_named(one, entries).record, [_named(other, entries)])]
    raise ConfigError.of("explain", " ".join(what), "a key, two digests, or a number of last misses")


def read_facts(path: str) -> Record:
    """Read the facts of a namespace, and a key, from what ``graphcache show --json`` printed on some host.

    Raises:
        ConfigError: it is not that.
    """
    try:
        with open(path, encoding="utf-8") as file:
            said = json.loads(file.read(MAX_FACTS_BYTES))
        first = said[0] if isinstance(said, list) else said
        facts = tuple((str(label), str(value)) for label, value in first["facts"])
        return Record.of(str(first.get("namespace", "")), str(first["key"]), b"", facts=facts)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise ConfigError.of("facts", path, "what `graphcache show KEY --json` prints") from None


def _named(digest: str, entries: Sequence[Entry]) -> Entry:
    found = [entry for entry in entries if entry.digest.startswith(digest)]
    if len(found) != 1:
        known = ", ".join(entry.digest[:12] for entry in found or entries[:8]) or "none: the store is empty"
        raise ConfigError.of("digest", digest, f"the first letters of one entry's: {known}")
    return found[0]


def _distance(differing: Sequence[Difference]) -> tuple[int, int]:
    facts = sum(difference.label != "key" for difference in differing)
    key = sum(
        1 if difference.verdict == SERVES else 2 for difference in differing if difference.label == "key"
    )
    return facts + key, facts


def _verdict(wanted: str, stored: str) -> str:
    try:
        serves = dominates(GraphKey.parse(stored), GraphKey.parse(wanted))
    except ConfigError:
        serves = False
    return SERVES if serves else OTHER_SIZE
