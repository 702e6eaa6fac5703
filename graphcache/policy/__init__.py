"""Policies: which graphs a batch runs, and what is loaded and evicted."""
