"""Predicts whether a search would find a near enough entry (NIRVANA, section 5.2). scikit-learn is loaded to train."""
