"""Figures of a classifier, from scikit-learn; rates are fractions of 1."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def classification_metrics(logits: Tensor, labels: Tensor) -> dict[str, float | int | None]:
    """logits (N, K) float32, labels (N,) int64 -> loss, top1, top5, precision, recall, f1 (macro, micro), count.

    `top5` is None for five classes or fewer. Macro figures average the classes that occur in labels or answers, over
    the whole split at once; a class never answered counts as precision 0.
    """
    from sklearn.metrics import precision_recall_fscore_support

    answers = logits.argmax(dim=1)
    figures: dict[str, float | int | None] = {
        "loss": F.cross_entropy(logits, labels).item(),
        "top1": (answers == labels).double().mean().item(),
        "top5": top_k(logits, labels, 5) if logits.shape[1] > 5 else None,
    }
    for average in ("macro", "micro"):
        precision, recall, f1, _ = precision_recall_fscore_support(
            labels.numpy(), answers.numpy(), average=average, zero_division=0
        )
        figures |= {f"precision_{average}": float(precision), f"recall_{average}": float(recall)}
        figures |= {f"f1_{average}": float(f1)}
    return figures | {"count": len(labels)}


def top_k(logits: Tensor, labels: Tensor, k: int) -> float:
    """Share of rows whose label is among the k largest logits."""
    return (logits.topk(k, dim=1).indices == labels[:, None]).any(dim=1).double().mean().item()


def confusion(logits: Tensor, labels: Tensor) -> np.ndarray:
    """Counts (K, K): row the true class, column the answer."""
    K = logits.shape[1]
    return torch.bincount(labels * K + logits.argmax(dim=1), minlength=K * K).view(K, K).numpy()
