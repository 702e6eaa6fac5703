"""Eviction orders: which graph leaves first."""
