"""What the suite did before a page of the console was opened."""
