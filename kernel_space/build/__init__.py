"""A candidate to PTX, cubin and object; the cache of what was built; sizes read back from layouts."""
