"""What no policy can go below."""

from __future__ import annotations

from graphcache.optimum import Bound as Solution
from graphcache.optimum import bound as solve

__all__ = ["Solution", "solve"]
