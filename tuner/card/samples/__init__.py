"""Times with the card's state, and what can be concluded from them."""
