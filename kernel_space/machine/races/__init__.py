"""Happens-before over all memory: who may see whose writes."""
