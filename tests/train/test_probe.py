"""The head of a probe is scikit-learn's logistic regression, for features as they are."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vitreous.train.probe import ENOUGH, NEVER, fit_head


def blobs(count, classes, seed=0, noise=1.0):
    """Features of very different scales, their classes apart along the first: (count, 5), and labels."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    x = generator.normal(size=(count, 5)) * noise
    x[:, 0] += 3 * labels
    x = x * [1, 100, 0.01, 1, 0] + [0, 50, 0, -7, 3]  # the last one is constant
    return torch.from_numpy(x).float(), torch.from_numpy(labels)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_head_answers_as_scikit_learn_on_standardised_features(classes):
    X, y = blobs(60, classes)
    head = fit_head(X, y, classes)
    theirs = make_pipeline(StandardScaler(), LogisticRegression(C=head.C, max_iter=1000)).fit(X.double(), y)
    ours = (X @ head.weight.T + head.bias).softmax(dim=1).numpy()
    np.testing.assert_allclose(ours, theirs.predict_proba(X.double()), atol=1e-4)


def test_a_balanced_head_answers_a_small_class_more_often():
    X, y = blobs(60, 2, noise=2.0)  # 30 of each, of which it sees 30 and 6
    rows = torch.tensor([*range(0, 60, 2), *range(1, 13, 2)])
    heads = [fit_head(X[rows], y[rows], 2, balanced=balanced) for balanced in (False, True)]
    plain, balanced = ((X @ head.weight.T + head.bias).argmax(dim=1).sum() for head in heads)
    assert plain < 20 < balanced


def test_the_penalty_is_chosen_within_the_training_images():
    X, y = blobs(60, 3, noise=0.3)
    clean = fit_head(X, y, 3)
    shuffled = y[torch.randperm(60, generator=torch.Generator().manual_seed(0))]
    lost = fit_head(X, shuffled, 3)  # labels that say nothing: nothing is learnt
    assert clean.C > 0.1 and round(lost.C, 9) == 1e-4
    assert clean.chosen_by == "5-fold cross-validation" and fit_head(X, y, 3, blobs(9, 3)).C == clean.C


def test_many_validation_images_choose_instead():
    X, y = blobs(60, 3, noise=0.3)
    val_X, val_y = blobs(ENOUGH, 3, noise=0.3)
    head = fit_head(X, y, 3, (val_X, (val_y + 1) % 3))  # all wrong: the weakest head does the least harm
    assert round(head.C, 9) == 1e-4 and head.chosen_by == "1,000 validation images"


def test_a_small_class_has_the_same_say_in_the_penalty_of_a_balanced_head():
    """Of the validation images those of the large class are as often wrong as right, those of the small one right."""
    X, y = blobs(60, 2, noise=0.3)
    val_X, seen = blobs(ENOUGH + 100, 2, noise=0.3)
    val = val_X, torch.where((torch.arange(len(seen)) < ENOUGH) | (seen == 0), 0, 1)
    plain, balanced = (fit_head(X, y, 2, val, balanced=way) for way in (False, True))
    assert plain.C < balanced.C


def test_folds_keep_groups_whole():
    """Ten copies of each of twenty points whose classes are a toss: across copies they are known, across points not."""
    points = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    X, y, groups = points.repeat(10, 1), (torch.arange(20) % 2).repeat(10), np.tile(np.arange(20), 10)
    apart, whole = fit_head(X, y, 2), fit_head(X, y, 2, groups=groups.astype(str))
    assert apart.C > 1 and whole.C < 0.01
    assert whole.chosen_by == "5-fold cross-validation of whole groups"
    three = np.where(groups % 2, groups % 6, 0)  # the second class in three groups, the first in one
    assert fit_head(X, y, 2, groups=three).chosen_by == "nothing, a class having too few groups"
    assert fit_head(X, y, 2, groups=groups % 6).chosen_by == "3-fold cross-validation of whole groups"


def test_a_fold_that_would_hold_out_a_whole_class_is_left_out():
    y = torch.tensor([0, 1, 0, 0, 0, 0, 1, 1, 1])
    head = fit_head(blobs(9, 2)[0], y, 2, groups=np.array([1, 3, 0, 1, 0, 1, 3, 0, 0]))  # both with class 1 in one fold
    assert head.chosen_by == "1-fold cross-validation of whole groups"


def test_a_class_without_images_is_never_answered():
    X, y = blobs(60, 3)
    head = fit_head(X, torch.where(y == 1, 3, y), 5)
    assert set((X @ head.weight.T + head.bias).argmax(1).tolist()) == {0, 2, 3}
    assert head.bias[[1, 4]].tolist() == [NEVER, NEVER] and not head.weight[[1, 4]].any()


def test_folds_are_as_many_as_a_class_allows():
    X, y = blobs(60, 2)
    rows = torch.tensor([*range(0, 60, 2), 1, 3, 5])
    assert fit_head(X[rows], y[rows], 2).chosen_by == "3-fold cross-validation"
    head = fit_head(X[rows[:-2]], y[rows[:-2]], 2)
    assert head.C == 1.0 and head.chosen_by == "nothing, a class having a single image"
    with pytest.raises(ValueError, match="all 30 training images are of one class"):
        fit_head(X[::2], y[::2], 2)
