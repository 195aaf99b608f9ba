"""Linear maps of tokens, on a CPU computed in whichever way is faster there."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
IS_AMD = torch.cpu.get_capabilities().get("cpu_name", "").startswith("AMD")


class Linear(nn.Linear):
    """A linear map of each token, (B, N, D_in) -> (B, N, D_out), as a convolution of 1 x 1 where that is faster.

    Values and gradients are those of `nn.Linear`, up to rounding.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not convolution_is_faster(x):
            return super().forward(x)
        return as_convolution(x, self.weight, self.bias)


def as_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b for tokens (B, N, D_in), a weight (D_out, D_in) and a bias (D_out): -> (B, N, D_out)."""
    row = x.transpose(1, 2).unsqueeze(2)  # (B, D_in, 1, N): images one pixel high, channels last
    return F.conv2d(row, weight[:, :, None, None], bias).squeeze(2).transpose(1, 2)


def convolution_is_faster(x: Tensor) -> bool:
    """Whether a convolution of 1 x 1 beats a linear map of tokens x (B, N, D_in).

    Milliseconds for forward and backward on two cores of AMD's Zen 4, torch 2.13, as a linear map and as a convolution
    (`benchmarks/forms.py`):

        B, N, D_in, D_out             float32         bfloat16
        64, 49, 64, 128           1.3     1.3      0.7     0.8
        16, 65, 256, 768          8.1     7.4      3.6     3.8
        128, 64, 192, 384        23.2    20.7     10.6    10.5
        128, 65, 256, 768        68.2    54.6     29.8    27.4
        128, 65, 512, 256        42.6    35.5     20.4    18.8
        32, 197, 192, 768        35.8    30.9     19.4    16.0
        8, 197, 768, 3072       128.1   120.1     59.7    62.4
        8, 197, 3072, 768       124.6   133.7     57.5    61.0
        32, 197, 768, 3072      538.1   484.1    250.1   247.8
        32, 197, 3072, 768      549.1   553.9    250.8   244.7

    For the forward pass alone it wins by more, 22.8 against 17.0 and 10.3 against 8.5 ms at 128, 65, 256, 768: torch's
    linear map copies the bias into the output before it multiplies. On Zen 3, which has AVX2 alone, it takes 0.99 to
    1.15 times as long forward and backward, where the rule below holds (training steps of S/16 and B/16: LOG.md), and
    0.85 to 1.01 times forward alone. Not measured on other makers' processors.
    """
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.ndim != 3:
        return False
    B, N, D_in = x.shape
    return IS_AMD and (HAS_AVX512 or not torch.is_grad_enabled()) and N > 1 and B * N >= 2048 and D_in >= 128
