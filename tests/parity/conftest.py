import torch


def declare_torchvision_operators() -> None:
    """On a CPU build of torch, PyPI's torchvision does not import, nor what imports it, without two operators."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass
    except RuntimeError:
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)


declare_torchvision_operators()
