"""Configuration: the only reader of YAML files and of the environment."""

from graphcache.config.environment import Environment, store_path
from graphcache.config.model import Config, load_config, shipped_policies

__all__ = ["Config", "Environment", "load_config", "shipped_policies", "store_path"]
