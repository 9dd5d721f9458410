"""What is watched while texts pass through a model."""
