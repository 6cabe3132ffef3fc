"""Send clients their progress, images and errors."""
