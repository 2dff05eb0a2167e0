"""`folio map`: a picture of the heap by address, and of its memory over time, as a page or as an image."""

from __future__ import annotations

import base64
import colorsys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from folio import output
from folio.errors import FolioError, ProcessGone
from folio.picture import HUGE, LARGE, Picture, over_time, picture_of
from folio.reader import Reader

TIME_ROWS_MOST = 1500
SAMPLES_MOST = 1000
GOLDEN = 0.381966  # of a turn: neighbours in a list of any length get hues far apart
LEVELS = 255


def name_of(number: int, sizes: dict[int, int]) -> str:
    return {LARGE: "large objects", HUGE: "huge objects"}.get(number) or f"{sizes[number]:,} bytes"


def hue(number: int) -> float:
    """Of a turn; the same for a bin in every picture."""
    return {LARGE: 0.58, HUGE: 0.08}.get(number, number * GOLDEN % 1)


def shares(part: np.ndarray, whole: np.ndarray | int) -> np.ndarray:
    """As bytes from 0 to LEVELS; what is not nothing is at least 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(part / whole)
    return np.where(part > 0, np.clip(np.round(share * LEVELS), 1, LEVELS), 0).astype(np.uint8)


def packed(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def legend(pictures: list[Picture], sizes: dict[int, int]) -> list[dict[str, Any]]:
    """What has memory at the end, the most first."""
    last, rows = pictures[-1], []
    for number in {int(n) for each in pictures for n in np.unique(each.bins)}:
        mine = last.bins == number
        resident, live, cached = (int(a[mine].sum()) for a in (last.resident, last.live, last.cached))
        rows.append(
            {
                "number": number,
                "name": name_of(number, sizes),
                "hue": round(360 * hue(number)),
                "chunks": int(mine.sum()),
                "resident": resident,
                "live": live,
                "cached": cached,
            }
        )
    return sorted(rows, key=lambda row: -row["resident"])


def data_of(pictures: list[Picture], times: list[float], sizes: dict[int, int]) -> dict[str, Any]:
    """What the page draws."""
    last = pictures[-1]
    data: dict[str, Any] = {
        "legend": legend(pictures, sizes),
        "chunk_bytes": last.chunk_bytes,
        "cells": last.resident.shape[1],
        "chunks": [hex(int(address)) for address in last.chunks],
        "bins": [int(n) for n in last.bins],
        "resident": packed(shares(last.resident, last.cell_bytes)),
        "live": packed(shares(last.live, last.cell_bytes)),
        "cached": packed(shares(last.cached, last.cell_bytes)),
        "absent": last.absent,
        "over_time": None,
    }
    if len(pictures) > 1:
        addresses, bins, resident, live, each = over_time(pictures, TIME_ROWS_MOST)
        data["over_time"] = {
            "addresses": [hex(int(address)) for address in addresses],
            "bins": [int(n) for n in bins],
            "row_bytes": each,
            "times": [round(at, 3) for at in times],
            "resident": packed(shares(resident, each)),
            "live": packed(shares(live, each)),
        }
    return data


def write_page(file: Path, title: str, data: dict[str, Any]) -> None:
    template = files("folio").joinpath("map.html.j2").read_text()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["size"] = output.size
    file.write_text(environment.from_string(template).render(title=title, data=data, size=output.size))


def strong(turn: float) -> tuple[float, float, float]:
    return colorsys.hls_to_rgb(turn, 0.42, 0.7)


def colours(bins: np.ndarray, resident: np.ndarray, live: np.ndarray, whole: int) -> np.ndarray:
    """An image: hue by bin, strength by what is live, white where nothing is resident."""
    strength = 0.12 + 0.88 * (live / whole)
    image = np.ones((*resident.shape, 3))
    for number in np.unique(bins):
        mine = bins == number
        image[mine] = 1 - strength[mine][..., None] * (1 - np.array(strong(hue(int(number)))))
    image[resident == 0] = 1
    return image


def write_image(file: Path, title: str, pictures: list[Picture], times: list[float], sizes: dict[int, int]) -> None:
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise FolioError(
            f"{file.name} needs matplotlib: pipx inject folio-tool matplotlib (or pip install 'folio-tool[plots]'), "
            "or write a page: -o map.html"
        ) from None
    last, many = pictures[-1], len(pictures) > 1
    figure = Figure(figsize=(15 if many else 10, 9), layout="constrained")
    axes = figure.subplots(1, 2 if many else 1, squeeze=False)[0]
    per_row = max(1, round((len(last.chunks) * last.resident.shape[1]) ** 0.5 / last.resident.shape[1]))
    image = colours(last.bins, last.resident, last.live, last.cell_bytes)
    pad = -len(last.chunks) % per_row
    image = np.concatenate([image, np.ones((pad, *image.shape[1:]))]).reshape(-1, per_row * image.shape[1], 3)
    axes[0].imshow(image, aspect="auto", interpolation="nearest")
    axes[0].set(
        xticks=[], ylabel="chunks, by address", title=f"{title}\nhue: what lies there; strength: how much is live"
    )
    labels = [int(address) for address in last.chunks[::per_row]]
    ticks = list(range(0, len(labels), max(1, len(labels) // 12)))
    axes[0].set_yticks(ticks, [hex(labels[i]) for i in ticks], family="monospace", fontsize=8)
    if many:
        _, bins, resident, live, each = over_time(pictures, TIME_ROWS_MOST)
        drawn = colours(bins, resident, live, each)
        axes[1].imshow(drawn, aspect="auto", interpolation="nearest", extent=(times[0], times[-1], len(bins), 0))
        axes[1].set(xlabel="seconds", yticks=[], title="the same addresses over time")
    entries = [
        Patch(color=strong(row["hue"] / 360), label=f"{row['name']}: {output.size(row['resident'])}")
        for row in legend(pictures, sizes)[:16]
    ]
    figure.legend(handles=entries, loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(file, dpi=110)


def sample(reader: Reader, every: float, times: int) -> tuple[list[Picture], list[float], bool]:
    """Until interrupted, where times is 0. Also: whether the process ended meanwhile."""
    pictures: list[Picture] = []
    at: list[float] = []
    begin = time.monotonic()
    try:
        while len(pictures) < (times or SAMPLES_MOST):
            if pictures:
                time.sleep(max(0.0, begin + every * len(pictures) - time.monotonic()))
            pictures.append(picture_of(reader.reading()))
            at.append(time.monotonic() - begin)
            if every and output.messages.is_terminal:
                output.messages.print(f"{len(pictures)} samples, Ctrl-C ends", end="\r")
    except KeyboardInterrupt:
        pass
    except ProcessGone as error:
        if not pictures:
            raise
        output.note(str(error))
        return pictures, at, True
    return pictures, at, False


def draw(pid: int, file: Path, every: float, times: int, json: bool) -> int:
    if file.suffix not in (".html", ".png", ".svg"):
        raise FolioError(f"{file}: a name that ends in .html, .png or .svg says what to draw")
    if not file.parent.is_dir():
        raise FolioError(f"{file.parent} is no folder: make it first")
    reader = Reader(pid)
    command = output.one_line(reader.process.command())
    pictures, at, ended = sample(reader, every, times if every else 1)
    if not pictures:
        return 130
    sizes = {info.number: info.size for info in reader.infos}
    title = f"process {pid}: {command}"
    if file.suffix == ".html":
        write_page(file, title, data_of(pictures, at, sizes))
    else:
        write_image(file, title, pictures, at, sizes)
    last = pictures[-1]
    if json:
        rows = [{key: value for key, value in row.items() if key != "hue"} for row in legend(pictures, sizes)]
        output.as_json({"version": 1, "pid": pid, "file": str(file), "samples": len(pictures), "parts": rows})
        return 0
    chunks = output.counted(len(last.chunks), "chunk")
    resident = output.size(int(last.resident.sum()))
    drawn = output.counted(len(pictures), "sample") if every else "one look"
    output.say(f"{file}: {chunks} of {output.size(last.chunk_bytes)}, {resident} resident; {drawn}")
    if ended:
        output.next_command(f"open {file} in a browser" if file.suffix == ".html" else f"look at {file}")
    elif every:
        output.next_command(f"folio doctor {pid}  (why the memory is there)")
    else:
        output.next_command(f"folio map {pid} -o {file} --every 1  (the same over time, until Ctrl-C)")
    return 0
