"""A linear probe: a head fitted to features computed once."""

import warnings
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.train.order import class_weights

STRENGTHS = tuple(10.0 ** (power / 2) for power in range(-8, 3))  # C of scikit-learn, the inverse of the L2 penalty
FOLDS = 5
ENOUGH = 1000  # with so many validation images, these choose C instead of folds of the training images
NEVER = -100.0  # the logit of a class without training images


class Head(NamedTuple):
    """A linear head: logits = features @ weight.T + bias."""

    weight: Tensor
    """(K, D) float32."""
    bias: Tensor
    """(K,) float32."""
    C: float
    chosen_by: str
    """How C was chosen, for the user to read."""


def fit_head(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    val: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    groups: np.ndarray | None = None,
    balanced: bool = False,
) -> Head:
    """Multinomial logistic regression of labels (N,) on standardised features (N, D), folded into one linear map.

    The penalty is the one with the smallest loss on the validation images or, if these are few, on stratified folds of
    the training images drawn with `seed`; the final fit uses all training images. groups: (N,), each kept within one
    fold. balanced: whether all classes count the same, however many images they have. Raises ValueError for one class.
    """
    X, y = features.double().numpy(), labels.numpy()
    counts = np.unique(y, return_counts=True)[1]
    if len(counts) < 2:
        raise ValueError(f"all {len(y)} training images are of one class: a head needs at least two")
    if val is not None and len(val[1]) >= ENOUGH:
        chosen_by = f"{len(val[1]):,} validation images"
        parts = [(X, y, *val)]
    else:
        splits = _folds(y, groups, seed % 2**32)
        whole, few = ("", "a single image") if groups is None else (" of whole groups", "too few groups")
        chosen_by = f"{len(splits)}-fold cross-validation{whole}" if splits else f"nothing, a class having {few}"
        parts = [(X[fit], y[fit], features[held], labels[held]) for fit, held in splits]

    fitted = partial(_logistic, num_classes=num_classes, balanced=balanced)
    losses = {C: sum(_loss(fitted(x, t, C=C), *held, balanced) for x, t, *held in parts) for C in STRENGTHS}
    C = min(losses, key=losses.get) if parts else 1.0
    weight, bias = fitted(X, y, C=C)
    return Head(torch.from_numpy(weight).float(), torch.from_numpy(bias).float(), C, chosen_by)


def _folds(y: np.ndarray, groups: np.ndarray | None, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows to fit and rows held out for each stratified fold of labels (N,); none if a class is too small for two.

    A fold of whole groups that would hold out all images of a class is left out.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    units = y if groups is None else np.unique(np.stack([y, np.unique(groups, return_inverse=True)[1]]), axis=1)[0]
    folds = min(FOLDS, int(np.unique(units, return_counts=True)[1].min()))
    if folds < 2:
        return []
    cut = (StratifiedKFold if groups is None else StratifiedGroupKFold)(folds, shuffle=True, random_state=seed)
    splits = cut.split(y, y, groups)
    return [(fit, held) for fit, held in splits if len(np.unique(y[fit])) == len(np.unique(y))]


def _logistic(
    X: np.ndarray, y: np.ndarray, num_classes: int, C: float, balanced: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Weight (K, D) and bias (K,) for unstandardised features: the standardisation is folded in."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    mean, std = X.mean(axis=0), X.std(axis=0)
    std[std == 0] = 1
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # judged as it is
        weights = "balanced" if balanced else None  # `class_weights`
        regression = LogisticRegression(C=C, max_iter=1000, class_weight=weights).fit((X - mean) / std, y)
    coefficients, intercepts = regression.coef_, regression.intercept_
    if len(regression.classes_) == 2:  # one row for both
        coefficients = np.concatenate([-coefficients, coefficients]) / 2
        intercepts = np.concatenate([-intercepts, intercepts]) / 2
    weight, bias = np.zeros((num_classes, X.shape[1])), np.full(num_classes, NEVER)
    weight[regression.classes_] = coefficients / std
    bias[regression.classes_] = intercepts - weight[regression.classes_] @ mean
    return weight, bias


def _loss(head: tuple[np.ndarray, np.ndarray], features: Tensor, labels: Tensor, balanced: bool) -> float:
    """Mean cross-entropy, of the images or, balanced, of the classes."""
    weight, bias = map(torch.from_numpy, head)
    weights = class_weights(labels, len(bias)).double() if balanced else None
    return F.cross_entropy(features.double() @ weight.T + bias, labels, weights).item()
