"""Barriers, tensor core, wgmma, registers, launch control: what instructions act on beside memory."""
