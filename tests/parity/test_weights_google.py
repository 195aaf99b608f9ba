"""The original .npz layout, read by us and by timm, is the same function, and comes back bit for bit."""

import numpy as np
import pytest
import torch
from compare import TOLERANCE, differences, outputs, peer, same_bits, wrong_epsilon

from vitreous.weights import from_google, load_weights
from vitreous.weights.maps import split_qkv, to_theirs
from vitreous.weights.tensor_files import read_tensors

timm = peer("timm")
D, h, d, hidden, P, L, K, N = 48, 4, 12, 96, 8, 2, 7, 17
ATTENTION = "MultiHeadDotProductAttention_1"


def arrays(pre_logits: int = 0) -> dict[str, np.ndarray]:
    """Random weights under the names and in the shapes of github.com/google-research/vision_transformer."""
    shapes = {
        "cls": (1, 1, D),
        "embedding/kernel": (P, P, 3, D),
        "embedding/bias": (D,),
        "Transformer/posembed_input/pos_embedding": (1, N, D),
        "Transformer/encoder_norm/scale": (D,),
        "Transformer/encoder_norm/bias": (D,),
        "head/kernel": (pre_logits or D, K),
        "head/bias": (K,),
    }
    if pre_logits:
        shapes |= {"pre_logits/kernel": (D, pre_logits), "pre_logits/bias": (pre_logits,)}
    for i in range(L):
        block = f"Transformer/encoderblock_{i}/"
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{block}{norm}/scale": (D,), f"{block}{norm}/bias": (D,)}
        for name in ("query", "key", "value"):
            shapes |= {f"{block}{ATTENTION}/{name}/kernel": (D, h, d), f"{block}{ATTENTION}/{name}/bias": (h, d)}
        shapes |= {f"{block}{ATTENTION}/out/kernel": (h, d, D), f"{block}{ATTENTION}/out/bias": (D,)}
        shapes |= {f"{block}MlpBlock_3/Dense_0/kernel": (D, hidden), f"{block}MlpBlock_3/Dense_0/bias": (hidden,)}
        shapes |= {f"{block}MlpBlock_3/Dense_1/kernel": (hidden, D), f"{block}MlpBlock_3/Dense_1/bias": (D,)}
    random = np.random.default_rng(0)
    made = {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
    for name in ("cls", "embedding/kernel", "embedding/bias", "Transformer/posembed_input/pos_embedding"):
        made[name] *= 0.02  # so small that an epsilon of 1e-6 shows in their norm
    return made


def written(folder, pre_logits: int = 0):
    np.savez(folder / "ViT.npz", **arrays(pre_logits))
    return folder / "ViT.npz"


def read_by_timm(file, classes=K):
    """timm's own reading of the file. Its own GELU is the exact one, Flax's is not."""
    sizes = {"img_size": 32, "patch_size": P, "embed_dim": D, "depth": L, "num_heads": h, "mlp_ratio": hidden / D}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=classes, act_layer="gelu_tanh", **sizes)
    model.load_pretrained(str(file))
    return model.eval()


def written_back(ours, like):
    """The file of a model of ours. like: a file, for the shapes: Google splits the heads in them."""
    back = to_theirs(split_qkv(ours.state_dict()), from_google.pairs(ours.config), "Google")
    for name, value in back.items():
        if name.endswith("kernel"):
            value = value.permute(2, 3, 1, 0) if value.ndim == 4 else value.T
        back[name] = value.reshape(like[name].shape)
    return back


def images():
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_blocks_and_logits_equal_those_of_timm_and_return_bit_for_bit(tmp_path):
    file = written(tmp_path)
    bundle, report = load_weights(file)
    theirs = read_by_timm(file)
    expected = outputs(theirs, theirs.blocks, images())
    assert max(differences(bundle.model, expected, images())) < TOLERANCE and expected[-1].std() > 0.1
    tensors = read_tensors(file)
    assert same_bits(written_back(bundle.model, tensors), tensors) and set(report.loaded) == set(tensors)
    config, preprocess = bundle.model.config, bundle.preprocess
    assert (config.heads, config.image_size, config.gelu, config.norm_eps) == (h, (32, 32), "tanh", 1e-6)
    assert (preprocess.mean, preprocess.fit, preprocess.interpolation) == ((0.5,) * 3, "squash", "bilinear")
    wrong_epsilon(bundle.model)  # which embeddings this small show
    assert max(differences(bundle.model, expected, images())) > 10 * TOLERANCE


def test_pre_logits_is_the_tanh_layer_of_the_head(tmp_path):
    file = written(tmp_path, pre_logits=20)
    bundle, _ = load_weights(file)
    values = {name: torch.from_numpy(value) for name, value in arrays(20).items()}
    theirs = read_by_timm(file, classes=0)  # it leaves the head alone
    with torch.no_grad():
        token = theirs.forward_features(images())[:, 0]
        hidden_layer = torch.tanh(token @ values["pre_logits/kernel"] + values["pre_logits/bias"])
        expected = hidden_layer @ values["head/kernel"] + values["head/bias"]
        torch.testing.assert_close(bundle.model(images()), expected, rtol=0, atol=TOLERANCE)
    tensors = read_tensors(file)
    assert same_bits(written_back(bundle.model, tensors), tensors)


def test_a_kernel_read_without_its_transpose_is_noticed(tmp_path, monkeypatch):
    file = written(tmp_path)
    theirs = read_by_timm(file)
    read = from_google.to_torch

    def without(name, value):
        return read(name, value).T.contiguous() if name.endswith("out/kernel") else read(name, value)

    monkeypatch.setattr(from_google, "to_torch", without)
    ours = load_weights(file)[0].model
    assert max(differences(ours, outputs(theirs, theirs.blocks, images()), images())) > 10 * TOLERANCE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: a.pop("embedding/kernel"), "'embedding/kernel' is missing: Google's layout has it with 4 dim"),
        (lambda a: a.update({"head/kernel": np.zeros((7,), np.float32)}), r"'head/kernel' is \(7,\): Google's layout"),
        (
            lambda a: a.update({"Transformer/posembed_input/pos_embedding": np.zeros((1, 16, D), np.float32)}),
            "15 positions besides the class token's are not a square grid",
        ),
        (lambda a: a.pop("cls"), "missing cls"),
        (lambda a: a.update(extra=np.zeros(3, np.float32)), "unexpected extra"),
        (
            lambda a: a.update({f"Transformer/encoderblock_1/{ATTENTION}/key/kernel": np.zeros((D, h, 6), np.float32)}),
            "has no queries, keys and values of its shape to stand with",
        ),
    ],
)
def test_what_is_no_file_of_googles_is_refused_by_its_part(tmp_path, change, reason):
    values = arrays()
    change(values)
    np.savez(tmp_path / "ViT.npz", **values)
    with pytest.raises(ValueError, match=reason) as caught:
        load_weights(tmp_path / "ViT.npz")
    assert "\n" not in str(caught.value)
