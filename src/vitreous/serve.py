"""A trained model behind HTTP: a page for people, JSON for programs."""

import socket
from html import escape
from pathlib import Path
from threading import Lock

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route

from vitreous.data.stores import BrokenImage, reason
from vitreous.explain import Explanation, explain
from vitreous.prediction import own_precision, predict
from vitreous.report.layout import Section, gallery, lay_out, shot, tiles
from vitreous.report.pictures import cheap_method, heated, picture
from vitreous.weights import Bundle

LARGEST = 32 << 20  # bytes of a request
MOST = 12  # images of one form
NAMED = 20  # classes that the page names
FORM = f"""<form method="post" enctype="multipart/form-data">
<label>Up to {MOST} images: <input type="file" name="images" accept="image/*" multiple required></label>
<button>Ask the model</button></form>
<p class="note">The computer that serves this page answers, and keeps nothing of them.</p>
<p class="note">A program gets JSON:</p><pre>curl --data-binary @photo.jpg $address</pre>"""
FOOT = "Served by Vitreous. This page loads nothing else, and runs no script."


class Service:
    """A model that answers one request after the other; `app` is what an ASGI server runs.

    run, device: as for `predict`, with its errors. name: of the model, for people.

    - `GET /`: the page; `POST /`, its form: the page with the answers
    - `POST /predict?top=5`, the bytes of an image: {"classes": [...], "probabilities": [...]}, most likely first
    - `GET /model`: {"name", "class_names", "channels", "image_size", "parameters"}

    What cannot be answered gets status 400, 411 or 413 and {"error": "..."}.
    """

    def __init__(self, run: Path | str | Bundle, *, name: str, device: str = "auto"):
        self.bundle, self.name, self.device, self.precision = Bundle.of(run), name, device, own_precision(run)
        self.config = self.bundle.model.config
        self.method = cheap_method(self.config)
        self.parameters = sum(weight.numel() for weight in self.bundle.model.parameters())
        predict(self.bundle, [], device=device)  # so that a device that is not there is told now
        self._alone = Lock()  # explaining leaves gradients in the model; and no two requests share the memory
        routes = [
            Route("/", self._get_page, methods=["GET"]),
            Route("/", self._post_page, methods=["POST"]),
            Route("/predict", self._post_image, methods=["POST"]),
            Route("/model", self._get_model, methods=["GET"]),
        ]
        self.app = Starlette(routes=routes, exception_handlers={HTTPException: _refuse})

    async def _get_page(self, request: Request) -> HTMLResponse:
        return self._page(request, [])

    async def _post_page(self, request: Request) -> HTMLResponse:
        _check_length(request)
        async with request.form(max_files=MOST) as form:
            given = [upload for upload in form.getlist("images") if isinstance(upload, UploadFile)]
            images = [(upload.filename or "an image", await upload.read()) for upload in given]
        return await run_in_threadpool(self._page, request, images)

    async def _post_image(self, request: Request) -> JSONResponse:
        _check_length(request)
        top = request.query_params.get("top", "5")
        if not top.isdecimal() or int(top) < 1:
            raise HTTPException(400, f"top is '{top}': give a number from 1")
        return await run_in_threadpool(self._answer, await request.body(), int(top))

    async def _get_model(self, request: Request) -> JSONResponse:
        about = {"name": self.name, "class_names": self.bundle.class_names, "channels": self.config.channels}
        return JSONResponse(about | {"image_size": self.config.image_size, "parameters": self.parameters})

    def _answer(self, image: bytes, top: int) -> JSONResponse:
        try:
            with self._alone:
                (found,) = predict(self.bundle, image, top=top, device=self.device, precision=self.precision)
        except BrokenImage as error:
            raise HTTPException(400, str(error)) from error
        return JSONResponse({"classes": found.classes, "probabilities": found.probabilities})

    def _page(self, request: Request, images: list[tuple[str, bytes]]) -> HTMLResponse:
        """The form, below the answers to what was sent by it: names and bytes of image files."""
        shots, notes = [], ""
        for file, content in images:
            try:
                with self._alone:
                    (found,) = explain(self.bundle, content, method=self.method, device=self.device)
                shots.append(_answered(found, file))
            except BrokenImage as error:
                notes += f"<p>{escape(file)}: {escape(reason(error.__cause__))}</p>"
        if shots:
            text = f"On the right of each image: what spoke for the answer, by {self.method.replace('_', ' ')}."
            notes = f'<p class="note">{text}</p>{gallery(shots, "pairs")}{notes}'
        names, facts = self.bundle.class_names, {"Classes": f"{self.config.num_classes:,}"}
        facts |= {"Parameters": f"{self.parameters:,}", "Image size": " x ".join(map(str, self.config.image_size))}
        form = FORM.replace("$address", escape(f"{request.base_url}predict"))
        sections = [Section("answers", "Answers", notes)] if images else []
        sections += [Section("ask", "Ask", form), Section("model", "The model", tiles(facts))]
        lead = f"It knows {', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else '.'}"
        return HTMLResponse(lay_out(kind="A model to ask", heading=self.name, lead=lead, sections=sections, foot=FOOT))


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; port 0: any that is free. Raises ValueError where it cannot."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = error.strerror.partition(" (")[0]  # Python adds host and port
        raise ValueError(f"cannot listen at {host}, port {port}: {why}; try another --port") from error


def serve(service: Service, listener: socket.socket) -> None:
    """Answer what comes to the socket until the process is told to end: Ctrl-C raises KeyboardInterrupt."""
    uvicorn.Server(uvicorn.Config(service.app, log_level="warning")).run(sockets=[listener])


async def _refuse(request: Request, error: HTTPException) -> JSONResponse:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def _check_length(request: Request) -> None:
    length = request.headers.get("content-length")
    if length is None:
        raise HTTPException(411, "the request does not say its length: send Content-Length")
    if int(length) > LARGEST:
        raise HTTPException(413, f"{int(length):,} bytes: send at most {LARGEST:,} at a time")


def _answered(explanation: Explanation, file: str) -> str:
    """An image as the model sees it, what spoke for the answer, and the likeliest classes."""
    e = explanation
    high, wide = (side // patches for side, patches in zip(e.pixels.shape[1:], e.map.shape, strict=True))
    heat = e.map.repeat(high, axis=0).repeat(wide, axis=1)
    bars = "".join(
        f'{escape(name)} {share:.1%}<div class="sure"><i style="width:{share:.1%}"></i></div>'
        for name, share in zip(e.classes, e.probabilities, strict=True)
    )
    text = f'{bars}<small class="file" title="{escape(file)}">{escape(file)}</small>'
    return shot(e.pixels, file, text, [picture(heated(e.pixels, heat), f"what speaks for {e.target}")])
