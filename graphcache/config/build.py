"""From a configuration to the parts it names, and to the cache that joins them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from graphcache.agree import AgreedSupplier, Group
from graphcache.backends.protocol import Backend, Detachable
from graphcache.backends.watch import Watching
from graphcache.cache import GraphCache
from graphcache.compile.background import BackgroundSupplier
from graphcache.compile.inline import InlineSupplier, backend_facts
from graphcache.compile.process import Limits
from graphcache.config.environment import Environment
from graphcache.config.model import Config, load_config
from graphcache.config.ranks import agreed_learner, agreed_manifest, agreed_namespaces
from graphcache.config.sections import Named, StoreSection
from graphcache.costs import CostLearner, Costs, PaddedWork
from graphcache.errors import ConfigError
from graphcache.eviction.protocol import Eviction
from graphcache.fingerprint import namespace_digest
from graphcache.journal import Journal
from graphcache.key import GraphKey
from graphcache.manifest import key_value, usable_state, write_manifest
from graphcache.miss import OnMiss
from graphcache.names import BACKENDS, EVICTIONS, POLICIES, NameTable
from graphcache.policy.protocol import Ladders, Policy
from graphcache.profiles import load_profile
from graphcache.recorded import RecordedCache
from graphcache.runs import RunLog
from graphcache.stats import Stats
from graphcache.store.disk import DiskStore
from graphcache.store.open import Opened, open_store
from graphcache.together import Together, alone, by_shape
from graphcache.trace.record import StepRecorder


def build_policy(config: Config, ladders: Ladders, *, encoder_only: bool = False) -> Policy:
    """Build the policy with its eviction order.

    Either is told, by the parameters ``costs``, ``background``, ``fallback`` and ``encoder_only`` if it has
    them: the table of costs, whether compiles run beside the steps, whether misses fall back, and whether
    the model's attention has no causal term.

    Raises:
        ConfigError: an option that it does not take, or not with this value.
    """
    facts = {
        "costs": _costs(config),
        "background": config.workers > 0,
        "fallback": "fallback" in (config.on_miss, config.frozen_on_miss),
        "encoder_only": encoder_only,
    }
    order = _told(config.eviction, EVICTIONS, facts)
    eviction: Eviction = _construct(config, "eviction", order, EVICTIONS)
    rule = _told(config.policy, POLICIES, facts)
    policy: Policy = _construct(config, "policy", rule, POLICIES, ladders, eviction)
    return policy


def build_backend(config: Config, *arguments: Any) -> Backend:
    """Build the backend; ``arguments`` come before its options, such as the program of a model.

    Raises:
        ConfigError: an option that it does not take, or not with this value.
    """
    backend: Backend = _construct(config, "backend", config.backend, BACKENDS, *arguments)
    return backend


def build_store(section: StoreSection) -> Opened:
    """Open the store of a configuration.

    Raises:
        ConfigError: ``~`` in a path, for a user who has no home directory; a key that is too short.
        StoreError: it can't be used: a file, not writable, somebody else's, a newer version's.
    """
    path = section.path or Environment.read().store
    return open_store(
        _absolute(path) if path else None,
        max_bytes=section.max_bytes,
        read_only=section.read_only,
        shared=section.shared,
        key_files=[_absolute(file) for file in section.seal.key_file] if section.seal else (),
    )


def build_cache(
    config: Config,
    backend: Backend,
    *,
    ladders: Ladders | None = None,
    policy: Policy | None = None,
    saved_state: Any = None,
    group: Group | None = None,
    together: Together | None = None,
) -> GraphCache:
    """Build the cache; ``ladders`` and ``policy`` are the configuration's own unless they are given.

    ``saved_state`` is what an earlier process's ``cache.saved_state()`` returned.  The ranks of a ``group``
    each build theirs at the same time.  ``together`` says what the store serves together or
    not at all, by default as ``store.together`` does.

    Raises:
        ConfigError: an option that the policy or the eviction does not take.
        StoreError: the store can't be used.
    """
    stats = Stats(strict=config.strict)
    policy = policy or build_policy(config, ladders or config.ladders())
    opened = build_store(config.store) if config.store else None
    namespace = namespace_digest(backend_facts(backend))
    manifest = opened.disk.ledger.load_manifest(namespace, config.policy.name) if opened else None
    if group:
        manifest = agreed_manifest(manifest, group)
    value = key_value(manifest)
    costs = _costs(config)
    told = together or _together(config, policy, namespace, group)
    supplier = _supplier(config, _verified(config, backend), opened, stats, value, told)
    learner = CostLearner(costs) if config.learn_costs else None
    cache = _kind(config)(
        policy,
        AgreedSupplier(supplier, group) if group else supplier,
        budget=config.budget,
        evict_unit=backend.evict_unit,
        on_miss=OnMiss(config.on_miss),
        frozen_on_miss=OnMiss(config.frozen_on_miss) if config.frozen_on_miss else None,
        costs=costs,
        learner=agreed_learner(learner, group, costs) if learner and group else learner,
        max_slowdown=config.max_slowdown,
        saved_state=usable_state(manifest, policy, stats) if saved_state is None else saved_state,
        key_value=value,
        stats=stats,
    )
    if isinstance(backend, Watching):
        backend.watch(cache)
    if opened and isinstance(opened.disk, DiskStore):
        _keep_journal(cache, config.policy.name, opened.disk, namespace, manifest)
    if opened:
        cache.at_close(opened.close)
    return cache


def _keep_journal(
    cache: GraphCache, policy: str, disk: DiskStore, namespace: str, manifest: Mapping[str, Any] | None
) -> None:
    """Keep counters and manifest in the store, from time to time and when the cache is closed."""
    ledger = disk.ledger

    def save_manifest() -> None:
        ledger.save_manifest(namespace, policy, write_manifest(cache, manifest))

    def count_faults() -> None:
        for reason, count in tuple(disk.faults.items()):
            cache.stats.errors[f"store-{reason}"] = count

    journal = Journal([count_faults, RunLog(ledger, cache, policy).flush, save_manifest], cache.stats)
    cache.at_close(journal.close)


def check_config(source: str | Path) -> Ladders:
    """Check all of a configuration that can be checked without a model; return its ladders.

    Raises:
        ConfigError: it can't be used, saying why.
    """
    config = load_config(source)
    ladders = config.ladders()
    build_policy(config, ladders)
    if config.profile:
        load_profile(config.profile)
    return ladders


def _kind(config: Config) -> Callable[..., GraphCache]:
    if config.record is None:
        return GraphCache
    return partial(RecordedCache, recorder=StepRecorder(_absolute(config.record)))


def _supplier(
    config: Config,
    backend: Backend,
    opened: Opened | None,
    stats: Stats,
    value: Callable[[GraphKey], float],
    together: Together,
) -> InlineSupplier:
    """Build what fetches graphs: in worker processes where those are asked for and the backend can."""
    store, exclusive = (opened.store, opened.locks.turn) if opened else (None, None)
    failures = opened.disk.ledger if opened and isinstance(opened.disk, DiskStore) else None
    if not config.workers or (config.compile.workers is None and not hasattr(backend, "job")):
        return InlineSupplier(
            backend, store, stats=stats, exclusive=exclusive, failures=failures, together=together
        )
    limits = Limits(config.compile.max_seconds, config.compile.max_bytes, config.compile.nice)
    return BackgroundSupplier(
        cast(Detachable, backend),
        store,
        stats=stats,
        exclusive=exclusive,
        failures=failures,
        together=together,
        workers=config.workers,
        limits=limits,
        value=value,
    )


def _together(config: Config, policy: Policy, namespace: str, group: Group | None) -> Together:
    asked = config.store.together if config.store else ()
    keys = by_shape(policy.warm_keys()) if "modes" in asked else alone
    ranks = agreed_namespaces(namespace, group) if group and "ranks" in asked else ()
    return Together(keys, ranks)


def _verified(config: Config, backend: Backend) -> Backend:
    """Have a share of the loads compared with the model, where the backend has one to compare with."""
    if not config.verify_sample:
        return backend
    program = getattr(backend, "program", None)
    if program is None:
        allowed = f"0: the backend {backend.name} has no model to compare its graphs with"
        raise ConfigError.of(config.place("verify_sample"), config.verify_sample, allowed)
    from graphcache.backends.verified import VerifiedBackend

    return VerifiedBackend(backend, program, config.verify_sample)


def _costs(config: Config) -> Costs:
    return load_profile(config.profile) if config.profile else PaddedWork()


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError.of("path", str(path), f"a path without ~: {error}") from None


def _told(named: Named, table: NameTable, facts: Mapping[str, Any]) -> Named:
    """Add the facts that are asked for to the options, where these do not say otherwise."""
    asked = inspect.signature(table.find(named.name)).parameters
    offered = {name: fact for name, fact in facts.items() if name in asked}
    return named.model_copy(update={"options": {**offered, **named.options}})


def _construct(config: Config, field: str, named: Named, table: NameTable, *arguments: Any) -> Any:
    make = table.find(named.name)
    _check_call(config, field, named, inspect.signature(make), arguments)
    try:
        return make(*arguments, **named.options)
    except ConfigError as error:
        raise type(error)(f"{config.place(field, 'options')}: {error}") from error


def _check_call(
    config: Config, field: str, named: Named, signature: inspect.Signature, arguments: tuple[Any, ...]
) -> None:
    """Refuse what Python would refuse, with the place and the options that there are."""
    parameters = list(signature.parameters.values())[len(arguments) :]
    names = [parameter.name for parameter in parameters]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    for option in named.options:
        if option not in names and not takes_any:
            place, allowed = config.place(field, "options", option), ", ".join(names) or "no option"
            raise ConfigError(f"{place}: no such option of {named.name}; allowed: {allowed}")
    try:
        signature.bind(*arguments, **named.options)
    except TypeError as error:
        raise ConfigError(f"{config.place(field)}: {named.name!r} can't be made: {error}") from None
