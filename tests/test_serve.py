"""A model behind HTTP: the answers of `predict`, for a program and on a page; refusals that say why; one at a time."""

import asyncio
import errno
import inspect
import io
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from tiny import UNREADABLE, csv_rows, stripes, tiny_bundle

from vitreous import __version__, extras, serve
from vitreous.cli import answers
from vitreous.explain import explain
from vitreous.prediction import predict
from vitreous.report.pictures import heated, picture
from vitreous.serve import MOST, AnswerLog, Service, listen

CLASSES = ("ant", "<bee> & co", "cat")
CURLS = "application/x-www-form-urlencoded"  # what curl says of any bytes


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
    return replace(tiny_bundle(classes=CLASSES), temperature=1.5)


@pytest.fixture
def client(bundle):
    return TestClient(Service(bundle, name="stripes & more", device="cpu").app)


@pytest.mark.parametrize("top", [1, 2, 5])
def test_a_program_gets_what_predict_answers_in_float32(client, bundle, monkeypatch, top):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})  # where auto is bf16
    seen = set()
    for image in encoded(4):
        (expected,) = predict(bundle, image, top=top, device="cpu", precision="float32")
        answer = client.post(f"/predict?top={top}", content=image)
        assert answer.status_code == 200 and answer.json().keys() == {"classes", "probabilities"}
        assert tuple(answer.json()["classes"]) == expected.classes and len(expected.classes) == min(top, 3)
        assert answer.json()["probabilities"] == list(expected.probabilities)
        seen.add(expected.probabilities)
    assert len(seen) == 4
    assert len(client.post("/predict", content=image).json()["classes"]) == 3


def test_a_program_is_told_five_classes_where_it_does_not_say_how_many():
    client = TestClient(Service(tiny_bundle(classes=tuple("abcdefg")), name="x", device="cpu").app)
    assert len(client.post("/predict", content=encoded(1)[0]).json()["classes"]) == 5


def test_a_program_learns_what_it_asks(client, bundle):
    parameters = sum(weight.numel() for weight in bundle.model.parameters())
    about = {"name": "stripes & more", "class_names": list(CLASSES), "channels": 1, "image_size": [8, 8]}
    about |= {"temperature": bundle.temperature, "sha256": bundle.digest(), "vitreous": __version__}
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
        heat = heated(found.pixels, found.map)
        evidence = picture(heat, f"what speaks for {found.target}")
        places = [text.index(part, before) for part in [f'alt="&lt;{i}&gt;.png"', evidence, *bars]]
        assert places == sorted(places)
        before = places[-1]
    assert text.count("data:image/png") == 6 and "by integrated gradients" in text
    assert "&lt;x&gt;.txt: not a JPEG, PNG" in text
    assert "<bee>" not in text and "<0>" not in text and "<script" not in text


def test_a_name_that_is_not_utf8_costs_no_page(bundle):
    client = TestClient(Service(bundle, name="caf\udce9", device="cpu").app)
    assert "<h1>caf\\udce9</h1>" in client.get("/").text and client.get("/model").json()["name"] == "caf\\udce9"


def test_large_models_are_explained_in_one_pass(bundle, monkeypatch):
    asked = []
    monkeypatch.setattr(serve, "cheap_method", lambda config: "rollout")
    monkeypatch.setattr(serve, "explain", lambda *args, **options: asked.append(options["method"]) or explain(*args))
    client = TestClient(Service(bundle, name="x", device="cpu").app)
    assert "by rollout." in client.post("/", files={"images": encoded(1)[0]}).text and asked == ["rollout"]


def test_the_page_alone_has_the_form_and_no_answers(client):
    text = client.get("/").text
    assert "<h1>stripes &amp; more</h1>" in text and 'enctype="multipart/form-data"' in text
    assert 'id="answers"' not in text and "data:image" not in text
    assert "@photo.jpg http://testserver/predict" in text
    empty = client.post("/", data={"images": "text"}, files={"other": b"x"})
    assert empty.status_code == 400 and "no image came: choose a file (field images), or" in empty.text
    raw = client.post("/", content=encoded(1)[0], headers={"content-type": CURLS})
    assert raw.status_code == 400 and "or send its bytes to /predict" in raw.text
    large = client.post("/", content=encoded(1)[0] + 2000 * b"&a=b", headers={"content-type": CURLS})
    assert large.status_code == 400 and "or send its bytes to /predict" in large.text


@pytest.mark.parametrize(
    ("path", "content", "status", "said"),
    [
        ("/predict", b"no image", 400, f"the image: {UNREADABLE}"),
        ("/predict", b"", 400, f"the image: {UNREADABLE}"),
        ("/predict", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", 400, f"the image: {UNREADABLE}"),
        ("/predict?top=0", b"", 400, "top is '0': give a number from 1 to 999999999"),
        ("/predict?top=" + 5000 * "1", b"", 400, f"top is '{20 * '1'}': give a number from 1 to 999999999"),
        ("/predict?top=" + 5000 * "0" + "1", b"", 400, f"top is '{20 * '0'}': give a number from 1 to 999999999"),
        ("/predict?top=two", b"", 400, "top is 'two': give a number from 1 to 999999999"),
        ("/predict", iter([b"parts"]), 411, "the request does not say its length: send Content-Length"),
        ("/predict", b"x" * 101, 413, "101 bytes: send at most 100 at a time"),
        ("/predict", b"x" * 100, 400, f"the image: {UNREADABLE}"),
        ("/elsewhere", b"", 404, "Not Found"),
        ("/predict/", b"", 404, "Not Found"),
        ("/model", b"", 405, "Method Not Allowed"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(client, monkeypatch, path, content, status, said):
    monkeypatch.setattr(serve, "LARGEST", 100)
    answer = client.post(path, content=content)
    assert (answer.status_code, answer.json()) == (status, {"error": said})


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "application/json", "Application/JSON; charset=u"])
def test_an_image_wrapped_in_something_is_refused_with_the_way_to_send_it(client, kind):
    answer = client.post("/predict", content=encoded(1)[0], headers={"content-type": kind})
    said = "send the image's bytes as the body: curl --data-binary @photo.jpg"
    assert (answer.status_code, answer.json()) == (415, {"error": said})


@pytest.mark.parametrize("kind", [CURLS, "image/png", "application/octet-stream"])
def test_an_image_may_be_called_anything_else(client, kind):
    image = encoded(1)[0]
    answer = client.post("/predict", content=image, headers={"content-type": kind})
    assert answer.status_code == 200 and answer.json() == client.post("/predict", content=image).json()


def test_people_are_refused_on_the_page(client, monkeypatch):
    files = [("images", (f"{i}.png", image)) for i, image in enumerate(encoded(MOST + 1))]
    assert client.post("/", files=files[:-1]).text.count("<li><div") == MOST
    many = client.post("/", files=files)
    monkeypatch.setattr(serve, "LARGEST", 100)
    large = client.post("/", files=files[:1])
    assert (many.status_code, large.status_code) == (400, 413)
    assert "Too many files. Maximum number of files is 12." in many.text and "send at most 100 at a time" in large.text
    assert all('enctype="multipart/form-data"' in answer.text for answer in (many, large))
    assert client.post("/", content=iter([b"parts"])).status_code == 411
    assert client.put("/").json() == {"error": "Method Not Allowed"}


def test_the_limits_are_those_that_the_documents_name():
    told = " ".join((Path(__file__).parent.parent / "docs" / "deploying.md").read_text().split())
    assert f"port {inspect.signature(answers.serve).parameters['port'].default} by default" in told
    assert f"413 above {serve.LARGEST // 10**6} MB" in told and serve.LARGEST % 10**6 == 0
    assert f"while {serve.AT_ONCE} wait" in told
    assert "408 for a request that takes longer than a minute to arrive" in told and serve.SLOW == 60


def test_a_form_without_a_readable_file_is_refused(client):
    answer = client.post("/", files=[("images", ("x.txt", b"no image")), ("images", ("y.txt", b"none"))])
    assert answer.status_code == 400 and "y.txt: not a JPEG, PNG" in answer.text
    form = b'--x\r\nContent-Disposition: form-data; name="images"\r\n\r\n\xff\r\n--x--\r\n'
    kind = {"content-type": "multipart/form-data; boundary=x; charset=undefined"}
    answer = client.post("/", content=form, headers=kind)
    assert answer.status_code == 400 and "the form is not in its charset: send it as UTF-8" in answer.text


def test_more_requests_than_may_wait_are_turned_away_and_later_ones_answered(bundle, monkeypatch):
    begun, go, predict = Event(), Event(), serve.predict

    def held(*args, **options):
        begun.set()
        assert go.wait(60)
        return predict(*args, **options)

    monkeypatch.setattr(serve, "AT_ONCE", 1)
    client = TestClient(Service(bundle, name="x", device="cpu").app)
    monkeypatch.setattr(serve, "predict", held)
    (image,) = encoded(1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: client.post("/predict", content=image))
        assert begun.wait(60)
        turned_away, page = client.post("/predict", content=image), client.post("/", files={"images": image})
        assert client.get("/model").status_code == client.get("/").status_code == 200
        go.set()
        assert first.result().status_code == 200
    said = "1 requests are waiting: ask again in a second"
    assert (turned_away.status_code, turned_away.json()) == (503, {"error": said})
    assert page.status_code == 503 and f"<p>{said}</p>" in page.text
    assert turned_away.headers["retry-after"] == page.headers["retry-after"] == "1"
    assert client.post("/predict", content=b"no image").status_code == 400  # which leaves room, too
    assert client.post("/predict", content=image).status_code == 200


def test_requests_are_answered_one_after_the_other(client, monkeypatch):
    inside, most = [], []

    def slowly(ask):
        def slow(*args, **options):
            inside.append(ask)
            time.sleep(0.05)
            most.append(len(inside))
            inside.pop()
            return ask(*args, **options)

        return slow

    for name in ("predict", "explain"):
        monkeypatch.setattr(serve, name, slowly(getattr(serve, name)))
    images = encoded(4)
    requests = [lambda image=image: client.post("/predict", content=image).json() for image in images]
    requests += [lambda image=image: client.post("/", files={"images": image}).text for image in images]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda request: request(), requests))
    assert most == [1] * 8
    assert answers == [request() for request in requests]


def test_a_program_does_not_wait_for_all_images_of_a_form(client, monkeypatch):
    """After its first image the form waits here until the program has its answer."""
    explained, go, write = Event(), Event(), serve._answered

    def held(*args):
        explained.set()
        assert go.wait(20)
        return write(*args)

    monkeypatch.setattr(serve, "_answered", held)
    images = encoded(8)
    with ThreadPoolExecutor(1) as pool:
        form = pool.submit(lambda: client.post("/", files=[("images", image) for image in images]))
        assert explained.wait(20) and client.post("/predict", content=images[0]).status_code == 200
        assert not form.done()
        go.set()
        assert form.result().status_code == 200


def test_a_device_that_is_not_there_is_told_before_the_first_request(bundle):
    with pytest.raises(ValueError, match=r"^device 'cuda:7' is not available"):
        Service(bundle, name="x", device="cuda:7")


def test_a_model_that_reads_no_pictures_is_not_served():
    with pytest.raises(ValueError, match=r"^the model reads 4 channels: serve needs a model with 1 or 3 channels$"):
        Service(tiny_bundle(channels=4), name="x")


def test_a_long_list_of_classes_is_cut():
    names = tuple(f"class {i}" for i in range(21))
    lead = "It knows " + ", ".join(names[:20])
    for known, end in ((names[:20], "."), (names, " and 1 more.")):
        text = TestClient(Service(tiny_bundle(classes=known), name="x", device="cpu").app).get("/").text
        assert f'<p class="lead">{lead}{end}</p>' in text


@pytest.mark.parametrize("kind", ["text", "few levels", "run lengths", "many segments", "many scans"])
def test_what_would_take_long_to_decode_is_refused(client, kind):
    """A stranger could make these take minutes, in which nobody else is answered."""
    files = {"PPM": io.BytesIO(), "BMP": io.BytesIO(), "JPEG": io.BytesIO()}
    for name, file in files.items():
        Image.new("L", (8, 8)).save(file, name)
        assert client.post("/predict", content=file.getvalue()).status_code == 200
    image, bmp, jpeg = encoded(1)[0], files["BMP"].getvalue(), files["JPEG"].getvalue()
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "JPEG", progressive=True)
    scans = file.getvalue()[:-2]  # without the mark of its end
    assert client.post("/predict", content=scans + b"\xff\xd9").status_code == 200
    slow = {
        "text": b"P2 8 8 255 " + b"0 " * 64,
        "few levels": b"P5 8 8 254 " + bytes(64),
        "run lengths": bmp[:30] + b"\1" + bmp[31:],
        "many segments": jpeg[:2] + 101 * b"\xff\xe1\0\x08Exif\0\0" + jpeg[2:],
        "many scans": scans + 1001 * scans[scans.rindex(b"\xff\xda") :] + b"\xff\xd9",
    }[kind]
    answer = client.post("/predict", content=slow)
    said = "the image: it would take long to decode: save it as PNG"
    assert (answer.status_code, answer.json()) == (400, {"error": said})
    page = client.post("/", files=[("images", image), ("images", slow)])
    assert page.status_code == 200 and "it would take long to decode: save it as PNG" in page.text


def test_nothing_is_computed_for_who_has_gone(bundle, monkeypatch):
    answered = []
    service = Service(bundle, name="x", device="cpu", on_answer=lambda *answer: answered.append(answer))

    async def gone(request):
        return True

    monkeypatch.setattr(serve.Request, "is_disconnected", gone)
    client = TestClient(service.app)
    client.post("/predict", content=encoded(1)[0])
    client.post("/", files={"images": encoded(1)[0]})
    assert not answered
    monkeypatch.undo()
    assert client.post("/predict", content=encoded(1)[0]).status_code == 200 and len(answered) == 1


def test_an_address_of_ipv6_is_listened_at_and_told_in_brackets(tmp_path, vitreous, bundle, monkeypatch):
    bundle.save(tmp_path / "model")
    asked, create = [], socket.create_server

    def listen_here(address, family):  # as this machine may have no IPv6
        asked.append((*address, family))
        return create(("127.0.0.1", 0))

    monkeypatch.setattr(socket, "create_server", listen_here)
    monkeypatch.setattr("vitreous.serve.serve", lambda *_: None)
    code, out, _ = vitreous("serve", tmp_path / "model", "--host", "::1", "--port", "0")
    assert code == 0 and re.match(r"http://\[::1\]:\d+ serves ", out) and asked == [("::1", 0, socket.AF_INET6)]


def test_a_port_that_is_taken_is_told(tmp_path, vitreous):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code, out, err = vitreous("serve", str(tmp_path), "--port", str(port), "--log", str(tmp_path / "asked.csv"))
    assert (code, out) == (2, "") and not (tmp_path / "asked.csv").exists()
    assert err == f"vitreous: cannot listen at 127.0.0.1, port {port}: Address already in use; use another --port\n"


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("", "the host is empty: use 127.0.0.1, or 0.0.0.0 for all who reach this machine"),
        ("\udcff", "\\udcff is not the name of a host: use another --host"),
        ("ü..de", "ü..de is not the name of a host: use another --host"),
        ("192.0.2.1", "cannot listen at 192.0.2.1, port 0: Cannot assign requested address; use another --host"),
    ],
)
def test_a_host_that_is_none_of_this_machine_is_told(tmp_path, vitreous, host, said):
    code, _, err = vitreous("serve", str(tmp_path), "--host", host, "--port", "0")
    assert (code, err) == (2, f"vitreous: {said}\n")


def test_a_failure_of_the_server_is_told_as_one(bundle, monkeypatch):
    """In the form that each client reads, and not as a broken image."""

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(type(bundle.preprocess), "fit_image", fail)
    client = TestClient(Service(bundle, name="m", device="cpu").app, raise_server_exceptions=False)
    told = "the server failed: its log says why"
    answer = client.post("/predict", content=encoded(1)[0])
    assert (answer.status_code, answer.json()) == (500, {"error": told})
    page = client.post("/", files=[("images", ("a.png", encoded(1)[0]))])
    assert page.status_code == 500 and f"<p>{told}</p>" in page.text and "<form" in page.text


def test_answers_are_noted_where_that_is_asked_for(bundle, tmp_path, monkeypatch, caplog):
    images, path = encoded(3), tmp_path / "asked.csv"
    for _ in range(2):  # a second server adds to it
        client = TestClient(Service(bundle, name="stripes", device="cpu", on_answer=AnswerLog(path)).app)
        client.post("/predict", content=images[0])
        client.post("/", files=[("images", (f"{i}.png", image)) for i, image in enumerate(images[1:])])
        client.post("/predict", content=b"no image")
    rows = csv_rows(path)
    found = predict(bundle, images, device="cpu", precision="float32")
    assert {row["model"] for row in rows} == {bundle.digest()[:12]}
    assert [(row["answer"], float(row["probability"])) for row in rows] == 2 * [
        (answer.classes[0], pytest.approx(answer.probabilities[0], rel=1e-5)) for answer in found
    ]
    assert datetime.fromisoformat(rows[0]["time"]) <= datetime.fromisoformat(rows[-1]["time"]) <= datetime.now(UTC)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(serve.csv, "writer", lambda file: SimpleNamespace(writerow=full))
    assert client.post("/predict", content=images[0]).status_code == 200
    assert caplog.messages[-1] == f"could not write {path}: No space left on device"


@pytest.mark.parametrize("content", [b"split,row\n", "größe,zeit\n".encode("latin-1"), b"\n"])
def test_answers_are_noted_in_no_other_table(vitreous, bundle, tmp_path, content):
    bundle.save(tmp_path / "model")
    other = tmp_path / "answers.csv"
    other.write_bytes(content)
    code, _, err = vitreous("serve", tmp_path / "model", "--port", "0", "--log", other)
    assert (code, err) == (2, f"vitreous: {other} is another table: name a new file with --log\n")
    assert other.read_bytes() == content


def test_answers_are_noted_in_no_folder_that_is_not_there(vitreous, bundle, tmp_path):
    bundle.save(tmp_path / "model")
    code, _, err = vitreous("serve", tmp_path / "model", "--port", "0", "--log", tmp_path / "new" / "asked.csv")
    said = f"there is no folder {tmp_path / 'new'}: make it, or name another file with --log"
    assert (code, err) == (2, f"vitreous: {said}\n") and not (tmp_path / "new").exists()


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("old", ["", "\nthen,model,ant,0.5", "\nthen,model,ant,0.5\n"])
def test_a_log_that_was_edited_goes_on_in_a_line_of_its_own(tmp_path, mark, old):
    path, head = tmp_path / "asked.csv", "time,model,answer,probability"
    path.write_text(mark + head + old, encoding="utf-8")
    AnswerLog(path)("model", "bee", 0.25)
    first, *rows = path.read_text(encoding="utf-8-sig").splitlines()
    assert first == head and rows[:-1] == old.split() and rows[-1].endswith(",model,bee,0.25")


def test_a_log_that_was_moved_away_begins_anew_with_its_head(tmp_path):
    path = tmp_path / "asked.csv"
    note = AnswerLog(path)
    note("model", "ant", 0.5)
    path.rename(tmp_path / "old.csv")
    note("model", "bee", 0.25)
    AnswerLog(path)("model", "cat", 0.75)  # the next server takes it for its own
    assert [row["answer"] for row in csv_rows(path)] == ["bee", "cat"]


def test_a_log_that_was_emptied_begins_anew_with_its_head(tmp_path):
    path = tmp_path / "asked.csv"
    note = AnswerLog(path)
    note("model", "ant", 0.5)
    os.truncate(path, 0)
    note("model", "bee", 0.25)
    AnswerLog(path)("model", "cat", 0.75)
    assert [row["answer"] for row in csv_rows(path)] == ["bee", "cat"]


def test_a_log_may_be_the_programs_own_output(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        AnswerLog(path)("model", "bee", 0.25)
        head, line = os.read(reader, 1000).decode().splitlines()
    finally:
        os.close(reader)
    assert head == "time,model,answer,probability" and line.endswith(",model,bee,0.25")


@pytest.mark.parametrize("path", ["/", "/predict"])
def test_a_request_that_does_not_arrive_gives_its_place_up(bundle, monkeypatch, path):
    monkeypatch.setattr(serve, "SLOW", 0.01)
    service, sent = Service(bundle, name="m", device="cpu"), []

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    headers = [(b"content-length", b"9"), (b"host", b"x")]
    headers += [(b"content-type", b"multipart/form-data; boundary=b")] * (path == "/")
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "scheme": "http"}
    asyncio.run(service.app(scope | {"server": ("x", 80), "root_path": ""}, receive, send))
    assert sent[0]["status"] == 408 and b"did not arrive within" in sent[1]["body"]
    assert TestClient(service.app).post("/predict", content=encoded(1)[0]).status_code == 200


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "python_multipart"])
def test_a_missing_package_is_named_with_its_way_in(tmp_path, vitreous, monkeypatch, package):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == package else 1)
    code, _, err = vitreous("serve", str(tmp_path))
    assert (code, err) == (2, f'vitreous: serve needs {package}: {sys.executable} -m pip install "vitreous[serve]"\n')


# The command, which prints a line for each client that goes before all of its request is there
TELLS = """
from starlette.requests import ClientDisconnect, Request
from vitreous.cli import main

body = Request.body

async def told(request):
    try:
        return await body(request)
    except ClientDisconnect:
        print("gone", flush=True)
        raise

Request.body = told
main()
"""


@pytest.fixture
def server(request, tmp_path, bundle):
    """The command: its process, and where it listens."""
    bundle.save(tmp_path)
    command = [
        sys.executable,
        *getattr(request, "param", ("-m", "vitreous")),
        "serve",
        ".",
        "--port",
        "0",
        "--device",
        "cpu",
        "--log",
        "log/asked.csv",
    ]
    (tmp_path / "log").mkdir()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        try:
            line = process.stdout.readline()
            port = re.fullmatch(r"http://127\.0\.0\.1:(\d+) serves \.; Ctrl-C stops it\n", line)[1]
            yield process, ("127.0.0.1", int(port))
        finally:
            process.kill()


def test_ctrl_c_ends_the_command(server, tmp_path):
    process, (host, port) = server
    with urllib.request.urlopen(f"http://{host}:{port}/predict", encoded(1)[0], timeout=60) as response:
        assert set(json.load(response)["classes"]) == set(CLASSES)
    with urllib.request.urlopen(f"http://{host}:{port}/", timeout=60) as response:
        assert f"<h1>{tmp_path.name}</h1>".encode() in response.read()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "" and process.returncode == 0
    assert len((tmp_path / "log" / "asked.csv").read_text().splitlines()) == 2  # its head and the answer


def test_an_image_that_would_fill_the_memory_is_refused(server):
    _, (host, port) = server
    large = io.BytesIO()
    Image.new("1", (8001, 8000)).save(large, "PNG")
    with pytest.raises(urllib.error.HTTPError, match="400") as refused:
        urllib.request.urlopen(f"http://{host}:{port}/predict", large.getvalue(), timeout=60)
    said = "the image: more than the 64,000,000 pixels that Pillow opens: make it smaller"
    with refused.value as response:
        assert json.load(response) == {"error": said}


def test_connections_that_ask_nothing_keep_nobody_out(server):
    _, address = server
    with ExitStack() as silent:
        for _ in range(40):
            silent.enter_context(socket.create_connection(address))
        with urllib.request.urlopen("http://{}:{}/predict".format(*address), encoded(1)[0], timeout=60) as response:
            assert response.status == 200


@pytest.mark.parametrize("server", [("-c", TELLS)], indirect=True, ids=["tells"])
def test_a_client_that_says_two_lengths_or_sends_but_half_holds_nothing_up(server):
    process, address = server
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
    with socket.create_connection(address, 60) as two, socket.create_connection(address, 60) as half:
        two.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        assert two.recv(20).startswith(b"HTTP/1.1 411 ")
        half.sendall(head + b"\r\nhalf")
        with socket.create_connection(address) as gone:
            gone.sendall(head + b"\r\ngone")
        assert select.select([process.stdout], [], [], 60)[0] and process.stdout.readline() == "gone\n"
        process.terminate()
        _, err = process.communicate(timeout=60)
        answer = half.recv(999)
    assert process.returncode == 143 and "ClientDisconnect" not in err
    assert answer.startswith(b"HTTP/1.1 503 ") and answer.endswith(
        b'{"error":"the server stops: ask again once it is back"}'
    )
    assert "Traceback" not in err
