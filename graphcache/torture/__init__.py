"""Breaking a store in every way we know, in real processes, and saying whether it held."""
