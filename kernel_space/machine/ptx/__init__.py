"""PTX text to instructions, blocks and what they depend on."""
