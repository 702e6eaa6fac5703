"""Backends: what compiles, saves and loads graphs."""
