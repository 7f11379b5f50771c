"""Who judges candidates: the protocol, a card, the simulator."""
