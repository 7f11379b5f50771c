"""``mainloop=wgmma``: operands through a ring of shared memory."""
