"""Shared, global, local and tensor memory, and what copies between them."""
