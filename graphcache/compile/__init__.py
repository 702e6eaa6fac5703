"""Compilation: one at a time per key, in line or in workers."""
