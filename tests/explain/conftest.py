import pytest
import torch
from small_models import VARIANTS, small

from vitreous.model import ViT


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def model(request) -> ViT:
    return small(**request.param)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(4, 3, 8, 12, generator=torch.Generator().manual_seed(1))
