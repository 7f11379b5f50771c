"""Checkpoints of SVDQuant layers, of others and the project's own: files, layouts, names, conversion."""
