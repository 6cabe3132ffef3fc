"""What the models learn to paint: scenes drawn by code, their captions, and what else can be told of them."""
