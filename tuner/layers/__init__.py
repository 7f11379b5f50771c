"""What users call: layers made of the operators."""
