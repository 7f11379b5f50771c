"""Commands that find, measure, merge and bundle."""
