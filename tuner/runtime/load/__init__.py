"""An object bound to a card, its workspace, and the call into it."""
