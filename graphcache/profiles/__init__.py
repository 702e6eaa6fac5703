"""Cost profiles: measured seconds and bytes of a machine's graphs, in YAML; some ship with the package."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path

import yaml
from pydantic import Field, ValidationError, field_validator

from graphcache.config.document import read_document
from graphcache.config.problems import config_error
from graphcache.config.sections import Section
from graphcache.costs import CostTable, Measured, PaddedWork
from graphcache.errors import ConfigError, UnknownNameError
from graphcache.key import GraphKey


class KeyCosts(Section):
    """What was measured of one graph; what is left out follows from the other graphs, or the defaults."""

    run_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    load_seconds: float | None = Field(None, ge=0, allow_inf_nan=False)
    compile_seconds: float | None = Field(None, ge=0, allow_inf_nan=False)
    bytes: int | None = Field(None, ge=0)


class Defaults(Section):
    """What stands where no graph of the kind was measured."""

    load_seconds: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    compile_seconds: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    bytes: int = Field(default=0, ge=0)


class Profile(Section):
    """A profile file's fields; ``keys`` maps keys in text form, such as ``prefill/causal/1x512``."""

    description: str = ""
    defaults: Defaults = Defaults()
    keys: dict[str, KeyCosts] = Field(min_length=1)

    @field_validator("keys")
    @classmethod
    def _readable(cls, keys: dict[str, KeyCosts]) -> dict[str, KeyCosts]:
        for text in keys:
            GraphKey.parse(text)
        return keys

    def table(self, name: str) -> CostTable:
        """Return the costs as a table."""
        measured = {
            GraphKey.parse(text): Measured(c.run_seconds, c.load_seconds, c.compile_seconds, c.bytes)
            for text, c in self.keys.items()
        }
        nominal = PaddedWork(
            load_seconds=self.defaults.load_seconds,
            compile_seconds=self.defaults.compile_seconds,
            nbytes=self.defaults.bytes,
        )
        return CostTable(measured, nominal=nominal, name=name)


def shipped() -> Iterator[str]:
    """Yield the names of the profiles that ship with the package, in alphabetical order."""
    yield from sorted(
        Path(entry.name).stem for entry in files(__name__).iterdir() if entry.name.endswith(".yaml")
    )


def load_profile(name_or_path: str | Path) -> CostTable:
    """Read a profile: one that ships, by its name, or a YAML file, by a path with a suffix or a slash.

    Raises:
        UnknownNameError: no shipped profile has the name.
        ConfigError: no such file, or not such a file; names file, line, field, value and what is allowed.
    """
    text = str(name_or_path)
    if "/" in text or Path(text).suffix in (".yaml", ".yml"):
        return _read(Path(text).expanduser(), Path(text).stem)
    if text not in shipped():
        known = ", ".join(shipped())
        raise UnknownNameError(
            f"profile: {text!r} is no path of a YAML file, and no known name; known: {known}"
        )
    with as_file(files(__name__) / f"{text}.yaml") as path:
        return _read(path, text)


def _read(path: Path, name: str) -> CostTable:
    document = read_document(path)
    try:
        return Profile.model_validate(document.fields).table(name)
    except ValidationError:
        raise config_error(Profile, document) from None


def save_profile(table: CostTable, path: Path, description: str = "") -> None:
    """Write what a table has measured as a profile that ``load_profile`` reads back.

    Its defaults are what the table says of a graph of which nothing was measured.
    """
    if not table.measured:
        raise ConfigError.of("profile", table, "a table that has measured something")
    unmeasured = next(iter(table.measured))
    document = {
        "description": description,
        "defaults": {
            "load_seconds": table.nominal.load_seconds(unmeasured),
            "compile_seconds": table.nominal.compile_seconds(unmeasured),
            "bytes": table.nominal.nbytes(unmeasured),
        },
        "keys": {str(key): _fields(table.measured[key]) for key in sorted(table.measured)},
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False, width=110), encoding="utf-8")


def _fields(measured: Measured) -> dict[str, float | int]:
    named = {
        "run_seconds": measured.run_seconds,
        "load_seconds": measured.load_seconds,
        "compile_seconds": measured.compile_seconds,
        "bytes": measured.nbytes,
    }
    return {name: value for name, value in named.items() if value is not None}
