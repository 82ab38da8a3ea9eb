"""Handwritten digits: 1,797 images of 8 by 8 pixels, bundled with scikit-learn."""

from typing import NamedTuple

import numpy as np


class Digits(NamedTuple):
    """Images, float32 of shape (n, 8, 8, 1) within [0, 1], and labels, int32 (n,)."""

    images: np.ndarray
    labels: np.ndarray


def load() -> tuple[Digits, Digits]:
    """Training and test digits: every fifth is held out, evenly over the classes.

    The split does not depend on the seed of a run, so that runs can be compared.
    """
    # Both imports are slow, and not needed elsewhere.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    labels = labels.astype(np.int32)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0
    )
    return Digits(images[train], labels[train]), Digits(images[test], labels[test])
