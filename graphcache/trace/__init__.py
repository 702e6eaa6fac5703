"""Request traces: read, generated, and replayed into batches."""
