"""What the operator says of itself for a card: launches in chains, and what it is compared with."""
