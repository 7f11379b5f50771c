"""SVG and tables."""
