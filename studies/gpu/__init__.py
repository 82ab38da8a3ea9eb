"""What a step costs on a GPU."""
