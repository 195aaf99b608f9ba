"""A model behind HTTP: the answers of `predict`, for a program and on a page; refusals that say why; one at a time."""

import io
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from tiny import stripes, tiny_bundle

from vitreous import extras, serve
from vitreous.explain import explain
from vitreous.prediction import predict
from vitreous.serve import MOST, Service, listen

CLASSES = ("ant", "<bee> & co", "cat")


def encoded(count):
    """Images as the bytes of PNG files."""
    files = []
    for pixels in stripes(count)[0]:
        file = io.BytesIO()
        Image.fromarray(pixels[0]).save(file, "PNG")
        files.append(file.getvalue())
    return files


@pytest.fixture
def bundle():
    return tiny_bundle(classes=CLASSES)


@pytest.fixture
def client(bundle):
    return TestClient(Service(bundle, name="stripes & more", device="cpu").app)


@pytest.mark.parametrize("top", [1, 2, 5])
def test_a_program_gets_what_predict_answers(client, bundle, top):
    seen = set()
    for image in encoded(4):
        (expected,) = predict(bundle, image, top=top, device="cpu")
        answer = client.post(f"/predict?top={top}", content=image)
        assert answer.status_code == 200 and answer.json().keys() == {"classes", "probabilities"}
        assert tuple(answer.json()["classes"]) == expected.classes and len(expected.classes) == min(top, 3)
        assert answer.json()["probabilities"] == pytest.approx(expected.probabilities)
        seen.add(expected.probabilities)
    assert len(seen) == 4
    assert len(client.post("/predict", content=image).json()["classes"]) == 3


def test_a_program_learns_what_it_asks(client, bundle):
    parameters = sum(weight.numel() for weight in bundle.model.parameters())
    about = {"name": "stripes & more", "class_names": list(CLASSES), "channels": 1, "image_size": [8, 8]}
    assert client.get("/model").json() == about | {"parameters": parameters}


def test_the_page_shows_each_answer_with_its_evidence(client, bundle):
    images = encoded(3)
    files = [("images", (f"<{i}>.png", image)) for i, image in enumerate(images)]
    page = client.post("/", files=[*files, ("images", ("<x>.txt", b"no image"))])
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    text, before = page.text, 0
    for i, found in enumerate(explain(bundle, images, device="cpu")):
        shares = ["&lt;bee&gt; &amp; co" if name == CLASSES[1] else name for name in found.classes]
        bars = [f"{name} {p:.1%}<div" for name, p in zip(shares, found.probabilities, strict=True)]
        places = [text.index(part, before) for part in [f'alt="&lt;{i}&gt;.png"', "what speaks for", *bars]]
        assert places == sorted(places)
        before = places[-1]
    assert text.count("data:image/png") == 6 and "by integrated gradients" in text
    assert "&lt;x&gt;.txt: no picture of a kind that Pillow knows" in text
    assert "<bee>" not in text and "<0>" not in text and "<script" not in text


def test_the_page_alone_has_the_form_and_no_answers(client):
    text = client.get("/").text
    assert "<h1>stripes &amp; more</h1>" in text and 'enctype="multipart/form-data"' in text
    assert 'id="answers"' not in text and "data:image" not in text
    assert "@photo.jpg http://testserver/predict" in text
    assert 'id="answers"' not in client.post("/", data={"images": "text"}, files={"other": b"x"}).text


@pytest.mark.parametrize(
    ("path", "content", "status", "said"),
    [
        ("/predict", b"no image", 400, "the image: no picture of a kind that Pillow knows"),
        ("/predict", b"", 400, "the image: no picture of a kind that Pillow knows"),
        ("/predict?top=0", b"", 400, "top is '0': give a number from 1"),
        ("/predict?top=two", b"", 400, "top is 'two': give a number from 1"),
        ("/predict", iter([b"parts"]), 411, "the request does not say its length: send Content-Length"),
        ("/", iter([b"parts"]), 411, "the request does not say its length: send Content-Length"),
        ("/predict", b"x" * 101, 413, "101 bytes: send at most 100 at a time"),
        ("/", b"x" * 101, 413, "101 bytes: send at most 100 at a time"),
        ("/elsewhere", b"", 404, "Not Found"),
        ("/model", b"", 405, "Method Not Allowed"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(client, monkeypatch, path, content, status, said):
    monkeypatch.setattr(serve, "LARGEST", 100)
    answer = client.post(path, content=content)
    assert (answer.status_code, answer.json()) == (status, {"error": said})


def test_a_form_has_its_limit(client):
    files = [("images", (f"{i}.png", image)) for i, image in enumerate(encoded(MOST + 1))]
    assert client.post("/", files=files[:-1]).text.count("<li><div") == MOST
    assert client.post("/", files=files).status_code == 400


def test_requests_are_answered_one_after_the_other(client, monkeypatch):
    inside, most = [], []
    ask = serve.predict

    def slow(*args, **options):
        inside.append(threading.get_ident())
        time.sleep(0.05)
        most.append(len(inside))
        inside.pop()
        return ask(*args, **options)

    monkeypatch.setattr(serve, "predict", slow)
    images = encoded(4)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda image: client.post("/predict", content=image).json(), images))
    assert most == [1] * 4
    assert answers == [client.post("/predict", content=image).json() for image in images]


def test_a_device_that_is_not_there_is_told_before_the_first_request(bundle):
    with pytest.raises(ValueError, match=r"^device 'cuda:7' is not here"):
        Service(bundle, name="x", device="cuda:7")


def test_a_port_that_is_taken_is_told(tmp_path, vitreous):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code, out, err = vitreous("serve", str(tmp_path), "--port", str(port))
    assert (code, out) == (2, "")
    assert err == f"vitreous: cannot listen at 127.0.0.1, port {port}: Address already in use; try another --port\n"


def test_a_missing_package_is_named_with_its_way_in(tmp_path, vitreous, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "uvicorn" else 1)
    code, _, err = vitreous("serve", str(tmp_path))
    assert (code, err) == (2, 'vitreous: serve needs uvicorn: pip install "vitreous[serve]"\n')


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_the_command_answers_until_it_is_told_to_end(tmp_path, bundle, name):
    bundle.save(tmp_path / "bundle")
    command = [sys.executable, "-m", "vitreous", "serve", str(tmp_path / "bundle"), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        address = re.fullmatch(rf"(http://127\.0\.0\.1:\d+) answers by {tmp_path}/bundle; Ctrl-C ends it\n", line)[1]
        with urllib.request.urlopen(f"{address}/predict", encoded(1)[0], timeout=60) as response:
            answer = json.load(response)
        process.send_signal(getattr(signal, name))
        _, err = process.communicate(timeout=60)
    assert np.isclose(sum(answer["probabilities"]), 1) and set(answer["classes"]) == set(CLASSES)
    assert (process.returncode, err) == (0 if name == "SIGINT" else 143, "")
