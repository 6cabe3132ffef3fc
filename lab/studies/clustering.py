"""DBSCAN by cosine distance (Ester et al., 1996) over weighted points, in bounded memory.

scikit-learn's holds every point's neighbours at once, which at a wide `eps` is the square of a day's prompts. The
clusters here are the same ones, numbers included; tests hold them to that.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.studies.neighbours import Indices, Vectors, near_blocks

NOISE = -1


@dataclass(frozen=True)
class Clusters:
    """`labels` (n,): the cluster of each point, numbered by their first core points; NOISE for none. `is_core` (n,):
    points with at least `min_samples` of weight within `eps`, their own included."""

    labels: Indices
    is_core: npt.NDArray[np.bool_]

    @property
    def count(self) -> int:
        """Return the number of clusters."""
        return int(self.labels.max(initial=NOISE)) + 1

    def sizes(self, weights: Indices) -> Indices:
        """Return the weight of each cluster (clusters,)."""
        inside = self.labels != NOISE
        return np.bincount(self.labels[inside], weights[inside], self.count).astype(np.int64)


def dbscan(vectors: Vectors, weights: Indices, eps: float, min_samples: int) -> Clusters:
    """Return the clusters of unit vectors (n, width); two points are neighbours up to a cosine distance of `eps`."""
    minimum, everyone = 1.0 - eps, np.arange(len(vectors))
    is_core = _neighbour_weights(vectors, weights, everyone, minimum) >= min_samples
    cores, others = everyone[is_core], everyone[~is_core]
    forest = _Forest(len(vectors))
    for rows, columns, near in near_blocks(vectors, cores, cores, minimum):
        one, other = np.nonzero(near & forest.apart(rows, columns))
        forest.join(rows[one], columns[other])
    labels = np.full(len(vectors), NOISE, np.int64)
    # Roots are the first of their trees, so that numbers follow the first core points.
    labels[cores] = np.unique(forest.root[cores], return_inverse=True)[1].reshape(-1)
    _take_in_borders(vectors, labels, cores, others, minimum)
    return Clusters(labels, is_core)


def _neighbour_weights(vectors: Vectors, weights: Indices, everyone: Indices, minimum: float) -> Indices:
    """The weight within reach of each point, its own included."""
    total = np.zeros(len(vectors), np.int64)
    # Whole numbers up to 2^24 are exact in float32, and its products are fast.
    counted = weights.astype(np.float32)
    for rows, columns, near in near_blocks(vectors, everyone, everyone, minimum):
        total[rows] += (near.astype(np.float32) @ counted[columns]).astype(np.int64)
    return total


def _take_in_borders(vectors: Vectors, labels: Indices, cores: Indices, others: Indices, minimum: float) -> None:
    """Change `labels` of points that are near a core point without being one: the first cluster takes them."""
    nobody = np.iinfo(np.int64).max
    first = np.full(len(vectors), nobody)
    for rows, columns, near in near_blocks(vectors, others, cores, minimum):
        first[rows] = np.minimum(first[rows], np.where(near, labels[columns], nobody).min(axis=1))
    found = others[first[others] != nobody]
    labels[found] = first[found]


class _Forest:
    """Union-find over arrays; `root` is the first point of each one's tree, always looked up in one step."""

    def __init__(self, count: int) -> None:
        self.root = np.arange(count)

    def apart(self, rows: Indices, columns: Indices) -> npt.NDArray[np.bool_]:
        """(rows, columns): pairs of different trees. At a wide `eps` nearly all pairs are soon in one."""
        return np.asarray(self.root[rows][:, None] != self.root[columns], np.bool_)

    def join(self, one: Indices, other: Indices) -> None:
        """Join the trees of each pair (changes state)."""
        while True:
            pair = np.stack([self.root[one], self.root[other]])
            apart = pair[0] != pair[1]
            if not apart.any():
                return
            low, high = pair[:, apart].min(axis=0), pair[:, apart].max(axis=0)
            np.minimum.at(self.root, high, low)
            self._flatten()

    def _flatten(self) -> None:
        while not np.array_equal(above := self.root[self.root], self.root):
            self.root = above
