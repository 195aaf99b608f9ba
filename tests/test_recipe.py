"""Recipes: strict, told in one line what is wrong with them, filled in by the data, and read back as they were."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from tiny import tiny_recipe

from vitreous.model.summary import summarise
from vitreous.recipe import (
    Recipe,
    check_not_idle,
    headline,
    json_schema,
    keys,
    read_recipe,
    recipe_file,
    recipe_names,
    settings,
)
from vitreous.recipe.idle import SWITCHES
from vitreous.recipe.schema import OTHERS_NAMES, key_called


@pytest.fixture
def written(tmp_path):
    """A recipe file x.yaml of the given text."""

    def write(text):
        (tmp_path / "x.yaml").write_text(text)
        return str(tmp_path / "x.yaml")

    return write


def refused(name, *overrides):
    """The message of a refused recipe, which must be one line."""
    with pytest.raises(ValueError) as caught:
        read_recipe(name, list(overrides))
    assert type(caught.value) is ValueError
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(name), Path(name).name) if Path(name).is_file() else message


# --- shipped recipes ---


def test_there_are_recipes():
    assert {"digits", "mnist", "photos", "small-images"} <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_fit_data_of_their_kind(name):
    recipe = read_recipe(name)
    sides = {"digits": (8, 1), "mnist": (28, 1)}.get(name, (32, 3))
    resolved = recipe.resolve(image_size=(sides[0],) * 2, channels=sides[1], num_classes=10)
    assert resolved.model.num_classes == 10 and resolved.model.channels == sides[1]
    assert resolved.optim == recipe.optim and resolved.augment == recipe.augment


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_say_what_they_cost_and_reach(name):
    lines = recipe_file(name).read_text().splitlines()
    header = "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))])
    assert "vitreous train" in header and "measured" in header.lower()
    assert headline(name).endswith(".") and not headline(name).startswith("#")


@pytest.mark.parametrize(
    ("name", "classes", "tokens"), [("cifar10", 10, 256), ("cifar100", 100, 256), ("cifar10-94", 10, 64)]
)
def test_the_models_for_a_gpu_have_the_size_that_their_headers_say(name, classes, tokens):
    model = read_recipe(name).resolve(image_size=(32, 32), channels=3, num_classes=classes).model
    parameters = summarise(model).parameters
    assert parameters <= 3_800_000 and f"{parameters:,} parameters" in headline(name) and model.tokens == tokens


# --- errors ---


def test_what_other_programs_call_a_setting_is_a_setting_of_ours_by_another_name():
    known = [each.key for each in settings()]
    assert set(OTHERS_NAMES.values()) <= set(known)
    assert not OTHERS_NAMES.keys() & {key.rpartition(".")[2] for key in known}
    assert (key_called("lr"), key_called("fold"), key_called("x")) == ("optim.learning_rate", "data.fold", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optim: {leraning_rate: 1}", "unknown key 'optim.leraning_rate'; did you mean 'optim.learning_rate'?"),
        ("epoch: 3", "unknown key 'epoch'; did you mean 'epochs'?"),
        ("opitm: {learning_rate: 1}", "unknown key 'opitm'; did you mean 'optim'?"),
        ("lr: 1", "unknown key 'lr'; did you mean 'optim.learning_rate'?"),
        ("warmup_epochs: 5", "unknown key 'warmup_epochs'; did you mean 'optim.warmup'?"),
        ("optim: {wd: 0.1}", "unknown key 'optim.wd'; did you mean 'optim.weight_decay'?"),
        ("learning_rate: 1", "unknown key 'learning_rate'; did you mean 'optim.learning_rate'?"),
        ("model: {learning_rate: 3}", "unknown key 'model.learning_rate'; did you mean 'optim.learning_rate'?"),
        ("augment: {val_fraction: 3}", "unknown key 'augment.val_fraction'; did you mean 'data.val_fraction'?"),
        (
            "qqq: 3",
            "unknown key 'qqq'; known keys: epochs, time_limit, seed, precision, compile, patience, best_by, track",
        ),
        ("epochs: 0", "epochs is 0: input should be greater than 0"),
        ("seed: -1", "seed is -1: input should be greater than or equal to 0"),
        ("optim: {batch_size: many}", "optim.batch_size is 'many': input should be a valid integer, unable to parse"),
        ("optim: {schedule: step}", "optim.schedule is 'step': input should be 'cosine', 'linear', 'onecycle' or"),
        ("optim: {learning_rate: .nan}", "optim.learning_rate is nan: input should be a finite number"),
        ("optim: {accumulate: 3, batch_size: 2}", "accumulate 3 is larger than batch_size 2"),
        ("optim: 3", "optim is 3: write its keys below it, or leave it out"),
        ("track: [pigeon]", "track is 'pigeon': input should be 'tensorboard' or 'wandb'"),
        ("model: {dim: 10, heads: 3}", "dim 10 is not divisible by heads 3"),
        ("model: {image_size: 30}", "image size 30 is not divisible by patch size 16: use 16 or 32"),
        ("model: {patch_size: x}", "model.patch_size is 'x': input should be a valid integer"),
        ("model: {size: Q/16}", "unknown model size 'Q/16': use one of Ti, S, B"),
        ("model: {size: true}", "unknown model size 'True': use one of Ti, S, B"),
        (
            "augment: {alternate_flip: true}",
            "alternate_flip needs flip, which is 0: set alternate_flip=false, or fl",
        ),
        ("optim: {qqq: 3}", "unknown key 'optim.qqq'; known keys: name, learning_rate, weight_decay, "),
        ("compile: max-autotune", "compile is 'max-autotune': input should be True, False, 'auto' or "),
        ("opitm: {qqq: 3}", "unknown key 'opitm'; did you mean 'optim'?"),
        ("seed: 99999999999999999999", "seed is 99999999999999999999: input should be less than"),
    ],
)
def test_a_fault_in_a_file_is_told_in_one_line_that_names_it(written, text, message):
    assert refused(written(text)).startswith(f"x.yaml: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "x.yaml is not a recipe: expected keys and values, found list"),
        ("3", "x.yaml is not a recipe: expected keys and values, found int"),
        ("1: 2", "x.yaml: 1 is 1: keys should be strings"),
        ("a: [1", "x.yaml is not valid YAML: while parsing a flow sequence"),
        ("a: b: c", "x.yaml is not valid YAML: mapping values are not allowed here"),
        ("[" * 5_000, "x.yaml is not valid YAML: maximum recursion depth exceeded"),
        ("optim: &a {betas: *a}", "x.yaml is not valid YAML: maximum recursion depth exceeded"),
        ("epochs: " + "9" * 5_000, "x.yaml is not valid YAML: Exceeds the limit"),
        ("epochs: 1\nepochs: 7", "x.yaml is not valid YAML: 'epochs' twice in the section from line 1: keep one"),
        (
            "epochs: 1\noptim:\n  clip: 1\n  ema: 0.9\n  clip: 2",
            "x.yaml is not valid YAML: 'clip' twice in the section from line 3: keep one",
        ),
        ("optim:\n  # clip: 1", "x.yaml: optim is None: write its keys below it, or leave it out"),
        ("optim.clip: 1", "x.yaml: unknown key 'optim.clip': in a file write clip below optim:"),
        ("false", "x.yaml is not a recipe: expected keys and values, found bool"),
    ],
)
def test_a_file_that_is_no_recipe_is_told_in_one_line(written, text, message):
    assert refused(written(text)).startswith(message)


def test_a_binary_file_is_no_recipe(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=rf"^{tmp_path / 'x.yaml'} is not valid YAML"):
        read_recipe(tmp_path / "x.yaml")


def test_a_path_is_read_and_overrides_are_a_list(written):
    file = written("epochs: 3")
    assert read_recipe(Path(file)) == read_recipe(str(file)) and read_recipe(Path(file), ("epochs=4",)).epochs == 4
    with pytest.raises(TypeError, match=r"^overrides is the text 'epochs=4': give a list, \['epochs=4'\]$"):
        read_recipe(file, "epochs=4")


def test_an_unknown_name_is_told_the_nearest_one():
    assert refused("digts") == f"no recipe 'digts': did you mean 'digits'? use {', '.join(recipe_names())} or a file"
    assert refused("/nowhere/x.yaml").startswith("no recipe '/nowhere/x.yaml': use ")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.leraning_rate=3", "unknown key 'optim.leraning_rate'; did you mean 'optim.learning_rate'?"),
        ("opitm.learning_rate=3", "unknown key 'opitm.learning_rate'; did you mean 'optim.learning_rate'?"),
        ("model.sise=S/16", "unknown key 'model.sise'; did you mean 'model.size'?"),
        ("model.size=Q/3", "unknown model size 'Q/3': use one of "),
        ("batch_size=3", "unknown key 'batch_size'; did you mean 'optim.batch_size'?"),
        ("optim=3", "optim is a section: set one of its keys, such as optim.name"),
        ("epochs", "'epochs' is not key=value: write, for example, epochs=10"),
        ("=3", "'=3' is not key=value"),
        ("epochs=[1", "epochs: '[1' is not a valid value"),
        ("epochs=abc", "command line: epochs is 'abc': input should be a valid integer"),
        ("optim.betas=[0.9]", "command line: optim.betas is [0.9]: one number is missing"),
        ("model.image_size=[8, 0]", "command line: model.image_size is 0: input should be greater than 0"),
        ("augment.crop_scale=0.5", "command line: augment.crop_scale is 0.5: write a list in brackets, as in [1,2]"),
        ("epochs=", "epochs= lacks its value: write one, such as epochs=30"),
        ("optim.name= ", "optim.name= lacks its value: write one, such as optim.name=adamw"),
        ("model.image_size=[8]", "command line: model.image_size is [8]: one number is missing"),
        ("model.patch_size=[2, 2, 2]", "command line: model.patch_size is [2, 2, 2]: tuple should have at most 2"),
        ("model.patch_size=.inf", "command line: model.patch_size is inf: "),
        ("epochs=1e2", "command line: epochs is '1e2': write 100"),
        ("epochs=true", "command line: epochs is true, but it takes a value, not true or false"),
        ("time_limit=1:30", "command line: time_limit '1:30' is not a duration: write it as 90s, 10m or 1h30m"),
        ("data.crop_fraction=0.5", "command line: data.crop_fraction 0.5 is for random crops: set augment.crop_scale"),
        (
            "data.oversize=2",
            "command line: data.oversize 2 is for random crops: set augment.crop_scale, or data.oversize=1",
        ),
    ],
)
def test_a_fault_in_an_override_is_told_in_one_line(written, override, message):
    assert refused(written("epochs: 2"), override).startswith(message)


def test_a_fault_in_the_file_is_the_files_even_with_overrides(written):
    assert refused(written("epochs: 0"), "seed=3").startswith("x.yaml: epochs is 0")


# --- overrides ---


@pytest.mark.parametrize(
    ("override", "find", "value"),
    [
        ("epochs=7", lambda r: r.epochs, 7),
        ("optim.learning_rate=1e-3", lambda r: r.optim.learning_rate, 0.001),
        ("optim.learning_rate=2", lambda r: r.optim.learning_rate, 2.0),
        ("optim.clip=null", lambda r: r.optim.clip, None),
        ("optim.betas=[0.8, 0.95]", lambda r: r.optim.betas, (0.8, 0.95)),
        ("track=wandb", lambda r: r.track, ("wandb",)),
        ("track=[tensorboard]", lambda r: r.track, ("tensorboard",)),
        ("data.skip_broken=true", lambda r: r.data.skip_broken, True),
        ("data.source=/a=b/c", lambda r: r.data.source, "/a=b/c"),
        ("model.image_size=[32, 64]", lambda r: r.model.image_size, (32, 64)),
        ("augment.crop_scale=[0.25, 1]", lambda r: r.augment.crop_scale, (0.25, 1.0)),
        ("patience=5", lambda r: r.patience, 5),
        ("seed=010", lambda r: r.seed, 10),
        ("seed=-0", lambda r: r.seed, 0),
        ("data.source=010", lambda r: r.data.source, "010"),
        ("data.group=[^_]+", lambda r: r.data.group, "[^_]+"),
        ("data.group='[^_]+'", lambda r: r.data.group, "[^_]+"),
        ("data.group= [^_]+ ", lambda r: r.data.group, "[^_]+"),
        ("data.group=null", lambda r: r.data.group, None),
        ("distill.teacher=2024-05-01", lambda r: r.distill.teacher, "2024-05-01"),
        ("distill.teacher=runs/my run #2", lambda r: r.distill.teacher, "runs/my run #2"),
        ("compile=false", lambda r: r.compile, False),
        ("compile=true", lambda r: r.compile, True),
        ("compile=reduce-overhead", lambda r: r.compile, "reduce-overhead"),
    ],
)
def test_an_override_is_read_as_yaml_and_typed(written, override, find, value):
    found = find(read_recipe(written("epochs: 2\noptim: {clip: 2.0}"), [override]))
    assert found == value and type(found) is type(value)


def test_cuda_graphs_and_parts_of_a_batch_exclude_each_other(written):
    text = "compile: reduce-overhead\noptim: {accumulate: 2}"
    reason = "compile=reduce-overhead computes a batch at once, and optim.accumulate is 2: use compile=true"
    assert refused(written(text)) == f"x.yaml: {reason}"


def test_scientific_notation_is_a_number_in_a_file_too(written):
    assert read_recipe(written("optim: {learning_rate: 1e-3}")).optim.learning_rate == 0.001


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("epochs: yes", "epochs is 'yes': input should be a valid integer"),
        ("optim: {clip: true}", "optim.clip is true, but it takes a value, not true or false"),
        ("time_limit: 1:30", "time_limit '1:30' is not a duration: write it as 90s, 10m or 1h30m"),
    ],
)
def test_what_yaml_would_turn_into_a_number_is_refused_in_a_file_too(written, text, reason):
    recipe = read_recipe(written("seed: 010\ndistill: {teacher: 2024-05-01}"))
    assert recipe.seed == 10 and recipe.distill.teacher == "2024-05-01"
    assert refused(written(text)).startswith(f"x.yaml: {reason}")


def test_later_overrides_win_and_others_stay(written):
    recipe = read_recipe(written("epochs: 2\nseed: 5\noptim: {ema: 0.5}"), ["epochs=3", "epochs=4", "optim.clip=3"])
    assert (recipe.epochs, recipe.seed, recipe.optim.ema, recipe.optim.clip) == (4, 5, 0.5, 3.0)


def test_a_size_on_the_command_line_overrides_the_dimensions_of_the_file(written):
    file = written("model: {patch_size: 4, dim: 64, depth: 2, heads: 2, mlp_ratio: 2.0, pool: mean}")
    model = read_recipe(file, ["model.size=S/16"]).model
    assert (model.dim, model.depth, model.heads, model.mlp_ratio) == (384, 12, 6, 4.0)
    assert model.patch_size == (16, 16) and model.pool == "mean"
    model = read_recipe(file, ["model.size=S", "model.depth=3"]).model
    assert (model.dim, model.depth, model.patch_size) == (384, 3, (4, 4))


def test_explicit_dimensions_override_the_size_beside_them(written):
    model = read_recipe(written("model: {size: S/16, dim: 64, heads: 2}")).model
    assert (model.dim, model.heads, model.depth, model.patch_size) == (64, 2, 12, (16, 16))


def test_every_key_can_be_overridden(written):
    file, fields = written("epochs: 2"), Recipe().model_dump(mode="json")
    for key in set(keys()) - {"model.size"}:
        section, _, name = key.rpartition(".")
        value = (fields[section] if section else fields)[name]
        recipe = read_recipe(file, [f"{key}={json.dumps(value)}"])
        assert name in (getattr(recipe, section) if section else recipe).model_fields_set, key
    assert {"epochs", "optim.betas", "data.workers", "augment.mixup", "model.registers"} <= set(keys())


# --- data ---


def test_every_setting_is_told_with_its_default_and_meaning(written):
    told = settings()
    assert [setting.key for setting in told] == keys() and len(told) == len(set(keys()))
    assert [setting.key for setting in told if len(setting.meaning) < 15] == []
    again = read_recipe(written("epochs: 2"), [f"{setting.key}={setting.default}" for setting in told])
    assert again.model_dump() == Recipe().model_dump()
    choices = {setting.key: setting.choices for setting in told}
    assert choices["optim.schedule"] == ("cosine", "linear", "onecycle", "constant")
    assert choices["compile"] == ("true", "false", "auto", "reduce-overhead") and choices["epochs"] == ()
    assert choices["model.size"][:2] == ("Ti", "S")
    assert choices["track"] == ("tensorboard", "wandb")


@pytest.mark.parametrize("name", recipe_names())
def test_an_editor_finds_nothing_wrong_with_a_recipe_or_a_dump(name):
    jsonschema.validate(yaml.safe_load(recipe_file(name).read_text()), json_schema())
    jsonschema.validate(yaml.safe_load(read_recipe(name).dump()), json_schema())


@pytest.mark.parametrize(
    "text", ["time_limit: 90", "track: wandb", "model: {size: B/16, image_size: 32}", "track: [wandb]"]
)
def test_an_editor_takes_every_way_to_write_a_value(text, written):
    read_recipe(written(text))
    jsonschema.validate(yaml.safe_load(text), json_schema())


@pytest.mark.parametrize(
    "text", ["optim: {leraning_rate: 1}", "epochs: 0", "model: {size: B16}", "model: {size: X}", "track: [mlflow]"]
)
def test_an_editor_marks_mistakes(text, written):
    refused(written(text))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), json_schema())


def test_resolve_fills_in_what_the_data_decides():
    model = tiny_recipe().resolve(image_size=(8, 12), channels=1, num_classes=7).model
    assert (model.image_size, model.channels, model.num_classes) == ((8, 12), 1, 7)


def test_resolve_leaves_alone_what_the_recipe_gives():
    recipe = tiny_recipe(model={"image_size": 32, "channels": 3, "num_classes": 7}, seed=4)
    resolved = recipe.resolve(image_size=(8, 12), channels=1, num_classes=7)
    assert (resolved.model.image_size, resolved.model.channels, resolved.model.num_classes) == ((32, 32), 3, 7)
    assert resolved.seed == 4 and resolved.optim == recipe.optim


def test_resolve_refuses_another_number_of_classes():
    with pytest.raises(
        ValueError, match=r"^model.num_classes is 9 but the data has 7 classes: set it to 7, or leave it out$"
    ):
        tiny_recipe(model={"num_classes": 9}).resolve(image_size=(8, 8), channels=1, num_classes=7)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.patch_size=0", "model.patch_size is 0: input should be greater than 0"),
        ("model.depth=1000000000", "model.depth is 1000000000: input should be less than or equal to 1024"),
        ("model.num_classes=99999999999999999999", "input should be less than or equal to 16777216"),
        ("model.mlp_ratio=1e308", "model.mlp_ratio is '1e308': input should be less than or equal to 1024"),
        ("data.memory_budget=1e308", "data.memory_budget is '1e308': input should be less than or equal to 1048576"),
    ],
)
def test_a_number_beyond_all_bounds_is_told_by_its_own_name(override, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_recipe("digits", [override])


def test_resolve_refuses_a_patch_size_that_does_not_fit():
    with pytest.raises(ValueError, match=r"^recipe: image size 10 is not divisible by patch size 4: use 8 or 12$"):
        tiny_recipe().resolve(image_size=(10, 8), channels=1, num_classes=3)


def test_resolving_twice_changes_nothing():
    data = {"image_size": (8, 8), "channels": 1, "num_classes": 3}
    once = tiny_recipe().resolve(**data)
    assert once.resolve(**data) == once


# --- round trip ---


@pytest.mark.parametrize("name", recipe_names())
def test_a_dumped_recipe_is_read_back_equal(name, written):
    resolved = read_recipe(name).resolve(image_size=(32, 32), channels=3, num_classes=10)
    again = read_recipe(written(resolved.dump()))
    assert again == resolved and again.model == resolved.model
    assert read_recipe(written(again.dump())) == resolved


def test_a_dump_of_a_resolved_recipe_names_every_key():
    def flat(fields, prefix=""):
        for key, value in fields.items():
            yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]

    resolved = Recipe().resolve(image_size=(32, 32), channels=3, num_classes=10)
    assert {*flat(yaml.safe_load(resolved.dump())), "model.size"} == set(keys())


def test_what_a_recipe_leaves_open_is_open_when_its_dump_is_read_back(written):
    recipe = Recipe(seed=5, model={"size": "nano/4"}, data={"folds": 2}, start={"weights": "hf:someone/model"})
    again = read_recipe(written(recipe.dump()))
    assert again == recipe
    for one in (again, read_recipe(recipe, ["epochs=3"])):
        assert one.model.model_fields_set == recipe.model.model_fields_set
        assert one.data.model_fields_set == {"folds"}
        assert one.resolve(image_size=(8, 8), channels=1, num_classes=3).model.num_classes == 3


# --- other settings ---


def test_a_recipe_is_read_with_other_settings_on_top():
    recipe = tiny_recipe(epochs=4)
    changed = read_recipe(recipe, ["optim.learning_rate=0.5", "model.depth=3"])
    assert (changed.optim.learning_rate, changed.model.depth, changed.epochs) == (0.5, 3, 4)
    assert recipe.model.depth != 3 and read_recipe(recipe) == recipe
    for bad, said in {"optim.lr=1": "unknown key 'optim.lr'", "epochs=-3": "epochs is -3"}.items():
        with pytest.raises(ValueError, match=said):
            read_recipe(recipe, [bad])


def test_an_option_that_there_is_not_cannot_be_set():
    with pytest.raises(ValueError, match=r"^unknown key 'data.val_fracton'; did you mean 'data.val_fraction'\?$"):
        Recipe().with_options("data", val_fracton=0.5)


def test_a_recipe_does_not_change():
    with pytest.raises(ValueError, match="frozen"):
        Recipe().epochs = 3


# --- values that touch each other ---


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("1h30m", 5400), ("1h1m1s", 3661)]
)
def test_a_time_limit_is_a_number_of_seconds_or_has_units(text, seconds):
    assert read_recipe("digits", [f"time_limit={text}"]).time_limit == seconds


@pytest.mark.parametrize("text", ["10 minutes", "m", "10m5h", "1h30", "10m30", "-5", "0", "''"])
def test_another_length_of_time_is_refused(text):
    with pytest.raises(ValueError, match=r"is not a duration|time_limit is"):
        read_recipe("digits", [f"time_limit={text}"])


@pytest.mark.parametrize(
    ("name", "override", "why"),
    [
        ("plain", "optim.muon_patches=true", "optim.muon_patches does nothing here, as optim.name is adamw"),
        (
            "digits",
            "augment.mix_until=0.8",
            "augment.mix_until does nothing here, as augment.mixup is 0.0 and augment.cutmix is 0.0",
        ),
    ],
)
def test_an_override_that_would_do_nothing_is_told_why(name, override, why):
    with pytest.raises(ValueError, match=rf"^{re.escape(why)}: leave it out, or change that$"):
        check_not_idle(read_recipe(name, [override]), [override])


def test_how_images_are_cut_comes_with_weights():
    overrides = ["data.crop_fraction=1", "augment.crop_scale=[0.5,1]"]
    check_not_idle(read_recipe("photos", overrides), overrides)
    overrides.append("start.weights=runs/photos")
    with pytest.raises(ValueError, match=r"^data\.crop_fraction does nothing here, as start\.weights bring their own"):
        check_not_idle(read_recipe("photos", overrides), overrides)


def test_a_batch_of_one_has_nothing_to_mix_with():
    overrides = ["optim.batch_size=1", "augment.cutmix=1.0"]
    with pytest.raises(ValueError, match=r"^augment\.cutmix does nothing here, as optim\.batch_size is 1: "):
        check_not_idle(read_recipe("plain", overrides), overrides)


ON = {  # of each switch a value at which what belongs to it does something
    "optim.name": "muon",
    "optim.schedule": "cosine",
    "model.positions": "learned",
    "model.patch_embedding": "conv_stem",
    "augment.crop_scale": "[0.5, 1]",
    "augment.randaugment_ops": "2",
    "augment.shrink": "0.5",
    "start.probe": "false",
    "distill.teacher": "mnist",
    "augment.mixup": "0.2",
    "augment.cutmix": "0.2",
    "optim.batch_size": "2",
}


@pytest.mark.parametrize(
    ("switches", "off", "setting"),
    [(switches, off, setting) for switches, values, idle in SWITCHES for off in values for setting in idle],
    ids=lambda value: str(value[0] if isinstance(value, tuple) else value),
)
def test_an_override_that_would_do_nothing_is_refused(switches, off, setting):
    default = {each.key: each.default for each in settings()}[setting]
    overrides = ["model.patch_size=2", *(f"{key}={json.dumps(off)}" for key in switches), f"{setting}={default}"]
    value = off if isinstance(off, str) else json.dumps(off)
    said = f"{setting} does nothing here, as {switches[0]} is {value}"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}(:| and )"):
        check_not_idle(read_recipe("plain", overrides), overrides)
    for key in switches:  # one of them is enough
        more = [*overrides, f"{key}={ON[key]}"]
        check_not_idle(read_recipe("plain", more), more)


def test_what_is_idle_in_the_recipe_itself_is_not_refused():
    overrides = ["optim.name=adamw"]
    recipe = read_recipe("mnist", overrides)
    assert recipe.optim.muon_learning_rate != Recipe().optim.muon_learning_rate
    check_not_idle(recipe, overrides)


def test_nothing_that_can_be_idle_is_forgotten():
    assert {key for *_, idle in SWITCHES for key in idle} == {
        *(f"optim.muon_{name}" for name in ("learning_rate", "weight_decay", "momentum", "split_qkv", "patches")),
        *("optim.warmup", "optim.final_rate", "optim.batch_size", "model.position_tokens", "start.whiten"),
        *("distill.share", "distill.temperature", "augment.crop_ratio", "augment.randaugment_magnitude"),
        *("augment.randaugment_sd", "augment.shrink_until", "augment.mixup", "augment.cutmix"),
        *("augment.mix_probability", "augment.mix_until"),
    }


def test_all_that_can_be_idle_exists():
    assert {key for switches, _, settings in SWITCHES for key in (*switches, *settings)} <= set(keys())
