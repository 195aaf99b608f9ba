"""Distillation: what a teacher adds to the loss, who may teach, and what is kept of it."""

import hashlib
import io
import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from tiny import CLASSES, equal, stripes, tiny_bundle, tiny_recipe, tiny_set, weights_of

from vitreous.card import card, write_shared
from vitreous.data.images import ImageSet
from vitreous.evaluation import judge_run
from vitreous.export.checkpoints import write_timm
from vitreous.model import ViT
from vitreous.recipe import DistillOptions, read_recipe
from vitreous.train.choose import with_data
from vitreous.train.run import fit
from vitreous.train.teacher import answering, distilled, load_teacher
from vitreous.weights import Bundle

CPU = torch.device("cpu")


def stop_in_step_2(state, _):
    if state.step == 2:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def taught(tmp_path):
    """`fit` with a teacher, by default a bundle of random weights, into tmp_path/<name>; what it prints is in
    `said`."""
    tiny_bundle(seed=3).save(tmp_path / "teacher")

    def run(name="run", images=None, teacher=tmp_path / "teacher", share=0.5, on_step=None, resume=False, **changes):
        recipe = tiny_recipe(distill={"teacher": str(teacher), "share": share}, **changes)
        run.said = io.StringIO()
        options = {"console": Console(file=run.said, width=200), "pictures": False}
        return fit(recipe, images or tiny_set(), out=tmp_path / name, on_step=on_step, resume=resume, **options)

    return run


def answers_of(folder, views, size=8):
    recipe = tiny_recipe(distill={"teacher": str(folder)})
    recipe = recipe.resolve(image_size=(size, size), channels=1, num_classes=3)
    return answering(load_teacher(recipe, CLASSES), recipe, CPU, "float32", 1)(views)


def test_a_teacher_whose_classes_are_only_numbered_is_refused(tmp_path):
    numbers = ("0", "1", "2")
    write_timm(tiny_bundle(classes=numbers), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["label_names"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    recipe = tiny_recipe(distill={"teacher": str(tmp_path)}).resolve(image_size=(8, 8), channels=1, num_classes=3)
    with pytest.raises(ValueError, match=r"^teacher .* does not name its classes: give a run on this data, or another"):
        load_teacher(recipe, numbers)


def test_the_answers_are_of_the_datas_classes(tmp_path):
    bundle = tiny_bundle(seed=3, classes=("cat", "dog", "ant", "bee"))  # more than the data has, in another order
    bundle.save(tmp_path)
    views = torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        own = bundle.model(bundle.preprocess.normalise(views))
    assert torch.equal(answers_of(tmp_path, views), own[:, [2, 3, 0]])


def test_views_of_another_size_are_brought_to_the_teachers(tmp_path):
    tiny_bundle(seed=3).save(tmp_path)
    large = torch.rand(2, 1, 16, 16)
    small = F.interpolate(large, (8, 8), mode="bilinear", antialias=True, align_corners=False)
    assert torch.equal(answers_of(tmp_path, large, 16), answers_of(tmp_path, small))


def test_the_loss_is_shared_between_labels_and_answers():
    options = DistillOptions(teacher="any", share=0.25, temperature=3.0)
    logits, answers = torch.randn(2, 5, 4, dtype=torch.float64)
    p, q = (answers / 3).softmax(1), (logits / 3).softmax(1)
    by_hand = 0.75 * 2.0 + 0.25 * 9 * (p * (p / q).log()).sum(1).mean()
    assert distilled(torch.tensor(2.0), logits, answers, None, options).item() == pytest.approx(by_hand.item())
    same = distilled(torch.tensor(2.0), answers, answers, None, options)
    assert same.item() == pytest.approx(1.5)
    weights = torch.tensor([2.0, 0, 0, 1, 2])
    weighted = 0.75 * 2.0 + 0.25 * 9 * ((p * (p / q).log()).sum(1) * weights).mean()
    assert distilled(torch.tensor(2.0), logits, answers, weights, options).item() == pytest.approx(weighted.item())


def test_a_batch_in_parts_learns_the_same_from_a_teacher(taught):
    whole, parts = (taught(str(n), data={"val_fraction": 0}, optim={"accumulate": n, "clip": 0.1}) for n in (1, 3))
    first, second = weights_of(whole.folder), weights_of(parts.folder)
    assert all(torch.allclose(first[name], second[name], atol=1e-3) for name in first)
    assert whole.history[-1]["train_loss"] == pytest.approx(parts.history[-1]["train_loss"], abs=1e-4)


def test_a_student_learns_what_its_teacher_knows_and_not_the_labels(taught, tmp_path):
    longer = {"epochs": 15, "data": {"val_fraction": 0.0}, "optim": {"learning_rate": 1e-2}}
    teacher = fit(tiny_recipe(**longer), tiny_set(), out=tmp_path / "first", pictures=False)
    assert teacher.results["test"]["top1"] > 0.9
    pixels, labels = stripes(48)
    wrong = ImageSet.from_arrays(pixels, (labels + 1) % 3, test=stripes(12, seed=1), class_names=CLASSES)
    student = taught(images=wrong, teacher=teacher.folder, share=1.0, **longer)
    assert student.results["test"]["top1"] > 0.9  # of the right labels
    alone = fit(tiny_recipe(**longer), wrong, out=tmp_path / "alone", pictures=False)
    assert alone.results["test"]["top1"] < 0.1


def test_balanced_classes_count_the_same_in_what_a_teacher_adds(taught):
    pixels, labels = stripes(48)
    few = (labels > 0) | (np.arange(48) < 9)
    images = ImageSet.from_arrays(pixels[few], labels[few], class_names=CLASSES)
    each = [taught(way, images, share=1.0, data={"val_fraction": 0, "balance": way}) for way in ("none", "weights")]
    assert not equal(*(weights_of(run.folder) for run in each))


def test_the_teacher_answers_the_same_mixed_views_before_they_are_made_small(taught, monkeypatch):
    asked, trained = [], []
    original = ViT.forward

    def spy(self, images, **more):
        (trained if self.training else asked).append(images.detach().clone())
        return original(self, images, **more)

    monkeypatch.setattr(ViT, "forward", spy)
    taught(augment={"shrink": 0.5, "rotation": 20, "mixup": 1.0}, on_step=stop_in_step_2)
    view, seen = asked[0], trained[0]
    assert view.shape[2:] == (8, 8) and seen.shape[2:] == (4, 4)
    halved = F.interpolate(view, (4, 4), mode="bilinear", antialias=True, align_corners=False)
    assert torch.corrcoef(torch.stack([halved.flatten(), seen.flatten()]))[0, 1] > 0.999  # up to mean and deviation


def test_the_teacher_stays_as_it_is_and_is_recorded(taught, tmp_path):
    file = tmp_path / "teacher" / "model.safetensors"
    before = file.read_bytes()
    run = taught()
    assert file.read_bytes() == before
    digest = hashlib.sha256(before).hexdigest()
    assert run.results["teacher"] == {"weights": str(tmp_path / "teacher"), "sha256": digest}
    assert f"50% of the loss is by what {tmp_path / 'teacher'} answers to" in taught.said.getvalue()
    write_shared(run.folder, tmp_path / "shared", run.results)
    text = card(tmp_path / "shared")
    assert "trained from scratch and taught by teacher on 36 of its images.\n" in text
    assert "- distill: teacher path/to/teacher\n" in text and "distill.teacher=path/to/teacher\n" in text
    texts = [file.read_text() for file in (tmp_path / "shared").iterdir() if file.suffix != ".safetensors"]
    assert len(texts) == 6 and not any(str(tmp_path) in text for text in texts)


def test_a_run_goes_on_with_the_same_teacher_only_bit_for_bit(taught, tmp_path):
    whole = taught("whole")
    assert taught("cut", on_step=stop_in_step_2).results is None
    own = Bundle.load(tmp_path / "teacher")
    tiny_bundle(seed=4).save(tmp_path / "teacher")
    with pytest.raises(ValueError, match=r"teacher is not the teacher that .*cut had: name that one"):
        taught("cut", resume=True)
    own.save(tmp_path / "teacher")
    with pytest.raises(ValueError, match=r"^distill\.teacher None is not the teacher that .*cut had"):
        fit(tiny_recipe(), tiny_set(), out=tmp_path / "cut", resume=True, pictures=False, console=Console(quiet=True))
    assert equal(weights_of(taught("cut", resume=True).folder), weights_of(whole.folder))


def test_a_taught_run_is_ended_without_its_teacher(taught, tmp_path):
    taught("cut", epochs=2, on_step=lambda state, _: state.epoch and stop_in_step_2(state, _))
    digest = hashlib.sha256((tmp_path / "teacher" / "model.safetensors").read_bytes()).hexdigest()
    (tmp_path / "teacher").rename(tmp_path / "gone")
    recipe = read_recipe(str(tmp_path / "cut" / "recipe.yaml"))
    console = Console(quiet=True)
    run = fit(recipe, tiny_set(), out=tmp_path / "cut", finish=True, pictures=False, console=console)
    assert run.results["teacher"] == {"weights": str(tmp_path / "teacher"), "sha256": digest}


def test_held_out_images_that_the_teacher_learnt_from_are_told(taught, tmp_path, caplog):
    pixels, labels = stripes(48)
    whole = ImageSet.from_arrays(pixels, labels, class_names=CLASSES)
    first, quiet = tmp_path / "first", {"console": Console(quiet=True), "pictures": False}
    fit(tiny_recipe(epochs=1, data={"val_fraction": 0}), whole, out=first, **quiet)
    fewer = ImageSet.from_arrays(pixels[12:], labels[12:], test=(pixels[:12], labels[:12]), class_names=CLASSES)
    run = taught("same", fewer, teacher=first, epochs=1)
    told = f"images are among those that {first} learnt from, such as row"
    assert run.results["caution"].startswith(f"12 of 12 test {told}")
    assert f"9 of 9 validation {told}" in caplog.text
    shown = ImageSet.from_arrays(pixels[:12], labels[:12], class_names=CLASSES)
    caution = judge_run(run.folder, shown, device="cpu").caution
    assert caution.startswith("12 of these 12 images are among those that the model learnt from")
    caplog.clear()
    other = taught("other", fewer, teacher=first, epochs=1, model={"image_size": 16})  # whose copies have other pixels
    assert other.results["caution"] == ""
    assert "learnt from" not in caplog.text


def test_a_teacher_of_another_white_is_told(taught, tmp_path, caplog):
    bundle = tiny_bundle(seed=3)
    white = bundle.preprocess.model_copy(update={"white": 4095.0})
    replace(bundle, preprocess=white).save(tmp_path / "dim")
    taught("dark", teacher=tmp_path / "dim", epochs=1)
    assert f"{tmp_path / 'dim'} learnt with data.white=4095.0, and this run has null: to the teacher" in caplog.text
    caplog.clear()
    taught("alike", teacher=tmp_path / "dim", epochs=1, data={"white": 4095})
    taught("neither", epochs=1)
    assert "data.white" not in caplog.text


def test_those_who_cannot_teach_are_refused(taught, tmp_path):
    tiny_bundle(classes=("ant", "dog", "cat")).save(tmp_path / "other")
    tiny_bundle(channels=3).save(tmp_path / "rgb")
    with pytest.raises(
        ValueError, match=r"other does not know bee: it answers with ant, dog, cat; give a model of all"
    ):
        taught(teacher=tmp_path / "other")
    with pytest.raises(ValueError, match=r"rgb reads images of 3 channels, and these have 1: set model\.channels=3"):
        taught(teacher=tmp_path / "rgb")
    with pytest.raises(ValueError, match=r"no model 'nobody' here: "):
        taught(teacher="nobody")
    assert not (tmp_path / "run").exists()


def test_a_teacher_knows_a_class_whose_accent_is_a_character_of_its_own(tmp_path):
    tiny_bundle(classes=("ant", "bee", "cafe\u0301")).save(tmp_path)
    recipe = tiny_recipe(distill={"teacher": str(tmp_path)}).resolve(image_size=(8, 8), channels=1, num_classes=3)
    assert load_teacher(recipe, ("caf\u00e9", "ant", "bee")).columns == [2, 0, 1]


def test_a_teacher_is_found_from_any_folder(tmp_path, monkeypatch):
    tiny_bundle().save(tmp_path / "teacher")
    monkeypatch.chdir(tmp_path)
    for name, kept in (("teacher", str(tmp_path / "teacher")), ("mnist", "mnist")):
        recipe, _ = with_data(read_recipe("digits", [f"distill.teacher={name}"]), None)
        assert recipe.distill.teacher == kept
