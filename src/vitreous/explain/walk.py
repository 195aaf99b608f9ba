"""A page that follows one image through a model, with the shape, equation and code of every step: `vitreous walk`."""

from html import escape
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.explain.attention import open_pass, read_out
from vitreous.explain.listing import code
from vitreous.explain.methods import patch_map, propagate
from vitreous.files import check_file, path_of
from vitreous.messages import channels_shown
from vitreous.model import ViT, ViTConfig
from vitreous.model.attention import Attention, attend, attention_weights
from vitreous.model.patches import flat_patches
from vitreous.model.positions import rotary_table, rotate, sincos_1d, sincos_2d
from vitreous.model.vit import MLP, Block, DepthwiseConv, LayerScale, Pool
from vitreous.page import MARK, document, png, write_page
from vitreous.plots import heat, overlay
from vitreous.prediction import Asked, image_name, read_image
from vitreous.preprocess import Preprocess
from vitreous.weights import Bundle
from vitreous.weights.bundle import Trained

SHEET = Path(__file__).with_name("walk.css")
POSITION_CODE = {
    "learned": [],
    "sincos": [sincos_1d],
    "sincos_learned": [sincos_1d],
    "sincos2d": [sincos_2d],
    "rope": [rotary_table, rotate],
}
PATCHES = {
    "linear": "each patch flattened, times one matrix <b>E</b>",
    "conv": "one convolution whose stride is its kernel: the same as cutting patches and multiplying each by <b>E</b>",
    "conv_stem": "3 x 3 convolutions whose fields overlap, some of stride 2 or with means of 2 x 2 after them; the "
    "last gives what equation 1 calls <b>x</b><sub>i</sub><b>E</b>",
}
POSITIONS = {
    "learned": "a learned table",
    "sincos": "a fixed table of sines and cosines over the sequence",
    "sincos_learned": "a table that began as sines and cosines and was trained on",
    "sincos2d": "a fixed table of sines and cosines, half of it for the row and half for the column",
    "rope": "nothing is added: queries and keys are rotated by row and column in each block",
}


@torch.no_grad()
def walk(run: Trained, image: Asked, *, out: Path | str = "walk.html", device: str = "auto") -> Path:
    """Write the page of one image, a single file that needs no network, and return its path.

    run and image: as for `predict`. The code shown is read from the source as the page is written. Raises ValueError
    for an image that cannot be read, and where `out` would take the place of another file.
    """
    out = path_of(out)
    check_file(out, ".html", MARK)
    bundle = Bundle.of(run)
    where, model, config = bundle.to(device), bundle.model, bundle.model.config
    pixels = read_image(image, bundle.preprocess)  # (C, H, W)
    normalised = bundle.preprocess.normalise(torch.from_numpy(pixels)[None].to(where))
    seen = open_pass(model, normalised)
    logits = torch.cat([read_out(model, x) for x in seen.tokens])  # (L + 1, K)
    lens = (logits / bundle.temperature).softmax(dim=1).cpu().numpy()
    row = seen.pool.mean(dim=1)  # (1, N)
    shown = pixels / 255
    top = np.argsort(-lens[-1])[:5]

    name = Path(image_name(image)).name
    body = [
        f"<h1>One image through the model: {escape(name)}</h1>",
        f"<p>{config.depth} blocks of {config.heads} heads, tokens {config.dim} wide, patches of "
        f"{' x '.join(map(str, config.patch_size))} pixels, {config.num_classes} classes. It answers "
        f"<b>{escape(bundle.class_names[top[0]])}</b> with {lens[-1, top[0]]:.1%}. Equations are numbered as in "
        "Dosovitskiy et al. 2021. Shapes: B images (here 1), N tokens of D numbers each, h attention heads of d "
        "numbers each, K classes.</p>",
        _pixels_and_patches(model, shown, normalised),
        _tokens(model, seen.tokens[0]),
    ]
    for depth, weights in enumerate(seen.attention, start=1):
        heads = propagate(row[:, None], weights)[0]  # (h, N)
        body.append(_block(model, depth, shown, heads, _answers(lens[depth], bundle.class_names)))
    read = patch_map(row, model)[0].cpu().numpy()
    body.append(_end(bundle, shown, read, lens, top))
    title = f"{name} through {Path(run).resolve().name if not isinstance(run, Bundle) else 'the model'}"
    write_page(out, document(title=title, sheet=SHEET, body="\n".join(body)))
    return out


def _pixels_and_patches(model: ViT, shown: np.ndarray, normalised: Tensor) -> str:
    config = model.config
    (rows, columns), (P, Q), C = config.grid, config.patch_size, config.channels
    rgb = (np.repeat(shown[:1], 3, axis=0) if C < 3 else shown[:3]).transpose(1, 2, 0)
    times = max(1, 224 // max(shown.shape[1:]))
    large = rgb.repeat(times, axis=0).repeat(times, axis=1)
    tiles = large.reshape(rows, P * times, columns, Q * times, 3)
    gaps = (0, 0), (2, 2), (0, 0), (2, 2), (0, 0)
    spaced = np.pad(tiles, gaps, constant_values=0.5).reshape(rows * (P * times + 4), columns * (Q * times + 4), 3)
    squares = f"cut into patches of {P} x {Q} pixels"
    cut = f"{config.image_size[0]}/{P} x {config.image_size[1]}/{Q} = {rows} x {columns} = {rows * columns} patches"
    equation = "<b>x</b> → [<b>x</b><sub>1</sub><b>E</b>; …; <b>x</b><sub>N</sub><b>E</b>],  "
    equation += (
        f"<b>x</b><sub>i</sub> ∈ &#8477;<sup>{P}·{Q}·{C}</sup>, <b>E</b> ∈ &#8477;<sup>{P * Q * C} x {config.dim}</sup>"
    )
    if config.patch_embedding == "conv_stem":
        equation = "<b>x</b> → GELU(BN(<b>x</b> * <b>K</b><sub>1</sub>)) → … → [<b>x</b><sub>1</sub><b>E</b>; …; "
        equation += "<b>x</b><sub>N</sub><b>E</b>]"
        squares = f"one token for each square of {P} x {Q} pixels; it also sees some pixels around"
    low, high = normalised.min().item(), normalised.max().item()
    return "\n".join(
        [
            _step("Pixels", f"(B, C, H, W) = {_shape(normalised)}", "<b>x</b> = (pixels / 255 &minus; &mu;) / &sigma;"),
            f"<p>Brought to the model's size, then shifted and scaled: now between {low:.2f} and {high:.2f}.</p>",
            code(Preprocess.fit_image),
            code(Preprocess.normalise),
            _step("Patches", f"(B, N, D) = (1, {rows * columns}, {config.dim})", equation),
            f"<p>{cut}; {PATCHES[config.patch_embedding]}.</p>",
            '<div class="row">',
            _picture(_bytes(large), f"the image as the model sees it{channels_shown(C, ', ')}", 224),
            _picture(_bytes(spaced), squares, 224 + 4 * columns),
            "</div>",
            *([] if config.patch_embedding == "conv_stem" else [code(flat_patches)]),
            code(type(model.patches)),
        ]
    )


def _tokens(model: ViT, tokens: Tensor) -> str:
    config = model.config
    front = ["the class token"] if model.class_token is not None else []
    front += [f"{config.registers} register{'s' if config.registers > 1 else ''}"] if config.registers else []
    before = "No token stands before the patches. "
    if front:
        patches, stand = config.tokens - config.prefix, "stands" if config.prefix == 1 else "stand"
        before = f"Before the {patches} patches, N in the equation, {stand} {' and '.join(front)}. "
    table = heat(tokens[0].float().cpu().numpy())
    return "\n".join(
        [
            _step(
                "Tokens with positions",
                f"(B, N, D) = {_shape(tokens)}",
                f"<b>z</b><sub>0</sub> = {_sequence(config)}  (equation 1)",
            ),
            f"<p>{before}Positions: {POSITIONS[config.positions]}.</p>",
            _picture(table, f"z0: {tokens.shape[1]} tokens (rows) of {config.dim} numbers, dark low, bright high", 640),
            code(ViT.embed),
            *map(code, POSITION_CODE[config.positions]),
        ]
    )


def _sequence(config: ViTConfig) -> str:
    """The right side of equation 1, with the positions behind the bracket, or token by token if some have none."""
    placed, R = config.positions != "rope", config.registers
    apart = placed and config.placed_prefix < config.prefix

    def at(token: str, place: str) -> str:
        return f"{token} + <b>E</b><sub>pos</sub><sup>{place}</sup>" if apart else token

    tokens = []
    if config.class_token:
        token = "<b>x</b><sub>class</sub>"
        tokens.append(at(token, "class") if config.placed_prefix else token)
    registers = [f"<b>r</b><sub>{i}</sub>" for i in range(1, R + 1)]
    tokens += registers if R < 3 else [registers[0], "…", registers[-1]]
    tokens += [at("<b>x</b><sub>1</sub><b>E</b>", "1"), "…", at("<b>x</b><sub>N</sub><b>E</b>", "N")]
    return f"[{'; '.join(tokens)}]{' + <b>E</b><sub>pos</sub>' if placed and not apart else ''}"


def _block(model: ViT, depth: int, shown: np.ndarray, heads: Tensor, answers: str) -> str:
    config = model.config
    N, h, d = config.tokens, config.heads, config.head_dim
    parts = [f"<h2>Block {depth} of {config.depth}</h2>"]
    if depth == 1:
        parts += [
            f'<p class="shape">q, k, v: (B, h, N, d) = (1, {h}, {N}, {d}) · weights: (B, h, N, N) = '
            f"(1, {h}, {N}, {N}) · tokens in and out: (B, N, D) = (1, {N}, {config.dim})</p>",
            _equation(
                "[<b>q</b>, <b>k</b>, <b>v</b>] = <b>z</b> <b>U</b><sub>qkv</sub>  (5)",
                "A = softmax(<b>q</b> <b>k</b><sup>T</sup> / √d)  (6)",
                "MSA(<b>z</b>) = [A<sub>1</sub><b>v</b><sub>1</sub>; …; A<sub>h</sub><b>v</b><sub>h</sub>] "
                "<b>U</b><sub>msa</sub>  (7, 8)",
                "<b>z</b>&prime; = MSA(LN(<b>z</b>)) + <b>z</b>  (2)",
                "<b>z</b> = MLP(LN(<b>z</b>&prime;)) + <b>z</b>&prime;  (3)",
            ),
            *([f"<p>In this model {'; '.join(others)}.</p>"] if (others := _apart_from_paper(config)) else []),
            *map(code, (Block.forward, *([LayerScale.forward] if config.layer_scale is not None else []))),
            *map(code, (Attention.split, attention_weights, attend, Attention.forward, MLP.forward)),
            *([code(DepthwiseConv.forward)] if config.mlp_conv else []),
        ]
    reader = "the class token reads" if config.pool == "cls" else "the tokens that the answer is read from look at"
    maps, peaks = patch_map(heads, model).cpu().numpy(), heads[:, config.prefix :].amax(dim=1).tolist()
    captions = [f"head {i}, at most {peak:.0%}" for i, peak in enumerate(peaks, start=1)]
    rest = ""
    if config.prefix:
        rest = "; +: what goes to class token or registers"
        beside = heads[:, : config.prefix].sum(dim=1).tolist()
        captions = [f"{caption} + {share:.0%}" for caption, share in zip(captions, beside, strict=True)]
    parts += [
        f"<p>What {reader}, attention head by head (bright: much; the brightest patch gets the share below{rest}):</p>",
        '<div class="row">',
        *(_picture(overlay(shown, x, 112), text, 112) for x, text in zip(maps, captions, strict=True)),
        "</div>",
        f"<p>If the model ended here, it would answer:</p>{answers}",
    ]
    return "\n".join(parts)


def _apart_from_paper(config: ViTConfig) -> list[str]:
    """What the blocks do beyond the paper's equations."""
    parts = {
        "LN divides by the root mean square and subtracts nothing (RMSNorm)": config.norm == "rmsnorm",
        "<b>q</b> and <b>k</b> are normalised, head by head, before (6)": config.qk_norm,
        "<b>q</b> and <b>k</b> are turned by their patch's place before (6)": config.positions == "rope",
        "a learned factor for each channel scales MSA and MLP": config.layer_scale is not None,
        "a 3 x 3 convolution over the grid of patches stands inside the MLP": config.mlp_conv,
    }
    return [part for part, there in parts.items() if there]


def _end(bundle: Bundle, shown: np.ndarray, weights: np.ndarray, lens: np.ndarray, top: np.ndarray) -> str:
    config, names = bundle.model.config, bundle.class_names
    logits = "<b>W</b><sub>2</sub> tanh(<b>W</b><sub>1</sub><b>y</b>)" if config.head_hidden else "<b>W y</b>"
    header = "".join(f"<th>{escape(names[k])}</th>" for k in top)
    lines = "".join(f"<tr><td>{depth}</td>{''.join(map(_cell, row[top]))}</tr>" for depth, row in enumerate(lens))
    caption = f"weight of each patch, at most {weights.max():.0%}"
    return "\n".join(
        [
            _step(
                "Norm and pool",
                f"(B, N, D) → (B, {'2 D' if config.pool == 'cls_mean' else 'D'}) = (1, {config.pooled_dim})",
                _pooling(config),
            ),
            *([] if config.pool == "cls" else [_picture(overlay(shown, weights), caption, 224)]),
            code(Pool.forward),
            code(ViT.pooled),
            _step(
                "Head and probabilities",
                f"(B, K) = (1, {config.num_classes})",
                f"<b>s</b> = {logits},  p<sub>k</sub> = exp(s<sub>k</sub> / T) / Σ<sub>j</sub> exp(s<sub>j</sub> / T)",
            ),
            f"<p>The temperature T is {bundle.temperature:.3g}; where it is not 1, held-out images gave it.</p>",
            *map(code, (ViT.forward, ViT.features, ViT.forward_features)),
            _answers(lens[-1], names, 5),
            "<h2>The answer, depth by depth</h2>",
            "<p>The tokens after each block, read as if they were the last (a logit lens; 0 is before the first "
            "block). The head never learned to read these, so early rows are a hint and no verdict.</p>",
            '<div class="scroll" tabindex="0" role="region" aria-label="Answers by depth">'
            f"<table><tr><th>after block</th>{header}</tr>{lines}</table></div>",
            code(read_out),
        ]
    )


def _pooling(config: ViTConfig) -> str:
    """The equation of what the head reads."""
    after = config.norm_after_pool

    def normed(z: str) -> str:
        return z if after else f"LN({z})"

    one, each = (normed(f"<b>z</b><sub>L</sub><sup>{token}</sup>") for token in ("class", "i"))
    mean = f"1/N Σ<sub>i</sub> {each}"
    pooled = {
        "cls": one,
        "mean": mean,
        "cls_mean": f"[{one}; {mean}]",
        "attention": f"Σ<sub>i</sub> a<sub>i</sub> {each}",
    }
    weights = f",  <b>a</b> = softmax({normed('<b>z</b><sub>L</sub>')} <b>w</b>)"
    over = ",  over the N patches" if config.prefix else ""
    said = {"cls": "  (equation 4)", "attention": weights, "mean": over, "cls_mean": over}[config.pool]
    return f"<b>y</b> = {f'LN({pooled[config.pool]})' if after else pooled[config.pool]}{said}"


def _picture(pixels: np.ndarray, caption: str, width: int) -> str:
    """uint8 (h, w, 3), `width` CSS pixels wide, with its caption; stored with at most two pixels to each of these."""
    image, text = Image.fromarray(pixels), escape(caption)
    image.thumbnail((2 * width, image.height), Image.Resampling.LANCZOS)
    return f'<figure><img src="{png(image)}" alt="{text}" width="{width}"><figcaption>{text}</figcaption></figure>'


def _step(title: str, shape: str, equation: str) -> str:
    return f'<h2>{title}</h2>\n<p class="shape">{shape}</p>\n{_equation(equation)}'


def _equation(*lines: str) -> str:
    return f'<div class="equation">{"<br>".join(lines)}</div>'


def _answers(probabilities: np.ndarray, names: tuple[str, ...], count: int = 3) -> str:
    """The likeliest classes with bars."""
    order = np.argsort(-probabilities)[:count]
    lines = "".join(f"<tr><td>{escape(names[k])}</td>{_cell(probabilities[k])}</tr>" for k in order)
    return f'<table class="answers">{lines}</table>'


def _cell(probability: float) -> str:
    return f'<td>{probability:.1%}<span class="bar" style="width:{probability:.1%}"></span></td>'


def _bytes(pixels: np.ndarray) -> np.ndarray:
    return np.rint(255 * pixels).astype(np.uint8)


def _shape(x: Tensor) -> str:
    return f"({', '.join(map(str, x.shape))})"
