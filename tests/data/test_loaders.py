"""Decoding once, and batches that are the same wherever the pixels live."""

import errno
import itertools
import multiprocessing
import os
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from image_samples import hub_images, pixels, preprocess_of, to_image, write_folder, write_parquet

from vitreous.data import loaders, parquet
from vitreous.data.images import ImageSet, Split
from vitreous.data.loaders import Batches, cache_folder, decode
from vitreous.data.sources import load
from vitreous.data.stores import ArrayImages, BrokenImage, FileImages


def fails(*args, **kwargs):
    raise AssertionError("this must not be called")


@pytest.mark.parametrize(("workers", "budget"), [(0, 1 << 30), (0, 0), (2, 0)])
def test_arrays_of_the_models_size_are_cropped_like_others_and_only_once(workers, budget):
    split = ImageSet.from_arrays(pixels(6), [0, 1] * 3).train
    preprocess = preprocess_of(crop_fraction=0.5)
    expected = np.stack([preprocess.fit_array(image) for image in split.images.array])
    assert (expected != split.images.array).any()
    batches = Batches(split, preprocess, batch_size=4, memory_budget=budget, workers=workers)
    found = torch.cat([batch.images for batch in batches.epoch(torch.arange(6))])
    np.testing.assert_array_equal(found, expected)


def test_arrays_that_fit_are_used_as_they_are(cache):
    split = ImageSet.from_arrays(pixels(4), [0, 1, 0, 1]).train
    assert decode(split, preprocess_of(), cache=cache) is split and not cache.exists()


@pytest.mark.parametrize("cached", [True, False])
def test_files_are_decoded_in_order(tmp_path, cache, cached):
    expected = write_folder(tmp_path / "x", {"a": 150, "b": 151})
    calls = []
    split = load(tmp_path / "x").train.take(np.array([300, 4, 7]))
    decoded = decode(split, preprocess_of(), cache=cache if cached else None, progress=lambda *c: calls.append(c))
    np.testing.assert_array_equal(decoded.images.array, expected[[300, 4, 7]])
    assert decoded.labels.tolist() == [1, 0, 0] and decoded.images.describe(0).endswith("b/150.png")
    assert calls[-1] == ((301, 301) if cached else (3, 3)) and calls == sorted(calls)


def test_decoded_images_are_kept_and_shared_by_all_splits_of_a_storage(tmp_path, cache, monkeypatch):
    expected = write_folder(tmp_path / "x", {"a": 20, "b": 20})
    image_set = load(tmp_path / "x").with_validation(0.2)
    train = decode(image_set.train, preprocess_of(), cache=cache)
    assert isinstance(train.images.pixels, np.memmap) and len(list(cache.glob("*.npy"))) == 1
    monkeypatch.setattr(FileImages, "_fit", fails)
    val = decode(image_set.val, preprocess_of(), cache=cache)
    again = decode(load(tmp_path / "x").with_validation(0.2, seed=5).val, preprocess_of(), cache=cache)
    np.testing.assert_array_equal(val.images.array, expected[image_set.val.images.rows])
    assert len(again) == 8 and not list(cache.glob("*.unfinished"))


def test_other_settings_or_other_files_are_decoded_anew(tmp_path, cache, monkeypatch):
    write_folder(tmp_path / "x", {"a": 2, "b": 2})

    def count(**settings):
        decode(load(tmp_path / "x").train, preprocess_of(**settings), cache=cache)
        return len(list(cache.glob("*.npy")))

    assert count() == count() == 1
    assert count(size=4) == 2 and count(channels=1) == 3
    assert count(fit="squash") == 4 and count(interpolation="nearest") == 5 and count(crop_fraction=0.5) == 6
    assert count(white=4095) == 7
    changed = pixels(1, seed=9)[0]
    to_image(changed).save(tmp_path / "x" / "a" / "001.png")
    assert count() == 8
    monkeypatch.setattr(loaders, "FITTING", loaders.FITTING + 1)  # images are fitted in another way
    assert count() == 9
    newest = decode(load(tmp_path / "x").train, preprocess_of(), cache=cache)
    np.testing.assert_array_equal(newest.images.array[1], changed)


@pytest.mark.parametrize(("seconds", "workers"), [(1.0, 4), (1e-6, 1)])  # a part: tiny images gain nothing by threads
@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_several_threads_decode_as_one_does(tmp_path, monkeypatch, kind, seconds, workers):
    expected = write_folder(tmp_path / "x", {"a": 200, "b": 200})
    if kind == "parquet":
        write_parquet(tmp_path / "x.parquet", {"image": hub_images(expected), "label": [0, 1] * 200})
        monkeypatch.setattr(parquet, "HELD_BYTES", 0)  # no part of the file is kept for another thread
    ticks, asked, pool = itertools.count(), [], loaders.ThreadPoolExecutor
    monkeypatch.setattr(loaders.time, "perf_counter", lambda: seconds * next(ticks))
    monkeypatch.setattr(loaders, "cores", lambda: 4)
    monkeypatch.setattr(loaders, "ThreadPoolExecutor", lambda count: asked.append(count) or pool(count))
    found = decode(load(tmp_path / f"x{'.parquet' * (kind == 'parquet')}").train, preprocess_of())
    np.testing.assert_array_equal(found.images.array, expected)
    assert asked == [workers]


def test_an_interrupted_decoding_leaves_nothing(tmp_path, cache):
    write_folder(tmp_path / "x", {"a": 200, "b": 200})

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(load(tmp_path / "x").train, preprocess_of(), cache=cache, progress=stop)
    assert list(cache.iterdir()) == []


def test_the_cache_folder_can_be_chosen(cache, monkeypatch):
    assert cache_folder() == cache
    monkeypatch.delenv("VITREOUS_CACHE")
    assert cache_folder().parts[-2:] == (".cache", "vitreous")
    monkeypatch.setenv("VITREOUS_CACHE", "~/decoded")
    assert cache_folder() == Path.home() / "decoded"
    monkeypatch.setenv("VITREOUS_CACHE", ".")
    assert cache_folder() == Path()


def test_without_a_home_folder_nothing_is_kept(monkeypatch):
    monkeypatch.delenv("VITREOUS_CACHE", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache_folder() is None


def break_some(folder):
    (folder / "a" / "001.png").write_bytes(b"no image")
    (folder / "b" / "000.png").write_bytes((folder / "b" / "000.png").read_bytes()[:60])


@pytest.mark.parametrize("cached", [True, False])
def test_broken_files_are_named_and_never_replaced(tmp_path, cache, cached):
    write_folder(tmp_path / "x", {"a": 3, "b": 3})
    break_some(tmp_path / "x")
    message = r"a/001\.png: not a JPEG, PNG.* \(and 1 more of 6 images\): repair or remove it, or skip it: "
    for _ in range(2):  # also when the cache remembers
        with pytest.raises(BrokenImage, match=message):
            decode(load(tmp_path / "x").train, preprocess_of(), cache=cache if cached else None)


@pytest.mark.parametrize("way", ["cached", "in memory", "batch by batch"])
def test_broken_files_can_be_left_out_with_their_labels(tmp_path, cache, caplog, monkeypatch, way):
    expected = write_folder(tmp_path / "x", {"a": 3, "b": 3})
    break_some(tmp_path / "x")
    if way == "batch by batch":
        monkeypatch.setattr(loaders, "IN_MEMORY", 0)
    split = load(tmp_path / "x").train
    for _ in range(2):
        caplog.clear()
        kept = decode(split, preprocess_of(), cache=cache if way == "cached" else None, skip_broken=True)
        assert kept.labels.tolist() == [0, 0, 1, 1] and kept.images.describe(1).endswith("a/002.png")
        np.testing.assert_array_equal(kept.images.read(np.arange(4), preprocess_of()), expected[[0, 2, 4, 5]])
        assert caplog.text.count("cannot read") == 2 and "a/001.png" in caplog.text and "b/000.png" in caplog.text
        assert "left out 2 of 6 images" in caplog.text
    batches = Batches(split, preprocess_of(), batch_size=2, skip_broken=True)
    assert batches.labels.tolist() == [0, 0, 1, 1] and len(batches) == 4


def test_a_lack_of_memory_is_not_the_files_fault(tmp_path, cache, monkeypatch):
    write_folder(tmp_path / "x", {"a": 3, "b": 3})

    def lacks(*_):
        raise MemoryError

    monkeypatch.setattr(FileImages, "_fit", lacks)
    split = load(tmp_path / "x").train
    with pytest.raises(MemoryError):
        decode(split, preprocess_of(), cache=cache, skip_broken=True)
    with pytest.raises(MemoryError):
        split.images.at_own_size(0)


def test_a_fault_that_has_passed_is_not_remembered(tmp_path, cache, monkeypatch):
    expected = write_folder(tmp_path / "x", {"a": 3, "b": 3})
    with monkeypatch.context() as patch:
        patch.setattr(FileImages, "_fit", fails)
        with pytest.raises(BrokenImage, match="none of 6 images"):
            decode(load(tmp_path / "x").train, preprocess_of(), cache=cache, skip_broken=True)
    decoded = decode(load(tmp_path / "x").train, preprocess_of(), cache=cache)
    np.testing.assert_array_equal(decoded.images.array, expected)


def test_a_set_without_any_good_image_is_refused(tmp_path):
    write_folder(tmp_path, {"a": 1, "b": 1})
    for file in tmp_path.glob("*/*.png"):
        file.write_bytes(b"")
    with pytest.raises(BrokenImage, match="none of 2 images can be read"):
        decode(load(tmp_path).train, preprocess_of(), skip_broken=True)


def test_a_full_disk_is_gone_around(tmp_path, cache, caplog, monkeypatch):
    expected = write_folder(tmp_path / "x", {"a": 3, "b": 3})
    usage = namedtuple("usage", "free")(100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    split = load(tmp_path / "x").train
    in_memory = decode(split, preprocess_of(), cache=cache)
    np.testing.assert_array_equal(in_memory.images.array, expected)
    monkeypatch.setattr(loaders, "IN_MEMORY", 100)
    as_needed = decode(split, preprocess_of(), cache=cache)
    assert isinstance(as_needed.images, FileImages)
    np.testing.assert_array_equal(as_needed.images.read(np.arange(6), preprocess_of()), expected)
    decode(split, preprocess_of(size=256), cache=cache)
    assert "has no room for 1.2 MB of decoded images" in caplog.text
    assert list(cache.glob("*.npy")) == []


def sets(tmp_path):
    """The same 11 images in each kind of storage."""
    arrays, labels = pixels(11), np.arange(11) % 2
    np.save(tmp_path / "x.npy", arrays)
    write_parquet(tmp_path / "x.parquet", {"image": hub_images(arrays), "label": labels}, row_group_size=3)
    for row, array in enumerate(arrays):
        to_image(array).save(tmp_path / f"{row}.png")
    mapped = ArrayImages(np.load(tmp_path / "x.npy", mmap_mode="r"))
    return {
        "array": ImageSet.from_arrays(arrays, labels).train,
        "memory map": Split(mapped, labels),
        "files": Split(FileImages([tmp_path / f"{row}.png" for row in range(11)]), labels),
        "parquet": load(tmp_path / "x.parquet").train,
        "dataset": ImageSet.from_dataset(list(zip(arrays, labels.tolist(), strict=True))).train,
    }


@pytest.mark.parametrize("kind", ["array", "memory map", "files", "parquet", "dataset"])
@pytest.mark.parametrize(("budget", "workers"), [(1 << 20, 0), (0, 0), (0, 2)])
@pytest.mark.parametrize("decoded", [True, False])
def test_batches_are_the_same_wherever_the_pixels_live(tmp_path, monkeypatch, kind, budget, workers, decoded):
    if not decoded:
        monkeypatch.setattr(loaders, "IN_MEMORY", 0)
        monkeypatch.setattr(loaders, "_cache_file", lambda *args: None)
    split = sets(tmp_path)[kind]
    batches = Batches(split, preprocess_of(), batch_size=4, memory_budget=budget, workers=workers)
    assert batches.resident == (budget > 0) and len(batches) == 11
    order = torch.tensor([3, 3, 10, 0, 7, 1, 2, 9, 4, 8])
    found = list(batches.epoch(order))
    assert [len(batch.labels) for batch in found] == [4, 4, 2]
    for batch, rows in zip(found, order.split(4), strict=True):
        assert torch.equal(batch.labels, rows % 2)
        assert batch.images.dtype == torch.uint8 and batch.labels.dtype == torch.int64
        np.testing.assert_array_equal(batch.images.numpy(), pixels(11)[rows.numpy()])


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to"), ValueError, r"^3\.1 GB of images do not fit "),
        (RuntimeError("no kernel"), RuntimeError, "^no kernel$"),
    ],
)
def test_images_that_the_device_has_no_room_for_are_told_with_the_ways_out(monkeypatch, error, kind, message):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(loaders, "_bytes", lambda *_: 3_100_000_000)
    monkeypatch.setattr(torch, "empty", full)
    split = ImageSet.from_arrays(pixels(4), [0, 1, 0, 1]).train
    with pytest.raises(kind, match=message) as caught:
        Batches(split, preprocess_of(), batch_size=2)
    ways_out = "memory of cpu: to train, lower data.memory_budget; else use --device cpu"
    assert (ways_out in str(caught.value)) is (kind is ValueError)


def test_resident_batches_are_copies():
    batches = Batches(ImageSet.from_arrays(pixels(4), [0, 1, 0, 1]).train, preprocess_of(), batch_size=4)
    next(batches.epoch(torch.arange(4))).images.zero_()
    np.testing.assert_array_equal(next(batches.epoch(torch.arange(4))).images.numpy(), pixels(4))


@pytest.mark.parametrize(("budget", "workers"), [(1 << 20, 0), (0, 0), (0, 1)])
def test_an_epoch_leaves_the_global_random_state_alone(budget, workers):
    split = ImageSet.from_arrays(pixels(4), [0, 1, 0, 1]).train
    batches = Batches(split, preprocess_of(), batch_size=2, memory_budget=budget, workers=workers)
    before = torch.get_rng_state()
    list(batches.epoch(torch.arange(4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_do_not_hear_what_a_whole_job_is_told():
    split = ImageSet.from_arrays(pixels(40), np.arange(40) % 2).train
    batches = Batches(split, preprocess_of(), batch_size=2, memory_budget=0, workers=2)
    epoch = batches.epoch(torch.arange(40))
    next(epoch), next(epoch)  # the workers take turns: now both have begun
    groups = {os.getpgid(child.pid) for child in multiprocessing.active_children()}
    assert len(groups) == 2 and os.getpgrp() not in groups


def test_workers_are_forks_however_this_python_starts_others(monkeypatch):
    """From 3.14 on it starts them anew, and a script without `if __name__ == "__main__"` ends there."""
    monkeypatch.setattr(
        multiprocessing.context._default_context, "_actual_context", multiprocessing.get_context("spawn")
    )
    split = ImageSet.from_arrays(pixels(4), [0, 1, 0, 1]).train
    epoch = Batches(split, preprocess_of(), batch_size=2, memory_budget=0, workers=1).epoch(torch.arange(4))
    next(epoch)
    (worker,) = multiprocessing.active_children()
    assert type(worker) is multiprocessing.get_context("fork").Process


def test_two_machines_with_one_cache_decode_into_files_of_their_own(tmp_path, cache, monkeypatch):
    """Processes of one number, as containers have them: the second begins while the first is at it."""
    expected = write_folder(tmp_path / "x", {"a": 4, "b": 4})
    split, decoded = load(tmp_path / "x").train, []
    decode_all = loaders._decode_all

    def meanwhile(*args):
        if not decoded:
            decoded.append(None)
            decoded.append(decode(split, preprocess_of(), cache=cache).images.array)
        return decode_all(*args)

    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(loaders, "_decode_all", meanwhile)
    for array in (decode(split, preprocess_of(), cache=cache).images.array, decoded[1]):
        np.testing.assert_array_equal(array, expected)


def test_a_decoding_that_is_cut_short_leaves_no_notes_beside_the_pixels_of_before(tmp_path, cache, monkeypatch):
    """A fault that is gone has the set decoded anew; cut short at the last moment, the next time decodes it again."""
    expected, fit = write_folder(tmp_path / "x", {"a": 4, "b": 4}), FileImages._fit

    def faulty(self, row, preprocess):
        if row == 0:
            raise PermissionError(errno.EACCES, "Permission denied")
        return fit(self, row, preprocess)

    def killed(self, target):
        if target.suffix == ".npy":
            raise KeyboardInterrupt
        return replace(self, target)

    replace = Path.replace
    with monkeypatch.context() as patch:
        patch.setattr(FileImages, "_fit", faulty)
        assert len(decode(load(tmp_path / "x").train, preprocess_of(), cache=cache, skip_broken=True)) == 7
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", killed)
        decode(load(tmp_path / "x").train, preprocess_of(), cache=cache)
    decoded = decode(load(tmp_path / "x").train, preprocess_of(), cache=cache)
    np.testing.assert_array_equal(decoded.images.array, expected)


def test_a_disk_without_room_is_told_before_it_is_written_to(tmp_path, cache, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_folder(tmp_path / "x", {"a": 4, "b": 4})
    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(loaders, "_decode_all", fails)
    with pytest.raises(OSError, match="No space left on device: make room there, or name another folder as VITR"):
        decode(load(tmp_path / "x").train, preprocess_of(), cache=cache)
    assert not list(cache.glob("*.unfinished"))


def test_stopping_early_leaves_no_workers():
    split = ImageSet.from_arrays(pixels(40), np.arange(40) % 2).train
    batches = Batches(split, preprocess_of(), batch_size=2, memory_budget=0, workers=2)
    for _ in batches.epoch(torch.arange(40)):
        assert len(multiprocessing.active_children()) == 2
        break
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_breaks_later_is_named_in_one_line(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(loaders, "IN_MEMORY", 0)
    monkeypatch.setattr(loaders, "_cache_file", lambda *args: None)
    write_folder(tmp_path, {"a": 3, "b": 3})
    batches = Batches(load(tmp_path).train, preprocess_of(), batch_size=2, memory_budget=0, workers=workers)
    (tmp_path / "b" / "001.png").write_bytes(b"gone")
    with pytest.raises(BrokenImage, match=r"b/001\.png: not a JPEG, PNG.*: repair it; or begin again") as caught:
        list(batches.epoch(torch.arange(6)))
    assert "\n" not in str(caught.value)
    with pytest.raises(BrokenImage, match=r"b/001\.png: not a JPEG, PNG.*: repair it; or begin again"):
        Batches(load(tmp_path).train, preprocess_of(), batch_size=2)


def test_rows_and_sizes_out_of_range_are_refused():
    split = ImageSet.from_arrays(pixels(4), [0, 1, 0, 1]).train
    batches = Batches(split, preprocess_of(), batch_size=2)
    with pytest.raises(ValueError, match=r"rows 0\.\.4 are not within 0\.\.3"):
        batches.epoch(torch.arange(5))
    assert list(batches.epoch(torch.arange(0))) == []
    with pytest.raises(ValueError, match="batch size 0"):
        Batches(split, preprocess_of(), batch_size=0)


@pytest.mark.parametrize("budget", [1 << 20, 0])
def test_measured_statistics_are_those_of_the_fitted_pixels(budget, monkeypatch):
    monkeypatch.setattr(loaders, "COPIED", 7 * 3 * 8 * 8)  # so that they are read in several parts
    split = ImageSet.from_arrays(pixels(40), np.arange(40) % 2).train
    batches = Batches(split, preprocess_of(fit="squash"), batch_size=2, memory_budget=budget)
    measured = batches.measured()
    np.testing.assert_allclose(measured.mean, (pixels(40) / 255).mean((0, 2, 3)), atol=1e-12)
    seen = torch.cat([batch.images for batch in batches.epoch(torch.arange(40))])
    np.testing.assert_array_equal(seen, pixels(40))
    assert measured.fit == "squash" and measured.image_size == (8, 8)
    monkeypatch.setattr(loaders, "MEASURED", 10 * 3 * 8 * 8)
    sample = pixels(40)[np.linspace(0, 39, 10).astype(int)]
    np.testing.assert_allclose(batches.measured().mean, (sample / 255).mean((0, 2, 3)), atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize(("budget", "workers"), [(1 << 20, 0), (0, 2)])
def test_batches_on_a_gpu_equal_those_on_the_host(budget, workers):
    split = ImageSet.from_arrays(pixels(11), np.arange(11) % 2).train
    order = torch.randperm(11)
    here = list(Batches(split, preprocess_of(), batch_size=4).epoch(order))
    there = Batches(split, preprocess_of(), batch_size=4, device="cuda", memory_budget=budget, workers=workers)
    for expected, batch in zip(here, there.epoch(order), strict=True):
        assert batch.images.is_cuda and batch.labels.is_cuda
        assert torch.equal(batch.images.cpu(), expected.images) and torch.equal(batch.labels.cpu(), expected.labels)


def test_real_cifar10_is_decoded_once(real_data, cache, monkeypatch):
    test = load(real_data("cifar10")).test
    decoded = decode(test, preprocess_of(3, 32), cache=cache)
    assert decoded.images.array.shape == (10_000, 3, 32, 32)
    np.testing.assert_allclose(decoded.images.array.mean((0, 2, 3)) / 255, (0.4942, 0.4851, 0.4504), atol=2e-4)
    monkeypatch.setattr(type(test.images), "_fit", fails)
    again = decode(test, preprocess_of(3, 32), cache=cache)
    np.testing.assert_array_equal(again.images.array[::999], decoded.images.array[::999])


@pytest.mark.parametrize("damage", [lambda b: b[:200], lambda b: b"", lambda b: b"no array"])
def test_a_damaged_file_of_the_cache_is_made_anew(tmp_path, cache, damage):
    expected = write_folder(tmp_path / "x", {"a": 3, "b": 3})
    split = load(tmp_path / "x").train
    decode(split, preprocess_of(), cache=cache)
    (file,) = cache.glob("*.npy")
    content = file.read_bytes()
    file.unlink()  # not written over, as it may still be mapped
    file.write_bytes(damage(content))
    np.testing.assert_array_equal(decode(split, preprocess_of(), cache=cache).images.array, expected)
    assert file.read_bytes() == content


def test_a_cache_that_cannot_be_made_is_gone_without(tmp_path, caplog):
    expected = write_folder(tmp_path / "x", {"a": 3, "b": 3})
    (tmp_path / "file").write_text("")
    decoded = decode(load(tmp_path / "x").train, preprocess_of(), cache=tmp_path / "file" / "cache")
    np.testing.assert_array_equal(decoded.images.array, expected)
    assert "decoded images are not kept" in caplog.text


def test_a_cache_that_cannot_be_written_to_is_gone_without(tmp_path, cache, caplog, monkeypatch):
    expected = write_folder(tmp_path / "x", {"a": 3, "b": 3})
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (cache, os.W_OK))  # root may write anywhere
    decoded = decode(load(tmp_path / "x").train, preprocess_of(), cache=cache)
    np.testing.assert_array_equal(decoded.images.array, expected)
    assert f"decoded images are not kept: {cache} cannot be written to" in caplog.text and not list(cache.iterdir())


def test_what_a_killed_process_has_left_is_taken_away_after_a_day(cache, tmp_path):
    write_folder(tmp_path / "x", {"a": 2, "b": 2})
    decode(load(tmp_path / "x").train, preprocess_of(), cache=cache)
    (file,) = cache.glob("*.npy")
    old, new = (file.with_name(f"{file.stem}.{name}.unfinished") for name in ("old", "new"))
    for left in (old, new):
        left.write_bytes(b"half")
    os.utime(old, (0, 0))
    file.unlink()
    decode(load(tmp_path / "x").train, preprocess_of(), cache=cache)
    assert file.exists() and not old.exists() and new.exists()


def test_what_a_killed_process_has_left_is_taken_away_before_room_is_looked_for(cache, tmp_path, monkeypatch):
    write_folder(tmp_path / "x", {"a": 2, "b": 2})
    left = cache / "of-other-images.unfinished"
    cache.mkdir()
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0 if left.exists() else 1e9))
    decode(load(tmp_path / "x").train, preprocess_of(), cache=cache)
    assert not left.exists() and len(list(cache.glob("*.npy"))) == 1


def test_images_in_memory_are_decoded_once_though_nothing_else_keeps_them(tmp_path, caplog, monkeypatch):
    """Between what is decoded at once and the memory budget, without a cache."""
    expected = write_folder(tmp_path / "x", {"a": 3, "b": 3})
    monkeypatch.setattr(loaders, "IN_MEMORY", 100)
    monkeypatch.setattr(loaders, "cache_folder", lambda: None)
    split = load(tmp_path / "x").train.take(np.array([4, 0, 5]))
    batches = Batches(split, preprocess_of(), batch_size=2)
    assert batches.resident and isinstance(batches.images, ArrayImages) and caplog.text == ""
    np.testing.assert_array_equal(batches.images.array, expected[[4, 0, 5]])
    assert batches.images.describe(0) == split.images.describe(0)
    Batches(split, preprocess_of(), batch_size=2, memory_budget=100)
    assert "decoded images are not kept: each pass decodes them anew" in caplog.text
