"""Times and verdicts without a card: the clocked machine, the analytic model, checks in processes."""
