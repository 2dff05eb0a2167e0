"""`folio map`: a picture of the heap by address, and of its memory over time, as a page or as an image."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from folio import output
from folio.errors import FolioError, NewProgram, ProcessGone, installing, writing
from folio.picture import GUARDED, HUGE, LARGE, Picture, over_time, picture_of
from folio.reader import Reader, of_new_program
from folio.source import Source

TIME_ROWS_MOST = 1500
SAMPLES_MOST = 1000
LEVELS = 255
# Six of the eight colours of Okabe and Ito, which people who see few colours tell apart too. The kinds of objects that
# have most memory get them, the first one the first; grey is for all others.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7")
REST_LIGHT, REST_DARK = "#555555", "#CCCCCC"
BACK_LIGHT, BACK_DARK = "#FFFFFF", "#161616"
PALE = 0.22  # of a colour, where nothing is live
PALETTE = {
    "colours": COLOURS,
    "rest_light": REST_LIGHT,
    "rest_dark": REST_DARK,
    "back_light": BACK_LIGHT,
    "back_dark": BACK_DARK,
    "pale": PALE,
}


def name_of(number: int, sizes: dict[int, int]) -> str:
    kinds = {LARGE: "large objects", HUGE: "huge objects", GUARDED: "guarded objects"}
    return kinds.get(number) or f"{sizes[number]:,} bytes"


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
                "chunks": int(mine.sum()),
                "resident": resident,
                "live": live,
                "cached": cached,
            }
        )
    rows.sort(key=lambda row: -row["resident"])
    for i, row in enumerate(rows):
        row["colour"] = i if i < len(COLOURS) else None
    return rows


def summary_of(pictures: list[Picture], seconds: float) -> str:
    """What the picture comes to, in a sentence."""
    last = pictures[-1]
    resident, live, cached = (int(a.sum()) for a in (last.resident, last.live, last.cached))
    free = max(resident - live - cached, 0)
    shares_of = [("live", live), ("cached", cached), ("free", free)]
    parts = ", ".join(f"{output.share(part, resident)} {name}" for name, part in shares_of)
    looked = f", after {output.counted(len(pictures), 'look')} in {seconds:.1f} s" if len(pictures) > 1 else ""
    chunks = output.counted(len(last.chunks), "chunk")
    return (
        f"{output.size(resident)} of objects resident in {chunks} of {output.size(last.chunk_bytes)}: {parts}{looked}."
    )


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


def write_page(file: Path, title: str, summary: str, data: dict[str, Any]) -> None:
    folder = files("folio")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(folder.joinpath("map.html.j2").read_text())
    script = folder.joinpath("map.js").read_text()
    file.write_text(
        template.render(title=title, summary=summary, data=data, palette=PALETTE, script=script, size=output.size)
    )


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def colours(bins: np.ndarray, resident: np.ndarray, live: np.ndarray, whole: int, kinds: dict[int, str]) -> np.ndarray:
    """An image: hue by bin, strength by what is live, white where nothing is resident."""
    strength = PALE + (1 - PALE) * (live / whole)
    image = np.ones((*resident.shape, 3))
    for number in np.unique(bins):
        mine = bins == number
        image[mine] = 1 - strength[mine][..., None] * (1 - rgb(kinds.get(int(number), REST_LIGHT)))
    image[resident == 0] = 1
    return image


def draw_addresses(axes: Any, last: Picture, kinds: dict[int, str]) -> None:
    cells = last.resident.shape[1]
    per_row = max(1, round((len(last.chunks) * cells) ** 0.5 / cells))
    image = colours(last.bins, last.resident, last.live, last.cell_bytes, kinds)
    pad = -len(last.chunks) % per_row
    image = np.concatenate([image, np.ones((pad, *image.shape[1:]))]).reshape(-1, per_row * cells, 3)
    width = per_row * last.chunk_bytes / (1 << 20)
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=(0, width, len(image), 0))
    each = output.size(last.chunk_bytes)
    in_line = f"a line is a chunk of {each}" if per_row == 1 else f"a line is {per_row} chunks of {each}"
    axes.set(xlabel=f"MiB ({in_line})", ylabel="address", title="By address")
    labels = [int(address) for address in last.chunks[::per_row]]
    ticks = list(range(0, len(labels), max(1, len(labels) // 12)))
    axes.set_yticks([i + 0.5 for i in ticks], [hex(labels[i]) for i in ticks], family="monospace", fontsize=8)


def draw_time(axes: Any, pictures: list[Picture], times: list[float], kinds: dict[int, str]) -> None:
    addresses, bins, resident, live, each = over_time(pictures, TIME_ROWS_MOST)
    drawn = colours(bins, resident, live, each, kinds)
    axes.imshow(drawn, aspect="auto", interpolation="nearest", extent=(times[0], times[-1], len(bins), 0))
    ticks = range(0, len(addresses), max(1, len(addresses) // 12))
    axes.set_yticks([i + 0.5 for i in ticks], [hex(int(addresses[i])) for i in ticks], family="monospace", fontsize=8)
    axes.set(xlabel="seconds since the first look", title="Over time: the same addresses")


def write_image(
    file: Path, title: str, summary: str, pictures: list[Picture], times: list[float], sizes: dict[int, int]
) -> None:
    try:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LinearSegmentedColormap, Normalize
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise FolioError(f"{file.name} needs matplotlib: {installing('matplotlib')}, or -o map.html") from None
    rows, many = legend(pictures, sizes), len(pictures) > 1
    kinds = {row["number"]: COLOURS[row["colour"]] for row in rows if row["colour"] is not None}
    figure = Figure(figsize=(15 if many else 10, 9), layout="constrained")
    figure.suptitle(f"{title}\n{summary}", fontsize=11)
    axes = figure.subplots(1, 2 if many else 1, squeeze=False)[0]
    draw_addresses(axes[0], pictures[-1], kinds)
    if many:
        draw_time(axes[1], pictures, times, kinds)
    shown = [(kinds[row["number"]], row["name"], row["resident"]) for row in rows if row["number"] in kinds]
    if others := rows[len(shown) :]:
        shown.append((REST_LIGHT, f"{len(others)} other sizes", sum(row["resident"] for row in others)))
    entries = [Patch(color=colour, label=f"{name}: {output.size(resident)}") for colour, name, resident in shown]
    entries.append(Patch(facecolor="white", edgecolor="#999999", label="nothing resident"))
    figure.legend(handles=entries, loc="outside lower center", ncols=4, fontsize=9)
    pale = tuple(1 - PALE * (1 - rgb(REST_LIGHT)))
    ramp = LinearSegmentedColormap.from_list("live", [pale, REST_LIGHT])
    bar = figure.colorbar(ScalarMappable(Normalize(0, 100), ramp), ax=list(axes), fraction=0.02, pad=0.01, aspect=40)
    bar.set_label("% of a cell that is live, as the strength of each hue")
    figure.savefig(file, dpi=110)


@dataclass(frozen=True)
class Program:
    command: str
    title: str


def program_of(source: Source) -> Program:
    return Program(source.command(), source.title())


def sample(reader: Reader, every: float, times: int) -> tuple[list[Picture], list[float], Program, bool]:
    """Until interrupted, where times is 0. Also: whose they are, and whether it ended meanwhile."""
    pictures: list[Picture] = []
    at: list[float] = []  # from the first look on
    program = program_of(reader.process)
    begin = time.monotonic()
    try:
        while len(pictures) < (times or SAMPLES_MOST):
            if pictures:
                time.sleep(max(0.0, begin + every * len(pictures) - time.monotonic()))
            try:
                picture = picture_of(reader.reading())
            except NewProgram:
                reader = of_new_program(reader.process.pid)
                program = program_of(reader.process)
                output.note_new_program(reader.process.pid, program.command)
                pictures.clear()
                at.clear()
                begin = time.monotonic()
                continue
            pictures.append(picture)
            at.append(time.monotonic() - begin)
            if len(pictures) == 1:
                begin, at[0] = begin + at[0], 0.0
            if every and output.messages.is_terminal:
                output.messages.print(f"{len(pictures)} samples, Ctrl-C ends", end="\r")
    except KeyboardInterrupt:
        pass
    except ProcessGone as error:
        if not pictures:
            raise
        output.note(str(error))
        return pictures, at, program, True
    return pictures, at, program, False


def draw(target: str, file: Path, every: float, times: int, json: bool) -> int:
    if file.suffix not in (".html", ".png", ".svg"):
        raise FolioError(f"{file}: a name that ends in .html, .png or .svg says what to draw")
    if not file.parent.is_dir():
        raise FolioError(f"{file.parent} is no folder: make it first")
    reader = Reader(target)
    source, target = reader.process, reader.process.target
    if every and source.still:
        source.must_be_running("--every")
    pictures, at, program, ended = sample(reader, every, times if every else 1)
    if not pictures:
        return 130
    sizes = {info.number: info.size for info in reader.infos}
    title, summary = output.one_line(program.title), summary_of(pictures, at[-1])
    if not source.tells_pages:
        summary = summary.replace(" resident in ", " held in ", 1)
        summary += " Held is what Folio accounts for: a core does not tell what was resident."
    with writing(file):
        if file.suffix == ".html":
            write_page(file, title, summary, data_of(pictures, at, sizes))
        else:
            write_image(file, title, summary, pictures, at, sizes)
    if json:
        rows = [{key: value for key, value in row.items() if key != "colour"} for row in legend(pictures, sizes)]
        output.as_json(
            {
                "version": 1,
                "pid": source.pid,
                "source": source.kind,
                "command": program.command,
                "pages_known": source.tells_pages,
                "file": str(file),
                "samples": len(pictures),
                "parts": rows,
            }
        )
        return 0
    drawn = output.counted(len(pictures), "sample") if every else "one look"
    output.say(title)
    output.indented(summary, 0)
    output.say(f"written: {file} ({drawn})")
    if ended:
        output.next_command(f"open {file} in a browser" if file.suffix == ".html" else f"look at {file}")
    elif every or source.still:
        output.next_command(f"folio doctor {target}  (why the memory is there)")
    else:
        output.next_command(f"folio map {target} -o {file} --every 1  (the same over time, until Ctrl-C)")
    return 0
