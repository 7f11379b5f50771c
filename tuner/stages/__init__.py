"""The parts of a tune, one a module; ``plan.py`` lists them in order."""
