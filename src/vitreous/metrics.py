"""Metrics of a classifier and their uncertainty; rates are fractions of 1."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15  # of confidence, as in Guo et al. 2017
DRAWS = 200  # of answers that are right by chance
Z95 = 1.959964  # 95% of a normal distribution is within so many standard deviations
TEMPERATURES = (0.05, 20.0)  # the range searched

# Display names of the figures, in the order in which they are shown
NAMES = {
    "top1": "top-1",
    "top5": "top-5",
    "loss": "loss",
    "precision_macro": "precision, macro",
    "recall_macro": "recall, macro",
    "f1_macro": "F1, macro",
    "f1_micro": "F1, micro",
    "auroc": "AUROC, macro",
    "ece": "calibration error",
    "ece_unscaled": "calibration error, unscaled",
    "temperature": "temperature",
    "count": "images",
    "groups": "groups",
    "effective_count": "effective sample size",
}
WATCHED = ("loss", "top1", "top5", "precision_macro", "recall_macro", "f1_macro")  # per epoch, and over folds


def figure_text(name: str, value: float | None) -> str:
    """A figure formatted for reading; "" if there is none."""
    if value is None:
        return ""
    forms = {"loss": ".4f", "temperature": ".3f", "count": ",.0f", "groups": ",.0f", "effective_count": ",.0f"}
    return format(value, forms.get(name, ".2%"))


def top1_interval(figures: dict[str, float | int | None]) -> tuple[float, float]:
    """The 95% interval of a split's top-1; wider if the images come in groups."""
    count = figures["count"]
    worth = figures.get("effective_count", count)
    return wilson(round(figures["top1"] * count) / count * worth, worth)


def classification_metrics(
    logits: Tensor, labels: Tensor, temperature: float = 1.0, groups: np.ndarray | None = None
) -> dict[str, float | int | None]:
    """`pooled_metrics` of one model, with what only one has: its temperature and, of the raw logits, the auroc."""
    figures = pooled_metrics(logits, logits.double() / temperature, labels, groups)
    return figures | {"auroc": auroc(logits.double().softmax(dim=1), labels), "temperature": temperature}


def pooled_metrics(
    logits: Tensor, scaled: Tensor, labels: Tensor, groups: np.ndarray | None = None
) -> dict[str, float | int | None]:
    """`answer_metrics` of logits (N, K) float32 and labels (N,) int64, of one model or of several, ece, ece_unscaled
    and count.

    `ece` is the calibration error of the `scaled` logits, which are divided by a temperature; `ece_unscaled` and the
    loss are those of the raw ones. groups: (N,), of images that belong together; adds `group_figures`.
    """
    figures = answer_metrics(logits, labels) | {
        "ece": calibration_error(reliability(scaled, labels)),
        "ece_unscaled": calibration_error(reliability(logits, labels)),
        "count": len(labels),
    }
    return figures if groups is None else figures | group_figures((logits.argmax(dim=1) == labels).numpy(), groups)


def auroc(probabilities: Tensor, labels: Tensor) -> float | None:
    """The area under the ROC curve of each class against the others, (N, K) and (N,), averaged over classes.

    Classes without images are left out; None if only one class has images.
    """
    from sklearn.metrics import roc_auc_score

    classes = labels.unique()
    if len(classes) < 2:
        return None
    return float(np.mean([roc_auc_score((labels == k).numpy(), probabilities[:, k].numpy()) for k in classes]))


def answer_metrics(logits: Tensor, labels: Tensor) -> dict[str, float | int | None]:
    """logits (N, K) float32, labels (N,) int64 -> loss, top1, top5, precision, recall and f1 (macro, micro).

    `top5` is None for five classes or fewer. Macro figures average over the classes that occur in labels or answers, on
    the whole split at once; a class that is never answered has precision 0, and one that is answered but has no images
    has recall 0.
    """
    from sklearn.metrics import precision_recall_fscore_support

    answers = logits.argmax(dim=1)
    figures: dict[str, float | int | None] = {
        "loss": F.cross_entropy(logits, labels).item(),
        "top1": (answers == labels).double().mean().item(),
        "top5": top_k(logits, labels, 5) if logits.shape[1] > 5 else None,
    }
    macro = precision_recall_fscore_support(labels.numpy(), answers.numpy(), average="macro", zero_division=0)
    for name, value in zip(("precision", "recall", "f1"), macro, strict=False):
        figures |= {f"{name}_macro": float(value), f"{name}_micro": figures["top1"]}  # equal, with one label per image
    return figures


def watched(logits: Tensor, labels: Tensor, split: str) -> dict[str, float]:
    """The `WATCHED` figures of `answer_metrics` that are not None, as `val_top1` and the like."""
    figures = answer_metrics(logits, labels)
    return {f"{split}_{name}": figures[name] for name in WATCHED if figures[name] is not None}


def top_k(logits: Tensor, labels: Tensor, k: int) -> float:
    """Share of rows whose label is among the k largest logits."""
    return (logits.topk(k, dim=1).indices == labels[:, None]).any(dim=1).double().mean().item()


def confusion(logits: Tensor, labels: Tensor) -> np.ndarray:
    """Counts (K, K): row the true class, column the answer."""
    K = logits.shape[1]
    return torch.bincount(labels * K + logits.argmax(dim=1), minlength=K * K).view(K, K).numpy()


class ClassFigures(NamedTuple):
    """The figures of one class; a share of nothing is None."""

    images: int
    answered: int
    """How often it was the answer."""
    right: int
    recall: float | None
    """The share of its images that was found."""
    precision: float | None
    """The share of its answers that is right."""
    f1: float | None


def class_figures(counts: np.ndarray) -> list[ClassFigures]:
    """The figures of each class, in order, from a `confusion` (K, K)."""
    sums = zip(counts.sum(axis=1).tolist(), counts.sum(axis=0).tolist(), np.diag(counts).tolist(), strict=True)
    return [
        ClassFigures(
            images,
            answered,
            right,
            recall=right / images if images else None,
            precision=right / answered if answered else None,
            f1=2 * right / (images + answered) if images + answered else None,
        )
        for images, answered, right in sums
    ]


def recall_intervals(
    right: np.ndarray, labels: np.ndarray, groups: np.ndarray | None, classes: int
) -> list[tuple[float | None, float | None, int | None]]:
    """The 95% interval of each class's recall, and how many groups its images come in; None for what there is not.

    right: bool (N,). labels, groups: (N,).
    """
    found = []
    for k in range(classes):
        own = labels == k
        within = None if groups is None else groups[own]
        ends = share_interval(right[own], within) if own.any() else (None, None)
        found.append((*ends, None if within is None else len(np.unique(within))))
    return found


def group_figures(right: np.ndarray, groups: np.ndarray) -> dict[str, float | int]:
    """The number of groups, in how many of them a mistake is, and how many independent images would tell as much.

    right: bool (N,). groups: (N,). `effective_count`, for the precision of the share of right answers, is N over the
    design effect (Kish 1965), reduced for a small number of groups (Korn & Graubard 1998): from 1 to N. If all answers
    are right, or none, each group counts as one.
    """
    from scipy.stats import t

    names, of = np.unique(groups, return_inverse=True)
    N, G, share = len(right), len(names), right.mean()
    figures = {"groups": G, "wrong_groups": len(np.unique(of[~right]))}
    if G < 2 or share in (0, 1):
        return figures | {"effective_count": G}
    excess = np.bincount(of, weights=right) - right.sum() * np.bincount(of) / N
    variance = G / (G - 1) * (excess**2).sum() / N**2
    independent = share * (1 - share) / variance if variance else N
    return figures | {"effective_count": float(np.clip(independent * (Z95 / t.ppf(0.975, G - 1)) ** 2, 1, N))}


def share_interval(right: np.ndarray, groups: np.ndarray | None = None) -> tuple[float, float]:
    """The 95% interval of the share of right answers, bool (N,); wider if the images come in groups, (N,)."""
    worth = len(right) if groups is None else group_figures(right, groups)["effective_count"]
    return wilson(right.mean() * worth, worth)


def sign_flip_p(totals: np.ndarray) -> float:
    """Exact two-sided sign-flip test: how often random signs put the sum of integers (n,) at least as far from 0.

    For values of 1 and -1 this is McNemar's exact test (1947).
    """
    sizes = np.abs(totals[totals != 0])
    chance = np.zeros(sizes.sum() + 1)  # of each sum, in steps of 2 from the smallest
    chance[0] = 1
    for size in sizes:
        chance[size:] += chance[:-size].copy()
        chance /= 2
    sums = 2 * np.arange(len(chance)) - sizes.sum()
    return min(float(chance[np.abs(sums) >= abs(totals.sum())].sum()), 1.0)


def gain_per_image(totals: np.ndarray, sizes: np.ndarray) -> tuple[float, float] | None:
    """The 95% interval of the gain per image, from the gains and the sizes of groups of images, (n,) each.

    By Student's distribution, the variance as in `group_figures`. None if each group gains the same per image.
    """
    from scipy.stats import t

    n, N = len(totals), sizes.sum()
    gain = totals.sum() / N
    squares = np.square(totals - gain * sizes).sum()
    if squares < 1e-12:
        return None
    half = t.ppf(0.975, n - 1) * (n / (n - 1) * squares) ** 0.5 / N
    return max(gain - half, -1.0), min(gain + half, 1.0)


def resampled_t_p(gains: np.ndarray, ratio: float) -> float | None:
    """Two-sided p of the corrected resampled t-test (Nadeau and Bengio 2003) of how much folds differ, (k,).

    ratio: test images to training images, by which the variance of the mean is raised, as folds share training images.
    None if all differ by the same.
    """
    from scipy.stats import t

    k, spread = len(gains), gains.std(ddof=1)
    if spread < 1e-12:
        return None
    return float(2 * t.sf(abs(gains.mean()) / (spread * (1 / k + ratio) ** 0.5), k - 1))


def wilson(hits: float, count: float) -> tuple[float, float]:
    """The 95% Wilson interval (1927) of a share with `hits` of `count`, always within 0..1."""
    if not 0 <= hits <= count or count < 1:
        raise ValueError(f"{hits} hits of {count}: at least one try, and no more hits than tries")
    share, z2 = hits / count, Z95**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z95 / (1 + z2 / count) * (share * (1 - share) / count + z2 / (4 * count**2)) ** 0.5
    return max(centre - half, 0.0) if hits else 0.0, min(centre + half, 1.0) if hits < count else 1.0


class Reliability(NamedTuple):
    """Answers by confidence, in equal bins (lower, upper] of 0..1: each (bins,), 0 where a bin is empty."""

    count: np.ndarray
    confidence: np.ndarray
    """Mean probability of the answers."""
    accuracy: np.ndarray
    """Share of the answers that is right."""


def reliability(logits: Tensor, labels: Tensor) -> Reliability:
    """How often answers are right, by confidence: logits (N, K), labels (N,)."""
    confidence, answers = logits.double().softmax(dim=1).max(dim=1)
    rows = _bin_of(confidence)
    count = torch.bincount(rows, minlength=BINS).double()
    sure = torch.bincount(rows, weights=confidence, minlength=BINS) / count.clamp(min=1)
    right = torch.bincount(rows, weights=(answers == labels).double(), minlength=BINS) / count.clamp(min=1)
    return Reliability(count.long().numpy(), sure.numpy(), right.numpy())


def _bin_of(confidence: Tensor) -> Tensor:
    return (confidence * BINS).ceil().long().clamp(1, BINS) - 1


def calibration_error(bins: Reliability) -> float:
    """Expected calibration error: the mean distance of confidence from accuracy over all answers (Guo et al. 2017)."""
    return float((bins.count * np.abs(bins.confidence - bins.accuracy)).sum() / bins.count.sum())


def chance_error(logits: Tensor, worth: float | None = None) -> tuple[float, float]:
    """The calibration error that a perfectly calibrated model with the same confidences shows by chance.

    logits (N, K). Returns the mean and the 95th percentile over draws, in each of which an answer is right with its
    confidence as probability (Bröcker & Smith 2007; Vaicenavicius et al. 2019). No error is below 0, so on few images
    it is above 0 by chance. worth: the `effective_count` of images in groups, by whose root both are larger.
    """
    confidence = logits.double().softmax(dim=1).amax(dim=1)
    rows, generator = _bin_of(confidence), torch.Generator().manual_seed(0)
    errors = torch.zeros(DRAWS, dtype=torch.float64)
    for i in range(DRAWS):
        surprise = confidence - torch.bernoulli(confidence, generator=generator)
        errors[i] = torch.bincount(rows, weights=surprise).abs().sum() / len(confidence)
    if worth is not None:
        errors = (errors * (len(logits) / worth) ** 0.5).clamp(max=1)
    return errors.mean().item(), errors.quantile(0.95).item()


def fit_temperature(logits: Tensor, labels: Tensor, groups: np.ndarray | None = None) -> float:
    """The temperature to divide logits by that minimises the loss on these held-out images (Guo et al. 2017).

    logits (N, K), labels (N,); groups: (N,), of images that belong together. No answer changes. The loss is convex in
    1 / temperature, so its slope has one zero, found by bisection. Returns 1 if all answers are right, as the loss then
    has no minimum, and if there are too few images to tell the temperature from 1 (likelihood ratio test, at 95%, of
    the effective sample size of groups).
    """
    z = logits.double()
    right = z.argmax(dim=1) == labels
    if bool(right.all()):
        return 1.0
    worth = len(labels) if groups is None else group_figures(right.numpy(), groups)["effective_count"]
    target = z.gather(1, labels[:, None]).mean()
    low, high = TEMPERATURES
    for _ in range(30):
        middle = (low * high) ** 0.5
        slope = ((z / middle).softmax(dim=1) * z).sum(dim=1).mean() - target  # of the loss, by 1 / temperature
        low, high = (middle, high) if slope > 0 else (low, middle)
    gain = F.cross_entropy(z, labels) - F.cross_entropy(z / middle, labels)
    return round(middle, 6) if 2 * worth * gain > Z95**2 else 1.0
