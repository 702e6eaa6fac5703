"""Measurements of this package, each a function that returns rows."""
