"""Figures of a classifier, against values worked out by hand and against scikit-learn."""

import numpy as np
import pytest
import sklearn.metrics
import torch

from vitreous.metrics import classification_metrics, confusion, top_k

ANSWERS = [0, 0, 1, 1, 2, 2, 0]
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2])


def logits_of(answers, classes=3, peak=2.0):
    return peak * torch.nn.functional.one_hot(torch.tensor(answers), classes).float()


def test_figures_are_those_worked_out_by_hand():
    figures = classification_metrics(logits_of(ANSWERS), LABELS)
    # class 0: 2 of 3 answers right, 2 of 3 found; class 1: 1 of 2, 1 of 2; class 2: 1 of 2, 1 of 2
    assert figures["top1"] == pytest.approx(4 / 7)
    assert figures["precision_macro"] == pytest.approx((2 / 3 + 1 / 2 + 1 / 2) / 3)
    assert figures["recall_macro"] == pytest.approx((2 / 3 + 1 / 2 + 1 / 2) / 3)
    assert figures["f1_macro"] == pytest.approx((2 / 3 + 1 / 2 + 1 / 2) / 3)
    assert figures["precision_micro"] == figures["recall_micro"] == figures["f1_micro"] == pytest.approx(4 / 7)
    hit, miss = -np.log(np.e**2 / (np.e**2 + 2)), -np.log(1 / (np.e**2 + 2))
    assert figures["loss"] == pytest.approx((4 * hit + 3 * miss) / 7, rel=1e-6)
    assert figures["count"] == 7 and figures["top5"] is None


def test_precision_and_recall_are_not_confused():
    figures = classification_metrics(logits_of([0, 0, 0, 1], 2), torch.tensor([0, 1, 1, 1]))
    assert figures["precision_macro"] == pytest.approx((1 / 3 + 1) / 2)
    assert figures["recall_macro"] == pytest.approx((1 + 1 / 3) / 2)
    figures = classification_metrics(logits_of([0, 0, 0, 0], 2), torch.tensor([0, 1, 1, 1]))
    assert figures["precision_macro"] == pytest.approx(1 / 8)  # a class never answered counts as 0
    assert figures["recall_macro"] == pytest.approx(1 / 2)


def test_classes_that_occur_nowhere_are_left_out_of_macro_figures():
    figures = classification_metrics(logits_of([0, 1], 10), torch.tensor([0, 1]))
    assert figures["precision_macro"] == figures["recall_macro"] == figures["f1_macro"] == 1.0


@pytest.mark.parametrize("classes", [2, 5, 6, 40])
def test_figures_equal_scikit_learn(classes):
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (200,), generator=generator)
    logits = torch.randn(200, classes, generator=generator) + 2 * torch.nn.functional.one_hot(labels, classes)
    figures, answers = classification_metrics(logits, labels), logits.argmax(1)
    assert figures["top1"] == pytest.approx(sklearn.metrics.accuracy_score(labels, answers))
    for average in ("macro", "micro"):
        for name in ("precision", "recall", "f1"):
            expected = getattr(sklearn.metrics, f"{name}_score")(labels, answers, average=average, zero_division=0)
            assert figures[f"{name}_{average}"] == pytest.approx(expected)
    shares = logits.double().softmax(1)
    shares /= shares.sum(1, keepdim=True)
    expected = sklearn.metrics.log_loss(labels, shares, labels=range(classes))
    assert figures["loss"] == pytest.approx(expected, rel=1e-5)
    assert (figures["top5"] is None) == (classes <= 5)
    if classes > 5:
        expected = sklearn.metrics.top_k_accuracy_score(labels, logits, k=5, labels=range(classes))
        assert figures["top5"] == pytest.approx(expected)
    np.testing.assert_array_equal(
        confusion(logits, labels), sklearn.metrics.confusion_matrix(labels, answers, labels=range(classes))
    )
    assert all(type(value) in (float, int, type(None)) for value in figures.values())


def test_top_k_counts_labels_among_the_k_largest():
    logits = torch.tensor([[4.0, 3, 2, 1], [4, 3, 2, 1], [1, 2, 3, 4]])
    labels = torch.tensor([1, 3, 0])
    assert [top_k(logits, labels, k) for k in (1, 2, 3, 4)] == [0, pytest.approx(1 / 3), pytest.approx(1 / 3), 1]


def test_confusion_has_true_classes_as_rows():
    counts = confusion(logits_of([1, 1, 0], 4), torch.tensor([0, 0, 3]))
    assert counts.tolist() == [[0, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
