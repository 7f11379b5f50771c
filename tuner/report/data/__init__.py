"""What a report is made from."""
