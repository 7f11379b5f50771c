"""Pages of docs/ whose code is run."""
