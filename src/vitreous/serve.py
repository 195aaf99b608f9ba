"""A trained model behind HTTP: a page for people, JSON for programs."""

import asyncio
import codecs
import csv
import errno
import io
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from threading import Lock

import uvicorn
from anyio import from_thread
from PIL import Image
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from vitreous import __version__
from vitreous.data.stores import BrokenImage, as_text, open_picture, reason
from vitreous.explain import Explanation, explain
from vitreous.messages import shorten
from vitreous.prediction import predict
from vitreous.report.layout import Section, confidence_bar, gallery, lay_out, shot, tiles
from vitreous.report.pictures import cheap_method, heated, how_to_read, picture
from vitreous.weights import Bundle
from vitreous.weights.bundle import Trained

log = logging.getLogger("vitreous")

LARGEST = 32_000_000  # bytes of a request
PIXELS = 64_000_000  # per image, at most: decoding takes up to 16 bytes of memory for each
MOST = 12  # images per form
SLOW = 60  # seconds in which a request has to arrive
AT_ONCE = 32  # requests with images, all of which wait in memory; more are turned away
NAMED = 20  # classes that the page names
BYTE_BY_BYTE = ("ppm", "ppm_plain", "bmp_rle")  # decoders of Pillow in Python
SCANS = 1000  # of a JPEG: a progressive one has about ten, and each goes through all pixels
FORM = f"""<form method="post" enctype="multipart/form-data">
<label>Up to {MOST} images, {LARGEST // 10**6} MB in all:
<input type="file" name="images" accept="image/*" multiple required></label> <button>Ask the model</button></form>
<p class="note">The computer that serves this page answers, and keeps none of them.</p>
<p class="note">A program gets JSON:</p><pre>curl --data-binary @photo.jpg $address</pre>"""
FOOT = "Served by Vitreous. This page loads nothing else, and runs no script."


class Service:
    """A model that answers requests one at a time, in float32; `app` is the ASGI application.

    run, device: as for `predict`, with its errors. name: of the model, for display. on_answer: called for each image
    with the model's `sha256`, the likeliest class and its probability. Raises ValueError for a model that does not read
    pictures.

    - `GET /`: the page; `POST /`, its form: the page with the answers
    - `POST /predict?top=5`, the bytes of an image: {"classes": [...], "probabilities": [...]}, most likely first
    - `GET /model`: {"name", "sha256", "class_names", "temperature", "channels", "image_size", "parameters",
      "vitreous"}: which model answers, and the version of this library; available while images are judged, too

    Failed requests get a status of 400 or above, with {"error": "..."}, or a page with the error.
    """

    def __init__(
        self,
        run: Trained,
        *,
        name: str,
        device: str = "auto",
        on_answer: Callable[[str, str, float], None] = lambda model, answer, probability: None,
    ):
        self.bundle, self.name, self.device, self.on_answer = Bundle.of(run), as_text(name), device, on_answer
        self.config = self.bundle.model.config
        if self.config.channels not in (1, 3):
            raise ValueError(
                f"the model reads {self.config.channels} channels: serve needs a model with 1 or 3 channels"
            )
        self.sha256 = self.bundle.digest()
        self.method = cheap_method(self.config)
        self.parameters = sum(weight.numel() for weight in self.bundle.model.parameters())
        predict(self.bundle, [], device=device)  # so that a missing device is reported now
        self._alone = Lock()  # held while an image is judged
        self._places = asyncio.Semaphore(AT_ONCE)
        routes = [
            Route("/", self._ask_page, methods=["GET", "POST"]),
            Route("/predict", self._post_image, methods=["POST"]),
            Route("/model", self._get_model, methods=["GET"]),
        ]
        handlers = {HTTPException: self._refuse, ClientDisconnect: _gone, Exception: self._failed}
        self.app = Starlette(routes=routes, exception_handlers=handlers)
        self.app.router.redirect_slashes = False

    async def _ask_page(self, request: Request) -> HTMLResponse:
        if request.method != "POST":
            return self._page(request)
        _check_length(request)
        async with self._room():
            images = []
            if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
                try:
                    async with _in_time(), request.form(max_files=MOST) as form:
                        given = [upload for upload in form.getlist("images") if isinstance(upload, UploadFile)]
                        images = [(as_text(upload.filename or "an image"), await upload.read()) for upload in given]
                except UnicodeError as error:
                    raise HTTPException(400, "the form is not in its charset: send it as UTF-8") from error
            if not images:
                raise HTTPException(400, "no image came: choose a file (field images), or send its bytes to /predict")
            return self._page(request, *await run_in_threadpool(self._explain, request, images))

    async def _post_image(self, request: Request) -> JSONResponse:
        _check_length(request)
        kind = request.headers.get("content-type", "").lower()
        if kind.startswith(("multipart/", "application/json")):  # and not what curl says of any bytes
            raise HTTPException(415, "send the image's bytes as the body: curl --data-binary @photo.jpg")
        top = request.query_params.get("top", "5")
        if not top.isdecimal() or len(top) > 9 or not int(top):
            raise HTTPException(400, f"top is '{top[:20]}': give a number from 1 to 999999999")
        async with self._room():
            async with _in_time():
                image = await request.body()
            return await run_in_threadpool(self._answer, request, image, int(top))

    async def _get_model(self, request: Request) -> JSONResponse:
        about = {
            "name": self.name,
            "sha256": self.sha256,
            "class_names": self.bundle.class_names,
            "temperature": self.bundle.temperature,
            "channels": self.config.channels,
            "image_size": self.config.image_size,
            "parameters": self.parameters,
            "vitreous": __version__,
        }
        return JSONResponse(about)

    @asynccontextmanager
    async def _room(self) -> AsyncIterator[None]:
        """To be entered before the body of a request is read. Raises HTTPException where too many are inside, and if
        the server stops before the request is answered."""
        if self._places.locked():
            raise HTTPException(503, f"{AT_ONCE} requests are waiting: ask again in a second", {"Retry-After": "1"})
        async with self._places:
            try:
                yield
            except asyncio.CancelledError as error:
                raise HTTPException(503, "the server stops: ask again once it is back") from error

    @contextmanager
    def _turn(self, request: Request, image: bytes) -> Iterator[None]:
        """The model's time for one image. Raises ClientDisconnect if nobody waits for the answer any more."""
        _check_quick(image)
        with self._alone:
            if from_thread.run(request.is_disconnected):
                raise ClientDisconnect
            yield

    def _answer(self, request: Request, image: bytes, top: int) -> JSONResponse:
        try:
            with self._turn(request, image):
                (found,) = predict(self.bundle, image, top=top, device=self.device, precision="float32")
                self.on_answer(self.sha256, found.classes[0], found.probabilities[0])
        except BrokenImage as error:
            raise HTTPException(400, str(error)) from error
        return JSONResponse({"classes": found.classes, "probabilities": found.probabilities})

    def _explain(self, request: Request, images: list[tuple[str, bytes]]) -> tuple[str, int]:
        """The answers to image files, given by name and content, as HTML, and the status: 400 if none was read."""
        shots, notes = [], ""
        for file, content in images:
            try:
                with self._turn(request, content):  # per image, so that other requests need not wait for the whole form
                    (found,) = explain(self.bundle, content, method=self.method, device=self.device)
                    self.on_answer(self.sha256, found.classes[0], found.probabilities[0])
                shots.append(_answered(found, file))
            except BrokenImage as error:
                notes += f"<p>{escape(file)}: {escape(reason(error.__cause__))}</p>"
        if not shots:
            return notes, 400
        text = f"On the right of each image: what spoke for the answer, by {self.method.replace('_', ' ')}. "
        text += how_to_read(self.method, self.config)
        return f'<p class="note">{text}</p>{gallery(shots, "pairs")}{notes}', 200

    def _page(self, request: Request, answers: str = "", status: int = 200) -> HTMLResponse:
        """The form, below the answers to the images sent with it."""
        facts = {"Classes": f"{self.config.num_classes:,}"}
        facts |= {"Parameters": f"{self.parameters:,}", "Image size": " x ".join(map(str, self.config.image_size))}
        form = FORM.replace("$address", escape(f"{request.base_url}predict"))
        sections = [Section("answers", "Answers", answers)] if answers else []
        sections += [Section("ask", "Ask", form), Section("model", "The model", tiles(facts))]
        lead = f"It knows {shorten(self.bundle.class_names, NAMED)}."
        page = lay_out(kind="A model to ask", heading=self.name, lead=lead, sections=sections, foot=FOOT)
        return HTMLResponse(page, status)

    async def _refuse(self, request: Request, error: HTTPException) -> Response:
        if request.url.path == "/" and error.status_code != 405:
            page = self._page(request, f"<p>{escape(error.detail)}</p>", error.status_code)
            page.headers.update(error.headers or {})
            return page
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    async def _failed(self, request: Request, error: Exception) -> Response:
        """What the client gets; the traceback is logged."""
        return await self._refuse(request, HTTPException(500, "the server failed: its log says why"))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0: any free port. Raises ValueError if it cannot be opened."""
    if not host:
        raise ValueError("the host is empty: use 127.0.0.1, or 0.0.0.0 for all who reach this machine")
    try:
        host.encode("ascii" if host.isascii() else "idna")  # as the socket will, which would be left open
    except UnicodeError as error:
        raise ValueError(f"{as_text(host)} is not the name of a host: use another --host") from error
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = error.strerror.partition(" (")[0]  # Python adds host and port
        option = "port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "host"
        raise ValueError(f"cannot listen at {host}, port {port}: {why}; use another --{option}") from error


def serve(service: Service, listener: socket.socket) -> None:
    """Serve requests on the socket until the process is told to end: Ctrl-C raises KeyboardInterrupt.

    Requests in progress then have three seconds to finish. Lowers Pillow's limit on image pixels, in this process.
    """
    Image.MAX_IMAGE_PIXELS = PIXELS // 2  # Pillow warns from here on, and refuses from twice as many
    options = {"log_level": "warning", "timeout_graceful_shutdown": 3}
    uvicorn.Server(uvicorn.Config(service.app, **options)).run(sockets=[listener])


class AnswerLog:
    """A CSV file that grows by a line per answer: time (UTC), model, class, probability; no image.

    Raises ValueError if the file is another table or has no folder, OSError if it cannot be written. If a later line
    cannot be written, a warning is logged and the answer still goes out.
    """

    HEAD = ("time", "model", "answer", "probability")

    def __init__(self, path: Path):
        self.path = path
        if not path.parent.is_dir():
            raise ValueError(f"there is no folder {path.parent}: make it, or name another file with --log")
        head = b""
        if path.is_file() or not path.exists():  # a pipe or a terminal cannot be read back
            with path.open("ab+") as file:
                file.seek(0)
                head = file.readline().removeprefix(codecs.BOM_UTF8)  # which Excel writes
                if head and head.strip() != ",".join(self.HEAD).encode():
                    raise ValueError(f"{path} is another table: name a new file with --log")
                if head:
                    file.seek(-1, os.SEEK_END)
                    if file.read() != b"\n":  # a line that an editor or a full disk has cut
                        file.write(b"\r\n")
        if not head:
            self._add(self.HEAD)

    def __call__(self, model: str, answer: str, probability: float) -> None:
        try:
            if not self.path.exists() or (self.path.is_file() and not self.path.stat().st_size):
                self._add(self.HEAD)  # it was moved away or emptied, as old logs are
            self._add((datetime.now(UTC).isoformat(timespec="milliseconds"), model[:12], answer, f"{probability:.6g}"))
        except OSError as error:
            log.warning("could not write %s: %s", self.path, error.strerror)

    def _add(self, line: tuple[str, ...]) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(line)


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(SLOW):
            yield
    except TimeoutError as error:
        raise HTTPException(408, f"the request did not arrive within {SLOW} seconds") from error


async def _gone(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=400)  # nobody receives it


def _check_length(request: Request) -> None:
    length = request.headers.get("content-length")
    if length is None or "transfer-encoding" in request.headers:  # which would take precedence
        raise HTTPException(411, "the request does not say its length: send Content-Length")
    if int(length) > LARGEST:
        raise HTTPException(413, f"{int(length):,} bytes: send at most {LARGEST:,} at a time")


def _check_quick(image: bytes) -> None:
    """Raises BrokenImage for what Pillow decodes byte by byte in Python, and for a JPEG of very many scans, which a
    stranger can make take minutes."""
    slow = image.count(b"Exif\0\0") > 100
    if not slow:
        with suppress(Exception), open_picture(io.BytesIO(image)) as picture:  # `predict` tells what is no picture
            decoder = picture.tile[0][0]
            slow = decoder in BYTE_BY_BYTE or (decoder == "jpeg" and image.count(b"\xff\xda") > SCANS)
    if slow:
        error = ValueError("it would take long to decode: save it as PNG")
        raise BrokenImage(f"the image: {error}") from error


def _answered(e: Explanation, file: str) -> str:
    """An image as the model sees it, what spoke for the answer, and the likeliest classes."""
    shares = zip(e.classes, e.probabilities, strict=True)
    bars = "".join(f"{escape(name)} {share:.1%}{confidence_bar(share)}" for name, share in shares)
    text = f'{bars}<small class="file" title="{escape(file)}">{escape(file)}</small>'
    return shot(e.pixels, file, text, [picture(heated(e.pixels, e.map), f"what speaks for {e.target}")])
