"""``mainloop=expand``: activations expanded by a first kernel."""
