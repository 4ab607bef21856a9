"""Reading, cleaning and splitting rows; no torch."""
