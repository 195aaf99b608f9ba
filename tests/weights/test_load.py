"""Others' weights into our model: where they lie, what becomes of every tensor, and what is refused."""

import json
import pickle
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import CLASSES, tiny_bundle, tiny_set

from vitreous.evaluation import ON_CALIBRATED, calibrated, judge_run
from vitreous.model import ViT
from vitreous.prediction import predict
from vitreous.weights import bundle as bundle_module
from vitreous.weights import from_timm, from_torchvision, from_vitreous, load_weights, tensor_files
from vitreous.weights.load import AS_IMAGENET, imagenet_classes
from vitreous.weights.maps import merge_qkv, split_qkv

PIZZA = "pizza, pizza pie"


@pytest.fixture
def folder(tmp_path):
    """A tiny model of ours under timm's names, with a config.json of ours beside it."""
    bundle = tiny_bundle(registers=2, position_tokens="all")
    bundle.save(tmp_path)
    save_file(from_timm.to_theirs(bundle.model.state_dict(), bundle.model.config), tmp_path / "model.safetensors")
    return tmp_path


def change(folder, edit, name="model.safetensors"):
    weights = load_file(folder / name)
    edit(weights)
    save_file(weights, folder / name)


def refused(source, **options):
    with pytest.raises(ValueError) as caught:
        load_weights(source, **options)
    assert type(caught.value) is ValueError and "\n" not in str(caught.value)
    return str(caught.value)


def reading():
    return torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


# --- what becomes of every tensor ---


def test_the_temperature_of_our_own_bundles_comes_along_with_their_head(tmp_path):
    replace(tiny_bundle(), temperature=1.75).save(tmp_path)
    assert load_weights(tmp_path)[0].temperature == 1.75
    assert load_weights(tmp_path, num_classes=5)[0].temperature == 1  # of a head that answers 0 for every class


def test_a_weight_file_of_ours_says_that_it_is_judged_on_what_its_temperature_was_fitted_on(tmp_path):
    images, exact = tiny_set(), {"device": "cpu", "precision": "float32"}
    fitted = calibrated(judge_run(tiny_bundle(), images, **exact))
    assert fitted.temperature != 1
    fitted.save(tmp_path)
    judged = judge_run(load_weights(tmp_path / "model.safetensors")[0], images, **exact)
    assert judged.calibrated_here and judged.caution == ON_CALIBRATED
    assert load_weights(tmp_path, num_classes=5)[0].calibrated_on is None


def test_a_head_for_one_number_answers_with_no_class(tmp_path):
    """Its softmax is 1 for any image."""
    tiny_bundle(classes=("only",)).save(tmp_path)
    assert "has a head for one number, whose answers are not one class: only `vitreous embed`" in refused(tmp_path)
    assert load_weights(tmp_path, num_classes=2)[1].new_head == "2 classes in place of 1"


def test_every_tensor_is_loaded_or_left_out(folder):
    expected = tiny_bundle(registers=2, position_tokens="all")
    bundle, report = load_weights(folder)
    file = load_file(folder / "model.safetensors")
    assert set(report.loaded) == set(file) and set(report.loaded.values()) == set(expected.model.state_dict())
    assert (report.layout, report.left_out, report.new_head) == ("timm", {}, "")
    assert torch.equal(bundle.model(reading()), expected.model(reading())) and not bundle.model.training
    assert bundle.class_names == CLASSES and bundle.preprocess == expected.preprocess
    assert report.lines()[0] == f"{folder}: {len(file)} of {len(file)} tensors loaded, named as timm does"


def test_faults_are_listed_and_nothing_is_loaded(folder):
    def edit(weights):
        del weights["blocks.0.norm1.bias"]
        weights["blocks.0.mlp.fc1.weight"] = torch.zeros(64, 15)
        weights["extra"] = torch.zeros(2)

    change(folder, edit)
    assert refused(folder) == (
        f"{folder / 'model.safetensors'} does not fit its config or architecture: missing blocks.0.norm1.bias; "
        "unexpected extra; blocks.0.mlp.fc1.weight is (64, 15), expected (64, 16): give the right one"
    )


@pytest.mark.parametrize("damage", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(folder, damage):
    change(folder, lambda weights: weights["blocks.0.norm2.weight"].__setitem__(3, damage))
    assert "blocks.0.norm2.weight is not finite: it holds NaN or infinity" in refused(folder)


def test_integers_in_place_of_weights_are_refused(folder):
    change(folder, lambda weights: weights.update({"head.bias": torch.zeros(3, dtype=torch.int8)}))
    assert "head.bias is torch.int8, expected torch.float32" in refused(folder)


def test_half_precision_becomes_float32(folder):
    change(folder, lambda weights: weights.update({name: value.half() for name, value in weights.items()}))
    stored = load_file(folder / "model.safetensors")
    state = load_weights(folder)[0].model.state_dict()
    assert {value.dtype for value in state.values()} == {torch.float32}
    assert torch.equal(state["head.weight"], stored["head.weight"].float())


# --- head and size ---


def test_another_number_of_classes_makes_a_new_head_and_says_so(folder):
    bundle, report = load_weights(folder, num_classes=5)
    assert torch.equal(bundle.model(reading()), torch.zeros(3, 5)) and bundle.class_names == tuple("01234")
    assert report.new_head == "5 classes in place of 3" and set(report.left_out) == {"head.weight", "head.bias"}
    assert "new head, whose logits all start at 0: 5 classes in place of 3" in report.lines()
    same = load_weights(folder, num_classes=3)
    assert same[1].new_head == "" and same[0].class_names == CLASSES


def test_a_head_of_1000_classes_without_names_is_taken_for_that_of_imagenet(tmp_path, monkeypatch):
    names = imagenet_classes()
    assert len(set(names)) == 1000 and (names[0], names[207], names[963]) == (
        "tench, Tinca tinca", "golden retriever", PIZZA
    )  # fmt: skip
    monkeypatch.setitem(
        from_timm.ARCHITECTURES,
        "vit_mini",
        ({"embed_dim": 16, "depth": 1, "num_heads": 2, "in_chans": 1}, 4, 8, 0.9, {"mean": (0.1,), "std": (0.2,)}),
    )
    for classes, expected in ((1000, names), (999, tuple(map(str, range(999))))):
        model = tiny_bundle(classes=tuple(map(str, range(classes)))).model
        save_file(from_timm.to_theirs(model.state_dict(), model.config), tmp_path / "model.safetensors")
        bundle, report = load_weights(tmp_path, arch="vit_mini")
        assert bundle.class_names == expected and not report.named
        assert (AS_IMAGENET in report.lines()) == report.imagenet == (classes == 1000)
    bundle, report = load_weights(tmp_path, arch="vit_mini", num_classes=1000)  # a new head, of the file with 999
    assert bundle.class_names[:2] == ("0", "1") and not report.imagenet


def test_a_file_without_head_needs_a_number_of_classes(folder):
    change(folder, lambda weights: [weights.pop("head.weight"), weights.pop("head.bias")])
    assert refused(folder).endswith("in Python, give num_classes, those of a new one")
    assert load_weights(folder, num_classes=4)[1].new_head == "4 classes; the file has none"


def test_half_a_head_is_a_fault(folder):
    change(folder, lambda weights: weights.pop("head.bias"))
    assert "missing head.bias" in refused(folder)


def test_registers_and_class_token_keep_their_positions_when_the_grid_is_resampled(folder):
    bundle, report = load_weights(folder, image_size=(12, 20))
    before = load_file(folder / "model.safetensors")["pos_embed"]
    positions = bundle.model.positions
    assert positions.shape == (1, 3 + 3 * 5, 16) and torch.equal(positions[:, :3], before[:, :3])
    assert report.grids == ((2, 2), (3, 5)) and bundle.preprocess.image_size == (12, 20)
    assert "positions resampled from a grid of 2 x 2 to 3 x 5" in report.lines()
    assert "image size 10 is not divisible by patch size 4" in refused(folder, image_size=10)


def test_the_same_size_leaves_positions_bit_for_bit(folder):
    before = load_file(folder / "model.safetensors")["pos_embed"]
    bundle, report = load_weights(folder, image_size=8)
    assert torch.equal(bundle.model.positions, before) and report.grids is None


def test_q_k_v_in_one_and_apart_are_each_others_inverse():
    state = tiny_bundle().model.state_dict()
    apart = split_qkv(state)
    assert "blocks.0.attention.q.weight" in apart and "blocks.0.attention.qkv.weight" not in apart
    merged = merge_qkv(apart)
    assert merged.keys() == state.keys() and all(torch.equal(merged[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"pool": "attention"}, "pool.score.bias"),
        ({"patch_embedding": "conv_stem", "stem_channels": (4,)}, "patches.layers.0.weight"),
    ],
)
def test_a_part_that_a_layout_has_no_name_for_is_refused(options, part):
    model = tiny_bundle(**options).model
    with pytest.raises(ValueError, match=f"timm's ViT has no place for {part}"):
        from_timm.to_theirs(model.state_dict(), model.config)


# --- our own ---


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"patch_embedding": "conv_stem", "stem_channels": (4,), "pool": "attention"},
        {"positions": "rope", "norm": "rmsnorm", "qk_norm": True, "head_hidden": 8, "bias": False},
        {"positions": "sincos2d"},
    ],
)
def test_our_own_bundles_go_the_same_way(tmp_path, options):
    bundle = tiny_bundle(**options)
    bundle.save(tmp_path / "run" / "model")
    again, report = load_weights(tmp_path / "run")
    assert torch.equal(again.model(reading()), bundle.model(reading())) and report.layout == "Vitreous"
    assert (
        set(report.loaded)
        == set(bundle.model.state_dict())
        == {name for name, _ in from_vitreous.pairs(bundle.model.config)}
    )
    larger, report = load_weights(tmp_path / "run", image_size=16, num_classes=2)
    assert larger.model(torch.zeros(1, 1, 16, 16)).shape == (1, 2)
    assert isinstance(larger.model.head, torch.nn.Linear) and report.grids == ((2, 2), (4, 4))
    computed = "positions computed for a grid of 4 x 4; the weights knew 2 x 2"
    assert (computed in report.lines()) == ("positions" in options)


def test_a_shipped_name_is_found_and_another_is_explained(tmp_path, monkeypatch):
    tiny_bundle().save(tmp_path / "stripes")
    monkeypatch.setattr(bundle_module, "SHIPPED", tmp_path)
    assert load_weights("stripes")[0].class_names == CLASSES
    message = refused("strips")
    assert message.startswith("no model 'strips' here") and message.endswith("a folder or hf:owner/name")


# --- where they lie ---


def test_a_file_a_folder_and_torchs_file_are_the_same(folder):
    torch.save({"model": load_file(folder / "model.safetensors"), "epoch": 3}, folder / "weights.pth")
    expected = load_weights(folder)[0].model(reading())
    for source in (str(folder), folder / "model.safetensors", folder / "weights.pth"):
        assert torch.equal(load_weights(source)[0].model(reading()), expected)
    (folder / "model.safetensors").unlink()
    assert torch.equal(load_weights(folder)[0].model(reading()), expected)  # the only one left
    (folder / "weights.pth").rename(folder / "pytorch_model.bin")
    assert torch.equal(load_weights(folder)[0].model(reading()), expected)


def test_a_folder_with_several_weight_files_or_none_is_refused(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    assert refused(folder) == f"{folder} holds no weight file: give a folder with model.safetensors and config.json"
    for name in ("a.safetensors", "b.safetensors"):
        save_file(weights, folder / name)
    assert refused(folder).startswith(f"{folder} holds several weight files: a.safetensors, b.safetensors: give one")


@pytest.fixture
def hub(folder, tmp_path, monkeypatch):
    """The Hub's cache with one repository of two revisions, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "hub" / "models--me--tiny"
    for commit, branch in (("a" * 40, "main"), ("b" * 40, "old")):
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / branch).write_text(commit)
        for name in ("model.safetensors", "config.json"):
            (snapshot / name).write_bytes((folder / name).read_bytes())
    change(repository / "snapshots" / ("b" * 40), lambda weights: weights["head.bias"].add_(1))
    return repository


def test_a_repository_of_the_hub_works_offline_from_the_cache_and_can_be_pinned(folder, hub):
    expected = load_weights(folder)[0].model(reading())
    assert torch.equal(load_weights("hf:me/tiny")[0].model(reading()), expected)
    for revision in ("old", "b" * 40):
        found = load_weights("hf:me/tiny", revision=revision)[0].model(reading())
        torch.testing.assert_close(found, expected + 1)
    message = refused("hf:me/other")
    assert message.startswith("cannot download me/other (") and message.endswith("or give a folder that has its files")
    for snapshot in (hub / "snapshots").iterdir():
        (snapshot / "model.safetensors").unlink()
    assert refused("hf:me/tiny").startswith("hf:me/tiny has neither model.safetensors nor pytorch_model.bin")


def test_only_what_is_needed_is_fetched(folder, monkeypatch):
    import huggingface_hub

    asked = []

    def fetch(repo, revision, allow_patterns):
        asked.append((repo, revision, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    load_weights("hf:me/tiny", revision="v1")
    assert asked == [("me/tiny", "v1", ["model.safetensors", "config.json", "preprocessor_config.json"])]


@pytest.mark.parametrize("name", ["hf:tiny", "hf:", "hf:a/b/c", "hf:/b"])
def test_what_is_no_repository_is_refused(name):
    assert refused(name) == f"'{name}' is not a repository of the Hub: write hf:owner/name"


def test_a_revision_belongs_to_a_repository(folder):
    assert "revision 'v1' belongs to a repository of the Hub" in refused(folder, revision="v1")


# --- what they are ---


def test_a_bare_file_needs_a_config_or_its_architecture(folder, monkeypatch):
    (folder / "config.json").unlink()
    message = refused(folder)
    assert "does not say its number of heads, its epsilon or how images are normalised: put its config.json" in message
    size = {"embed_dim": 16, "depth": 1, "num_heads": 2, "reg_tokens": 2, "in_chans": 1}
    row = (size, 4, 8, 0.9, {"mean": (0.1,), "std": (0.2,)})
    monkeypatch.setitem(from_timm.ARCHITECTURES, "vit_mini", row)
    bundle, _ = load_weights(folder, arch="vit_mini")
    whole = tiny_bundle(registers=2, position_tokens="all").model
    torch.testing.assert_close(bundle.model(reading()), whole(reading()))
    assert (bundle.preprocess.mean, bundle.preprocess.crop_fraction) == ((0.1,), 0.9)
    assert bundle.class_names == ("0", "1", "2")  # of the head: an architecture does not say how many
    assert refused(folder, arch="vit_miny").endswith(
        "which has no architecture 'vit_miny' here: use vit_mini or vit_tiny_patch16_384 or vit_tiny_patch16_224"
    )
    assert "expected (1, 1, 192)" in refused(folder, arch="vit_tiny_patch16_224")  # the wrong one


def test_a_config_of_another_library_is_refused(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
    said = f"{folder / 'config.json'} is not a config of timm, whose names model.safetensors has: put its config.json "
    assert refused(folder).startswith(f"{said}beside it, or give its architecture: --arch vit_")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON: "),
        ("[" * 100_000, "is not JSON: "),
        ("[]", "holds no JSON object but list"),
        ('{"architecture": "resnet50"}', "timm's 'resnet50' is not one of the models that can be read: "),
        (
            '{"architecture": "vit_tiny_patch16_224", "model_args": {"depth": "x"}}',
            "depth is 'x': input should be a valid int",
        ),
        ('{"architecture": "vit_tiny_patch16_224", "model_args": 3}', "does not say what it should: TypeError"),
        ('{"architecture": ["vit"]}', "does not say what it should: TypeError"),
        ('{"preprocess": 3}', "does not describe a model: it has no 'model'"),
    ],
)
def test_a_config_that_says_nothing_of_use_is_refused(folder, text, reason):
    (folder / "config.json").write_text(text)
    message = refused(folder)
    assert message.startswith(str(folder / "config.json")) and reason in message


def test_names_of_no_known_library_are_refused(folder):
    save_file({"conv1.weight": torch.zeros(2), "fc.weight": torch.zeros(2)}, folder / "model.safetensors")
    assert refused(folder) == (
        f"{folder / 'model.safetensors'} is not a ViT of Vitreous, timm, Hugging Face, torchvision, Google: "
        "its tensors are conv1.weight, fc.weight"
    )


def test_images_and_model_must_have_the_same_channels(folder):
    said = json.loads((folder / "config.json").read_text())
    said["preprocess"] |= {"mean": [0.5] * 3, "std": [0.5] * 3}
    (folder / "config.json").write_text(json.dumps(said))
    assert refused(folder).endswith(
        "images get 3 channels, but the model reads 1: give mean and std of each in its config"
    )


def test_every_class_of_a_head_has_a_name(folder):
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | {"class_names": ["ant"]}))
    told = "1 class names for a head of 3 classes: name each of them once in its config.json"
    assert refused(folder) == f"{folder / 'model.safetensors'}: {told}"


# --- malformed and malicious files ---


class Bomb:
    """Unpickled, it writes a file."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth", "pytorch_model.bin"])
@pytest.mark.parametrize("protocol", ["zip", "pickle"])
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(folder, name, protocol):
    file, mark = folder / name, folder / "exploded"
    content = {"blocks.0.attn.qkv.weight": torch.zeros(2), "bomb": Bomb(mark)}
    if protocol == "zip":
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(content))
    message = refused(file)
    assert not mark.exists() and message.startswith(f"{file} is refused: it holds more than tensors, and loading it")
    if protocol == "zip":
        with pytest.raises(pickle.UnpicklingError):
            torch.load(file, weights_only=True)
        torch.load(file, weights_only=False)
        assert mark.exists()  # it would have


@pytest.mark.parametrize("kind", ["object array", "pickle named npz"])
def test_an_npz_that_would_run_code_is_refused_and_runs_nothing(tmp_path, kind):
    file, mark = tmp_path / "ViT.npz", tmp_path / "exploded"
    if kind == "object array":
        np.savez(file, **{"embedding/kernel": np.array([Bomb(mark)], dtype=object)})
    else:
        file.write_bytes(pickle.dumps({"embedding/kernel": Bomb(mark)}))
    reason = {
        "object array": "is refused: it holds more than tensors, and loading it could run code ('embedding/kernel'",
        "pickle named npz": "is damaged or not a .npz file: it is not a zip archive",
    }
    assert refused(file).startswith(f"{file} {reason[kind]}") and not mark.exists()


def safetensors_bytes(header: dict, data: bytes = b"\0" * 64) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


LIES = {
    "more data than there is": safetensors_bytes(
        {"head.bias": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}
    ),
    "a shape that is not its size": safetensors_bytes(
        {"head.bias": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 64]}}
    ),
    "overlapping tensors": safetensors_bytes(
        {
            "a": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]},
            "b": {"dtype": "F32", "shape": [8], "data_offsets": [32, 64]},
        }
    ),
    "a type that there is not": safetensors_bytes({"a": {"dtype": "F33", "shape": [16], "data_offsets": [0, 64]}}),
    "a header longer than the file": struct.pack("<Q", 1 << 60) + b"{}",
    "a header that is not JSON": struct.pack("<Q", 8) + b"nonsense",
    "nothing": b"",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_safetensors_header_that_lies_is_one_clear_error(folder, lie):
    (folder / "model.safetensors").write_bytes(LIES[lie])
    assert refused(folder).startswith(f"{folder / 'model.safetensors'} is damaged or not a .safetensors file: ")


@pytest.mark.parametrize("name", ["model.safetensors", "weights.pth", "ViT.npz"])
@pytest.mark.parametrize("damage", [lambda b: b[:200], lambda b: b[:-30], lambda b: b"", lambda b: b"nonsense" * 50])
def test_a_truncated_file_is_one_clear_error(folder, name, damage):
    file, weights = folder / name, load_file(folder / "model.safetensors")
    if name == "weights.pth":
        torch.save(weights, file)
    elif name == "ViT.npz":
        np.savez(file, **{key: value.numpy() for key, value in weights.items()})
    file.write_bytes(damage(file.read_bytes()))
    assert refused(file).startswith((f"{file} is damaged or not a {file.suffix} file: ", f"{file} is refused: "))


def test_an_npz_header_that_lies_is_one_clear_error(tmp_path):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,)}".ljust(117) + "\n"
    with zipfile.ZipFile(tmp_path / "ViT.npz", "w") as archive:
        archive.writestr("embedding/kernel.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.encode())
    assert refused(tmp_path / "ViT.npz").startswith(f"{tmp_path / 'ViT.npz'} is damaged or not a .npz file: ")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["model.safetensors", "weights.pth", "pickle.pth", "ViT.npz"])
def test_bytes_at_random_never_load_in_part(folder, name, seed):
    file, weights = folder / name, load_file(folder / "model.safetensors")
    if name == "weights.pth":
        torch.save(weights, file)
    elif name == "pickle.pth":
        torch.save(weights, file, _use_new_zipfile_serialization=False)
    elif name == "ViT.npz":
        np.savez(file, **{key: value.numpy() for key, value in weights.items()})
    content, random = bytearray(file.read_bytes()), np.random.default_rng(seed)
    start = 0 if name != "ViT.npz" else len(content) - 2000  # the index of a zip file is at its end
    for place in random.integers(start, start + 600, 60):
        content[place] = random.integers(256)
    file.write_bytes(content)
    assert refused(file)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([torch.zeros(2)], "holds no weights: expected a dict of tensors, got list"),
        ({}, "holds no weights: expected a dict of tensors, got dict"),
        ({"head.weight": 3}, "is not a dict of tensors: 'head.weight' is int"),
        ({3: torch.zeros(2)}, "is not a dict of tensors: '3' is Tensor"),
        (torch.zeros(2), "holds no weights: expected a dict of tensors, got Tensor"),
        ({"norm.bias": torch.zeros(2).to_sparse()}, "has 'norm.bias' sparse or without values: save dense tensors"),
        ({"norm.bias": torch.zeros(2, device="meta")}, "has 'norm.bias' sparse or without values: save dense tensors"),
    ],
)
def test_a_file_of_something_else_is_refused(folder, content, reason):
    torch.save(content, folder / "weights.pth")
    assert refused(folder / "weights.pth") == f"{folder / 'weights.pth'} {reason}"


def test_a_file_that_git_lfs_has_not_fetched_is_told(folder):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    message = "is a Git LFS pointer, not the weights: fetch them, as by git lfs pull or hf download"
    assert refused(folder) == f"{folder / 'model.safetensors'} {message}"
    with pytest.raises(ValueError, match=message):
        bundle_module.Bundle.load(folder)


def test_a_file_that_may_not_be_read_is_not_called_missing_or_damaged(folder, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(folder / "model.safetensors"))

    monkeypatch.setattr(tensor_files, "check_fetched", refuse)
    for load in (load_weights, bundle_module.Bundle.load):
        with pytest.raises(PermissionError):
            load(folder)


@pytest.mark.parametrize(
    "prefix",
    ["module.", "model.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod.", "model._orig_mod.", "model.module."],
)
def test_a_prefix_that_all_names_share_is_no_obstacle(folder, prefix):
    expected = load_weights(folder)[0].model(reading())
    weights = {f"{prefix}{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    torch.save({"state_dict": weights}, folder / "weights.pth")
    assert torch.equal(load_weights(folder / "weights.pth")[0].model(reading()), expected)


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 9 GiB"), RuntimeError("not enough memory: you tried")]
)
def test_a_file_that_is_too_large_for_the_memory_is_not_called_damaged(folder, monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(tensor_files, "load_file", refuse)
    with pytest.raises(type(error)) as caught:
        load_weights(folder)
    assert caught.value is error


def test_a_file_of_another_kind_is_refused(folder):
    (folder / "weights.h5").write_bytes(b"x")
    assert refused(folder / "weights.h5").endswith(
        "is not a weight file: give one of .safetensors, .pt, .pth, .bin, .npz"
    )


# --- for real ---


@pytest.mark.slow
def test_deit_tiny_knows_a_pizza(real_data):
    file = real_data("weights") / "deit_tiny_patch16_224.fp16.safetensors"
    bundle, report = load_weights(file, arch="deit_tiny_patch16_224")
    assert len(report.loaded) == 152 and not report.left_out and report.imagenet
    assert sum(p.numel() for p in bundle.model.parameters()) == 5_717_416
    pizzas = sorted((real_data("pizza_steak_sushi") / "test" / "pizza").glob("*.jpg"))
    answers = list(predict(bundle, pizzas, top=5, precision="float32"))
    assert len(answers) == 25 and sum(a.classes[0] == PIZZA for a in answers) >= 21
    assert sum(PIZZA in a.classes for a in answers) >= 23
    assert isinstance(bundle.model, ViT)


@pytest.mark.parametrize(
    ("layout", "arch"),
    [(from_timm, "deit_tiny_patch16_224"), (from_torchvision, "vit_b_16")],
    ids=["timm", "torchvision"],
)
def test_an_architecture_whose_file_has_no_head_has_one_class(layout, arch):
    assert layout.from_architecture(arch, 0).model.num_classes == 1
