"""The vLLM plugin: a platform whose model runner takes every forward pass from the graph cache.

``GRAPHCACHE_PLATFORM=cpu`` turns it on; without it vLLM picks its platform as if this package were not
there.  ``GRAPHCACHE_DISABLE=1`` turns it off again, whatever else is set.
"""

from __future__ import annotations

from graphcache.config.environment import Environment
from graphcache.errors import ConfigError, GraphCacheError

PLATFORM = "GRAPHCACHE_PLATFORM"
SUPPORTED_VERSIONS = ("0.32",)
"""The vLLM releases whose internals this plugin was written against and is tested with."""

_CLASS = "graphcache.vllm.platform.GraphCachePlatform"


def platform() -> str | None:
    """Return the platform class for vLLM to use, or None to stand aside.

    Decides by environment alone, and validates nothing: vLLM calls it twice and drops what it raises.
    """
    return _CLASS if _asked() else None


def check_platform() -> None:
    """Make sure that vLLM runs on this platform if it was asked to.

    vLLM calls it in every process, before an engine is built.

    Raises:
        ConfigError: ``GRAPHCACHE_PLATFORM`` has a value that is not known.
        GraphCacheError: another platform is active, or the installed vLLM is not a supported version.
    """
    wanted = Environment.read().platform
    if wanted not in (None, "cpu"):
        raise ConfigError.of(PLATFORM, wanted, "cpu, or unset")
    if not _asked():
        return
    check_version()
    from vllm.platforms import current_platform

    active = f"{type(current_platform).__module__}.{type(current_platform).__qualname__}"
    if active != _CLASS:
        raise GraphCacheError(
            f"{PLATFORM}={wanted} asks for {_CLASS}, but vLLM runs {active}: unset VLLM_TARGET_DEVICE, and "
            f"let VLLM_PLUGINS, if it is set, name graphcache; or unset {PLATFORM}"
        )


def check_version() -> None:
    """Refuse a vLLM that this plugin was not written for.

    Raises:
        GraphCacheError: naming the installed version and the supported ones.
    """
    from vllm import __version__

    if not __version__.startswith(tuple(f"{supported}." for supported in SUPPORTED_VERSIONS)):
        raise GraphCacheError(
            f"vLLM {__version__} is not supported; supported: {', '.join(SUPPORTED_VERSIONS)}"
        )


def _asked() -> bool:
    environment = Environment.read()
    return environment.platform == "cpu" and not environment.disabled
