"""Configuration: the only reader of YAML files and of the environment."""

from graphcache.config.environment import Environment
from graphcache.config.model import Config, MaskForm, load_config, policy_path, shipped_policies

__all__ = ["Config", "Environment", "MaskForm", "load_config", "policy_path", "shipped_policies"]
