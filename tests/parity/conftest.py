import torch


def declare_torchvision_operators() -> torch.library.Library | None:
    """On a CPU build of torch, PyPI's torchvision does not import, nor what imports it, without two operators."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    except ImportError:
        pass
    return None


operators = declare_torchvision_operators()  # held: they live as long as it does
