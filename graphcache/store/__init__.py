"""Stores: artifacts that outlive the process."""
