"""The package's version, and the version of the code it generates."""

__version__ = "0.1.0"

CODEGEN_VERSION = 2
"""Raised by hand when the graphs that this package generates change; a fact of every namespace."""
