"""Embeddings for retrieval: texts and images of one dual encoder, in one space."""
