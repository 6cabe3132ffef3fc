"""The support of a set of entries: a One-Class SVM over a kernel feature map of their codes (NIRVANA, section 5.2).

The map has two parts. A wide RBF kernel on a few landmarks (Nystroem) says whether a vector is like the entries in
general. A narrow one on its nearest entry says whether that entry is near: the landmarks of this part are all entries,
so an entry's own value is 1 and training needs no search. The paper's words for it: overfitted to the entries.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.vectordb_gateway.match_predictor.sign_codes import (
    Codes,
    CodeSet,
    sign_distances,
    similarities,
)

# The paper's: the share of entries that may lie outside the support.
NU = 0.001
_LANDMARK_COUNT = 64
# Kernels exp(width * (cosine - 1)), which is RBF on unit vectors.
_WIDE, _NARROW = 5.0, 2.0
# The wide part trains on a sample of this size, drawn evenly: a larger one changed no measurement.
TRAINING_COUNT = 2048
_SMALLEST_EIGENVALUE = 1e-6

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Support:
    """The decision function `narrow(x) + wide(x) . weights - offset`, scaled so that a threshold outlives a retraining.

    It is the SVM's over its weight of the narrow part, and 1 for an entry that is as common as entries are on average.
    Nystroem's normalisation is folded into the weights. Landmarks are codes (landmarks, WORD_COUNT).
    """

    landmarks: Codes
    weights: Numbers
    offset: float

    @property
    def size_bytes(self) -> int:
        """Return the memory that it takes."""
        return self.landmarks.nbytes + self.weights.nbytes

    def decide(self, code: Codes, entries: CodeSet) -> float:
        """Return the decision for one code: the higher the surer that an entry is near."""
        wide = _kernel(sign_distances(code[None], self.landmarks), _WIDE)[0]
        narrow = float(_kernel(np.array([entries.nearest(code)], np.uint16), _NARROW)[0])
        return narrow + float(wide @ self.weights) - self.offset


def fit_support(codes: Codes, seed: int = 0) -> Support:
    """Train on the codes of entries (entries, WORD_COUNT), at least one. Loads scikit-learn. Raises ValueError when the
    SVM finds no use for the narrow part."""
    from sklearn.linear_model import SGDOneClassSVM  # 60 MiB that a gateway without a predictor does not need

    generator = np.random.default_rng(seed)
    rows = codes if len(codes) <= TRAINING_COUNT else codes[generator.choice(len(codes), TRAINING_COUNT, False)]
    landmarks = rows[generator.choice(len(rows), min(len(rows), _LANDMARK_COUNT), False)]
    normalisation = _inverse_root(_kernel(sign_distances(landmarks, landmarks), _WIDE))
    features = np.ones((len(rows), len(landmarks) + 1), np.float32)
    features[:, :-1] = _kernel(sign_distances(rows, landmarks), _WIDE) @ normalisation
    machine = SGDOneClassSVM(nu=NU, random_state=seed).fit(features)
    *weights, near_weight = np.asarray(machine.coef_, np.float32)
    if near_weight <= 0:
        raise ValueError("the support does not rest on the nearest entry")
    scaled = np.array(weights) / near_weight
    return Support(landmarks, normalisation @ scaled, float((features[:, :-1] @ scaled).mean()))


def _kernel(distances: npt.NDArray[np.uint16], width: float) -> Numbers:
    return np.asarray(np.exp(np.float32(width) * (similarities(distances) - 1)), np.float32)


def _inverse_root(kernel: Numbers) -> Numbers:
    """Return the symmetric root of the inverse, the normalisation of Nystroem."""
    values, vectors = np.linalg.eigh(kernel)
    roots = np.sqrt(np.maximum(values, _SMALLEST_EIGENVALUE))
    return np.asarray((vectors / roots) @ vectors.T, np.float32)
