"""Figures of a classifier, against values worked out by hand and against scikit-learn."""

import itertools
import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from scipy.stats import binomtest, sem, ttest_1samp
from scipy.stats import t as student_t

from vitreous.metrics import (
    NAMES,
    auroc,
    calibration_error,
    chance_error,
    class_figures,
    classification_metrics,
    confusion,
    figure_text,
    fit_temperature,
    gain_per_image,
    group_figures,
    reliability,
    resampled_t_p,
    share_interval,
    sign_flip_p,
    top1_interval,
    top_k,
    wilson,
)

ANSWERS = [0, 0, 1, 1, 2, 2, 0]
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2])


def logits_of(answers, classes=3, peak=2.0):
    return peak * torch.nn.functional.one_hot(torch.tensor(answers), classes).float()


def test_figures_are_those_worked_out_by_hand():
    figures = classification_metrics(logits_of(ANSWERS), LABELS)
    # class 0: 2 of 3 answers right, 2 of 3 found; class 1: 1 of 2, 1 of 2; class 2: 1 of 2, 1 of 2
    assert figures["top1"] == pytest.approx(4 / 7)
    assert figures["precision_macro"] == pytest.approx((2 / 3 + 1 / 2 + 1 / 2) / 3)
    assert figures["recall_macro"] == pytest.approx((2 / 3 + 1 / 2 + 1 / 2) / 3)
    assert figures["f1_macro"] == pytest.approx((2 / 3 + 1 / 2 + 1 / 2) / 3)
    assert figures["precision_micro"] == figures["recall_micro"] == figures["f1_micro"] == pytest.approx(4 / 7)
    hit, miss = -np.log(np.e**2 / (np.e**2 + 2)), -np.log(1 / (np.e**2 + 2))
    assert figures["loss"] == pytest.approx((4 * hit + 3 * miss) / 7, rel=1e-6)
    assert figures["count"] == 7 and figures["top5"] is None


def test_precision_and_recall_are_not_confused():
    figures = classification_metrics(logits_of([0, 0, 0, 1], 2), torch.tensor([0, 1, 1, 1]))
    assert figures["precision_macro"] == pytest.approx((1 / 3 + 1) / 2)
    assert figures["recall_macro"] == pytest.approx((1 + 1 / 3) / 2)
    figures = classification_metrics(logits_of([0, 0, 0, 0], 2), torch.tensor([0, 1, 1, 1]))
    assert figures["precision_macro"] == pytest.approx(1 / 8)  # a class never answered counts as 0
    assert figures["recall_macro"] == pytest.approx(1 / 2)


def test_classes_that_occur_nowhere_are_left_out_of_macro_figures():
    figures = classification_metrics(logits_of([0, 1], 10), torch.tensor([0, 1]))
    assert figures["precision_macro"] == figures["recall_macro"] == figures["f1_macro"] == 1.0


@pytest.mark.parametrize("classes", [2, 5, 6, 40])
def test_figures_equal_scikit_learn(classes):
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (200,), generator=generator)
    logits = torch.randn(200, classes, generator=generator) + 2 * torch.nn.functional.one_hot(labels, classes)
    figures, answers = classification_metrics(logits, labels), logits.argmax(1)
    assert figures["top1"] == pytest.approx(sklearn.metrics.accuracy_score(labels, answers))
    for average in ("macro", "micro"):
        for name in ("precision", "recall", "f1"):
            expected = getattr(sklearn.metrics, f"{name}_score")(labels, answers, average=average, zero_division=0)
            assert figures[f"{name}_{average}"] == pytest.approx(expected)
    shares = logits.double().softmax(1)
    shares /= shares.sum(1, keepdim=True)
    expected = sklearn.metrics.log_loss(labels, shares, labels=range(classes))
    assert figures["loss"] == pytest.approx(expected, rel=1e-5)
    assert (figures["top5"] is None) == (classes <= 5)
    if classes > 5:
        expected = sklearn.metrics.top_k_accuracy_score(labels, logits, k=5, labels=range(classes))
        assert figures["top5"] == pytest.approx(expected)
    np.testing.assert_array_equal(
        confusion(logits, labels), sklearn.metrics.confusion_matrix(labels, answers, labels=range(classes))
    )
    assert all(type(value) in (float, int, type(None)) for value in figures.values())


def test_top_k_counts_labels_among_the_k_largest():
    logits = torch.tensor([[4.0, 3, 2, 1], [4, 3, 2, 1], [1, 2, 3, 4]])
    labels = torch.tensor([1, 3, 0])
    assert [top_k(logits, labels, k) for k in (1, 2, 3, 4)] == [0, pytest.approx(1 / 3), pytest.approx(1 / 3), 1]


def test_confusion_has_true_classes_as_rows():
    counts = confusion(logits_of([1, 1, 0], 4), torch.tensor([0, 0, 3]))
    assert counts.tolist() == [[0, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]


# --- intervals ---


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [  # Newcombe 1998, table I, method 3, and the two ends
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
    ],
)
def test_wilson_intervals_are_the_published_ones(hits, count, low, high):
    assert wilson(hits, count) == pytest.approx((low, high), abs=5e-5)
    mirrored = wilson(count - hits, count)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=5e-5)


@pytest.mark.parametrize(("hits", "count"), [(0, 0), (-1, 5), (6, 5)])
def test_an_interval_of_impossible_counts_is_refused(hits, count):
    with pytest.raises(ValueError, match=f"^{hits} hits of {count}: "):
        wilson(hits, count)


def test_the_interval_of_a_split_is_that_of_its_hits():
    figures = classification_metrics(logits_of(ANSWERS), LABELS)
    assert top1_interval(figures) == wilson(4, 7)


def test_images_of_one_group_have_an_interval():
    for count in range(1, 400):
        low, high = top1_interval({"top1": 1.0, "count": count, "effective_count": 1})
        assert (low, high) == pytest.approx(wilson(1, 1))


@pytest.mark.parametrize("classes", [2, 5])
def test_the_area_under_the_curve_is_scikit_learns(classes):
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (200,), generator=generator)
    logits = torch.randn(200, classes, generator=generator) + torch.nn.functional.one_hot(labels, classes)
    shares = logits.double().softmax(dim=1)
    scores = shares[:, 1] if classes == 2 else shares
    expected = sklearn.metrics.roc_auc_score(labels, scores, multi_class="ovr")
    assert 0.6 < expected < 0.9 and classification_metrics(logits, labels, 1.5)["auroc"] == pytest.approx(expected)


def test_the_area_under_the_curve_is_of_the_classes_that_have_images():
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 3.0], [1.5, 0.0, 0.0]])
    assert auroc(logits.softmax(dim=1), torch.tensor([0, 1, 0])) == 1
    assert auroc(logits.softmax(dim=1), torch.tensor([1, 1, 1])) is None


# --- images that come in groups ---


def grouped(generator, groups=30, images=8):
    """Answers that are right or wrong by their group, mostly: right (N,), groups (N,)."""
    share = generator.beta(1.4, 0.6, groups)  # 0.7 in the mean
    right = generator.random((groups, images)) < share[:, None]
    return right.ravel(), np.repeat(np.arange(groups), images)


def test_intervals_by_groups_hold_the_true_share_as_often_as_they_say():
    generator, held = np.random.default_rng(0), {"groups": 0, "images": 0}
    for _ in range(400):
        right, groups = grouped(generator)
        figures = {"top1": right.mean(), "count": len(right)}
        for name, more in {"groups": group_figures(right, groups), "images": {}}.items():
            low, high = top1_interval(figures | more)
            held[name] += low <= 0.7 <= high
    assert 0.93 <= held["groups"] / 400 <= 0.98 and held["images"] / 400 < 0.85


def test_copies_in_a_group_tell_nothing_new():
    right, groups = np.random.default_rng(0).random(40) < 0.6, np.arange(40) % 10
    once = group_figures(right, groups)
    assert once["groups"] == 10 and 5 < once["effective_count"] < 40
    assert group_figures(np.repeat(right, 7), np.repeat(groups, 7)) == pytest.approx(once)


def test_the_interval_of_a_share_is_that_of_as_many_images_as_tell_something():
    right = np.random.default_rng(0).random(40) < 0.6
    assert share_interval(right) == pytest.approx(wilson(right.sum(), 40))
    low, high = share_interval(np.repeat(right, 7), np.repeat(np.arange(40), 7))
    assert (low, high) == pytest.approx(wilson(right.sum(), 40), abs=0.01)
    assert share_interval(np.ones(9, bool), np.arange(9) // 3) == pytest.approx(wilson(3, 3))


def test_images_that_are_each_a_group_are_independent():
    right = np.random.default_rng(0).random(2000) < 0.8
    assert group_figures(right, np.arange(2000))["effective_count"] == pytest.approx(2000, rel=0.005)


@pytest.mark.parametrize(
    ("right", "groups", "effective"),
    [
        ([1, 1, 1, 1, 1, 1], "aabbcc", 3),  # nothing tells how alike those of a group are
        ([1, 0, 1, 1], "aaaa", 1),
        ([1, 1, 1, 0, 0, 0, 1, 0, 1], "aaabbbccc", 1),  # 20/81 over 3/2 x 378/81**2 is 2.9, for three groups 0.6
        ([1, 0, 1, 0], "aabb", 4 * (1.959964 / 12.706205) ** 2),  # groups that are alike, but only two
        ([1, 0, 0, 1, 0, 0], "aaabbb", 6 * (1.959964 / 12.706205) ** 2),  # alike, and a third is no binary fraction
        # 13 of 20; groups of which both are right, one is or none: five, three, two
        ([1, 1] * 5 + [1, 0] * 3 + [0, 0] * 2, "aabbccddeeffgghhiijj", 0.2275 * 400 / (6.1 * 10 / 9) * 0.750673),
    ],
)
def test_the_effective_sample_size_is_the_one_worked_out_by_hand(right, groups, effective):
    figures = group_figures(np.array(right, bool), np.array(list(groups)))
    wrong = len({group for hit, group in zip(right, groups, strict=True) if not hit})
    expected = {"groups": len(set(groups)), "wrong_groups": wrong}
    assert figures == expected | {"effective_count": pytest.approx(max(effective, 1), rel=1e-5)}


def test_none_and_all_leave_an_interval_that_ends_there_exactly():
    assert all(wilson(0, n)[0] == 0 and wilson(n, n)[1] == 1 for n in range(1, 1001))


@pytest.mark.parametrize("counts", [(0, 0), (3, 0), (8, 2), (40, 61), (700, 500)])
def test_of_single_images_the_sign_test_is_mcnemars(counts):
    gained, lost = counts
    totals = np.array([1] * gained + [-1] * lost + [0] * 5)
    expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1
    assert sign_flip_p(totals) == pytest.approx(expected)


def test_the_interval_of_a_gain_is_students_over_groups():
    totals, sizes = np.array([3, -1, 2, 0]), np.array([4, 4, 4, 4])
    low, high = gain_per_image(totals, sizes)
    of_a_mean = student_t.interval(0.95, 3, loc=(totals / 4).mean(), scale=sem(totals / 4))
    assert (low, high) == pytest.approx(of_a_mean)
    assert gain_per_image(np.array([1, 2, 4]), np.array([2, 4, 8])) is None  # each half an image per image
    assert gain_per_image(np.array([2]), np.array([3])) is None
    assert gain_per_image(np.array([3, 0]), np.array([3, 3])) == (-1, 1)


def test_folds_that_share_training_images_raise_p():
    gains = np.array([0.02, 0.01, 0.03, -0.01, 0.02])
    independent = resampled_t_p(gains, 0)
    assert independent == pytest.approx(ttest_1samp(gains, 0).pvalue)
    assert resampled_t_p(gains, 1 / 4) == pytest.approx(2 * student_t.sf(ttest_1samp(gains, 0).statistic / 1.5, 4))
    assert resampled_t_p(np.full(5, 0.1), 1 / 4) is None  # 1.5 is the root of 5 (1/5 + 1/4)


def test_of_groups_the_sign_test_counts_every_choice_of_signs():
    totals = np.array([5, 3, 3, -2, 1, 0, 7, -4])
    sums = [abs(np.dot(totals, signs)) for signs in itertools.product((1, -1), repeat=len(totals))]
    assert sign_flip_p(totals) == np.mean(np.array(sums) >= totals.sum())


def test_figures_have_names_and_are_read_as_people_read_them():
    assert set(NAMES) < set(classification_metrics(logits_of(ANSWERS), LABELS, groups=np.arange(7)))
    assert [figure_text(name, 0.98765) for name in ("top1", "loss", "temperature")] == ["98.77%", "0.9877", "0.988"]
    assert figure_text("count", 12345) == "12,345" and figure_text("top5", None) == ""


# --- calibration ---


def sure(shares):
    """Logits (N, 2) whose first class has these probabilities."""
    shares = torch.tensor(shares, dtype=torch.float64)
    return torch.stack([shares.log(), (1 - shares).log()], dim=1)


def test_calibration_error_is_the_one_worked_out_by_hand():
    # in bins of a fifteenth: (0.6, 0.667], two answers, 0.62 sure on average, one right; and (0.867, 0.933], three, all
    # right, 0.9 sure: (2 * |0.62 - 0.5| + 3 * |0.9 - 1|) / 5
    logits, labels = sure([0.61, 0.63, 0.9, 0.89, 0.91]), torch.tensor([0, 1, 0, 0, 0])
    bins = reliability(logits, labels)
    assert bins.count.tolist() == [0] * 9 + [2] + [0] * 3 + [3, 0]
    assert bins.confidence[[9, 13]] == pytest.approx([0.62, 0.9]) and bins.accuracy[[9, 13]] == pytest.approx([0.5, 1])
    assert calibration_error(bins) == pytest.approx((2 * 0.12 + 3 * 0.1) / 5)
    assert classification_metrics(logits.float(), labels)["ece"] == pytest.approx(0.108, abs=1e-6)


def test_a_bin_holds_its_upper_end():
    bins = reliability(sure([0.6, 0.8, 1 - 1e-12]), torch.tensor([0, 0, 0]))
    assert np.flatnonzero(bins.count).tolist() == [8, 11, 14]  # of 15, from 0


def test_a_model_that_is_right_as_often_as_it_says_has_no_error():
    logits, labels = sure([0.75] * 8), torch.tensor([0] * 6 + [1] * 2)
    assert calibration_error(reliability(logits, labels)) == pytest.approx(0, abs=1e-12)
    assert calibration_error(reliability(logits, 1 - labels)) == pytest.approx(0.5)


def drawn(count, seed, sharper=1.0):
    """Logits (count, 4) of a model that is `sharper` than it should be, and labels drawn as it should say."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, 4, generator=generator)
    return sharper * logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


def test_chance_errors_are_those_of_a_calibrated_model():
    """Of 100 calibrated models about five lie above the 95th percentile; of overconfident ones nearly all."""
    calibrated, sharp = [], []
    for seed in range(100):
        for found, sharper in ((calibrated, 1.0), (sharp, 2.0)):
            logits, labels = drawn(300, seed, sharper)
            found.append((calibration_error(reliability(logits, labels)), *chance_error(logits)))
    assert 1 <= sum(error > high for error, _, high in calibrated) <= 10
    assert np.mean([error for error, *_ in calibrated]) == pytest.approx(
        np.mean([mean for _, mean, _ in calibrated]), rel=0.05
    )
    assert sum(error > high for error, _, high in sharp) > 95


def test_chance_errors_of_images_in_groups_are_those_of_a_calibrated_model():
    """60 groups of 10 images that are alike: taken one by one, nearly all calibrated models lie above."""
    above = {"groups": 0, "images": 0}
    for seed in range(40):
        logits, labels = (part.repeat_interleave(10, dim=0) for part in drawn(60, seed))
        right = (logits.argmax(dim=1) == labels).numpy()
        worth = group_figures(right, np.arange(600) // 10)["effective_count"]
        error = calibration_error(reliability(logits, labels))
        above["groups"] += error > chance_error(logits, worth)[1]
        above["images"] += error > chance_error(logits)[1]
    assert above["groups"] <= 5 and above["images"] > 30


def test_chance_errors_grow_as_images_get_fewer():
    errors = [chance_error(drawn(count, 0)[0]) for count in (20, 80, 320, 1280)]
    for (mean, high), (less, lower) in itertools.pairwise(errors):
        assert high > mean > 1.4 * less and high > 1.4 * lower  # about halved by four times the images


@pytest.mark.parametrize(("right", "count", "margin"), [(60, 80, 5.0), (90, 100, 1.0), (55, 100, 2.0)])
def test_the_temperature_makes_the_model_as_sure_as_it_is_right(right, count, margin):
    """Where all answers have one margin, the least loss is where their probability is their share of hits."""
    logits = torch.tensor([[margin, 0.0]]).repeat(count, 1)
    labels = torch.tensor([0] * right + [1] * (count - right))
    share = right / count
    temperature = fit_temperature(logits, labels)
    assert temperature == pytest.approx(margin / math.log(share / (1 - share)), rel=1e-5)
    assert (logits / temperature).softmax(1)[0, 0].item() == pytest.approx(share, rel=1e-5)
    figures = classification_metrics(logits, labels, temperature)
    assert figures["ece"] == pytest.approx(0, abs=1e-5) and figures["temperature"] == temperature
    assert figures["ece_unscaled"] == pytest.approx(abs(1 / (1 + math.exp(-margin)) - share), abs=1e-6)


def test_the_temperature_is_where_the_loss_is_least():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 7, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    temperature = fit_temperature(3 * logits, labels)
    assert temperature == pytest.approx(3, rel=0.15)

    def loss(t):
        return torch.nn.functional.cross_entropy(3 * logits.double() / t, labels).item()

    assert loss(temperature) < min(loss(0.99 * temperature), loss(1.01 * temperature), loss(1), loss(3))


def test_the_temperature_changes_no_answer():
    logits, labels = torch.randn(200, 5, generator=torch.Generator().manual_seed(1)), torch.arange(200) % 5
    plain, scaled = classification_metrics(logits, labels), classification_metrics(logits, labels, 2.5)
    assert plain["ece"] == plain["ece_unscaled"] == scaled["ece_unscaled"] != scaled["ece"]
    changed = {name for name in plain if plain[name] != scaled[name]}
    assert changed == {"ece", "temperature"}


def test_without_a_mistake_there_is_nothing_to_fit():
    assert fit_temperature(logits_of([0, 1, 2]), torch.tensor([0, 1, 2])) == 1


def test_too_few_images_fit_nothing():
    logits = torch.tensor([[1.0, 0.0]])
    for count, fitted in ((20, False), (30, True)):  # 90% right, 73% sure: 2 * N * 0.088 is 3.5 and 5.3, of 3.84 needed
        labels = torch.tensor(([0] * 9 + [1]) * (count // 10))
        assert (fit_temperature(logits.repeat(count, 1), labels) != 1) == fitted


def test_images_of_a_few_groups_fit_nothing():
    """A hundred images fit a temperature, unless all that they say is what ten patients say ten times."""
    logits, labels = torch.tensor([[1.0, 0.0]]).repeat(100, 1), torch.tensor(([0] * 9 + [1]) * 10)
    assert fit_temperature(logits, labels, np.arange(100)) != 1
    assert fit_temperature(logits, labels, np.arange(100) % 10) == 1


def test_a_model_that_knows_nothing_is_made_unsure():
    logits, labels = torch.randn(300, 4, generator=torch.Generator().manual_seed(2)), torch.arange(300) % 4
    assert 3 < fit_temperature(10 * logits, labels) <= 20


def test_figures_of_a_class_are_its_own_and_none_where_they_are_of_nothing():
    found = class_figures(np.array([[3, 1, 0, 0], [0, 4, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]]))
    assert found == [
        (4, 5, 3, 3 / 4, 3 / 5, 6 / 9),
        (4, 5, 4, 1, 4 / 5, 8 / 9),
        (2, 0, 0, 0, None, 0),
        (0, 0, 0, *[None] * 3),
    ]
