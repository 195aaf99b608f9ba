"""Named sizes: `B/16` is the Base model with 16 x 16 patches.

Ti, S, B, L and H: Dosovitskiy et al. 2021, Table 1, and its small siblings of Steiner et al. 2022, Table 2.
The last three are ours, for small images and few of them.
"""

from typing import Any

#             width      blocks       heads       hidden width of the MLP / width
SIZES = {
    "Ti": {"dim": 192, "depth": 12, "heads": 3, "mlp_ratio": 4.0},
    "S": {"dim": 384, "depth": 12, "heads": 6, "mlp_ratio": 4.0},
    "B": {"dim": 768, "depth": 12, "heads": 12, "mlp_ratio": 4.0},
    "L": {"dim": 1024, "depth": 24, "heads": 16, "mlp_ratio": 4.0},
    "H": {"dim": 1280, "depth": 32, "heads": 16, "mlp_ratio": 4.0},
    "nano": {"dim": 64, "depth": 3, "heads": 2, "mlp_ratio": 2.0},
    "micro": {"dim": 128, "depth": 4, "heads": 4, "mlp_ratio": 2.0},
    "mini": {"dim": 256, "depth": 6, "heads": 8, "mlp_ratio": 2.0},
}


def size(name: str) -> dict[str, Any]:
    """The `ViTConfig` fields of a size, `B` or with its patch size `B/16`. Raises ValueError for any other name."""
    letters, slash, patch = name.partition("/")
    if letters not in SIZES or (slash and not (patch.isdecimal() and int(patch) > 0)):
        raise ValueError(f"unknown model size '{name}': use one of {', '.join(SIZES)}, with a patch size: B/16")
    return SIZES[letters] | ({"patch_size": int(patch)} if slash else {})
