"""Small programs that ask a card and the machine the same question."""
