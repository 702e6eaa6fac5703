"""Offline bounds: the exact optimum where that is feasible, a lower and an upper bound beyond."""
