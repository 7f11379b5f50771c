"""What became of candidates: outcomes, journals, order."""
