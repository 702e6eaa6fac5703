"""A seal around a store: entries that were not written by who holds the key are not loaded."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphcache.errors import ConfigError, CorruptError, StoreError
from graphcache.store.format import sealed_with, to_json
from graphcache.store.private import distrusted
from graphcache.store.protocol import Record, Store, Stored

MIN_KEY_BYTES = 32
MAX_KEY_FILE_BYTES = 1 << 16


class SealKeys:
    """Keys of which the first seals and all are accepted, so that a key can be replaced while in use."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise ConfigError.of("seal keys", 0, "at least one key")
        for key in keys:
            if len(key) < MIN_KEY_BYTES:
                raise ConfigError.of("seal key", f"{len(key)} bytes", f"at least {MIN_KEY_BYTES} bytes")
        self._keys = tuple(keys)

    def seal(self, record: Record) -> Record:
        """Return the record with the seal of the first key."""
        return sealed_with(record, self.sign(_sealed_text(record)))

    def holds(self, record: Record) -> bool:
        """Say whether a record bears a seal of one of the keys."""
        return self.signed(_sealed_text(record), record.seal)

    def sign(self, message: bytes) -> str:
        """Return the HMAC-SHA-256 of a message under the first key, in hex."""
        return _mac(self._keys[0], message)

    def signed(self, message: bytes, seal: str) -> bool:
        """Say whether a message bears one of the keys' signatures."""
        given = seal.encode(errors="replace")
        return any(hmac.compare_digest(_mac(key, message).encode(), given) for key in self._keys)


class SealedStore:
    """Seals what is put into another store, and serves only what bears a seal.

    The seal covers namespace, key, facts, sizes, digest and all else the header says, so that it also
    binds the payload, by its digest; it is compared before any byte of the payload leaves the store.  An
    entry without one is a `CorruptError`, and is replaced by the next ``put``; it is not removed, because
    the fault may be a key that was not handed out.
    """

    def __init__(self, inner: Store, keys: SealKeys) -> None:
        self.inner = inner
        self._keys = keys

    def get(self, digest: str) -> Stored | None:
        """Return a verified entry whose seal holds, or None where there is none."""
        stored = self.inner.get(digest)
        if stored is not None:
            self._check(digest, stored.record)
        return stored

    def peek(self, digest: str) -> Record | None:
        """Return the record of an entry whose seal holds, or None where there is none."""
        record = self.inner.peek(digest)
        if record is not None:
            self._check(digest, record)
        return record

    def _check(self, digest: str, record: Record) -> None:
        if not self._keys.holds(record):
            raise CorruptError(f"entry {digest[:12]}: {_fault(record)}")

    def put(self, digest: str, record: Record, payload: bytes) -> None:
        """Keep an entry under the first key's seal."""
        self.inner.put(digest, self._keys.seal(record), payload)

    def delete(self, digest: str) -> bool:
        """Remove an entry, sealed or not; say whether there was one."""
        return self.inner.delete(digest)

    def scan(self) -> Iterator[tuple[str, Record]]:
        """Yield digest and record of each entry whose seal holds."""
        return (item for item in self.inner.scan() if self._keys.holds(item[1]))


def read_key_files(paths: Sequence[str | os.PathLike[str]]) -> SealKeys:
    """Read keys from files, one key a file, the one to seal with first.

    Raises:
        ConfigError: a key is too short.
        StoreError: a file can't be read, or others can read or write it.
    """
    return SealKeys([_read_key(Path(path).expanduser()) for path in paths])


def write_key_file(path: Path) -> None:
    """Write a new key, for its owner alone; an existing file is left as it is.

    Raises:
        StoreError: there is such a file, or it can't be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(MIN_KEY_BYTES) + "\n")
    except OSError as error:
        raise StoreError(f"the key file {str(path)!r} can't be written: {error.strerror}") from error


def _read_key(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            key = file.read(MAX_KEY_FILE_BYTES + 1).strip()
    except OSError as error:
        raise StoreError(f"the key file {str(path)!r} can't be read: {error.strerror}") from error
    why = distrusted(status)
    if why is None and status.st_mode & 0o077:
        why = f"its mode {status.st_mode & 0o777:04o} lets others read it; `chmod 600` it"
    if why or len(key) > MAX_KEY_FILE_BYTES:
        raise StoreError(f"the key file {str(path)!r} is not used: {why or 'it is too long for a key'}")
    return key


def _sealed_text(record: Record) -> bytes:
    """Return all that a record says, but for the seal itself."""
    return b"entry\n" + to_json(sealed_with(record, "")).encode()


def _mac(key: bytes, message: bytes) -> str:
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _fault(record: Record) -> str:
    return "its seal is of no key given here" if record.seal else "it bears no seal"
