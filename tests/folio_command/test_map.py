"""folio map: its figures are those of doctor, its pages draw and tell what a cell is, its images are made."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import BROWSER, HEAP, folio_here, folio_json, heap, needs_browser
from folio.map import COLOURS, REST_DARK, REST_LIGHT, TIME_ROWS_MOST, legend, packed, rgb, shares
from folio.output import one_line
from folio.parts import explain
from folio.picture import HUGE, LARGE, Picture, cells_a_chunk, over_time, picture_of
from folio.reader import Reader

STILL = "decay:3600000,housekeeper:off,dirty_floor:1000"


@pytest.fixture(scope="module")
def known():
    with heap("known", options=STILL, program=HEAP) as (pid, said):
        yield pid, said


def test_a_picture_has_what_the_parts_have(known):
    reader = Reader(known[0])
    reading = reader.reading()
    parts, picture = explain(reader, reading), picture_of(reading)
    for number, expected in [(b.number, b) for b in parts.bins] + [(LARGE, parts.large), (HUGE, parts.huge)]:
        mine = picture.bins == number
        assert picture.live[mine].sum() == expected.live, number
        if number > 0:
            assert picture.resident[mine].sum() == expected.resident, number
            assert picture.cached[mine].sum() >= sum(expected.cached.values()), number
        else:
            held = expected.live + expected.cached + expected.dirty + expected.padding
            assert picture.resident[mine].sum() == held, number
            assert picture.cached[mine].sum() == expected.cached, number
    assert (picture.live + picture.cached <= picture.resident).all()
    assert (np.diff(picture.chunks) > 0).all()


def test_fewer_cells_hold_the_same(known):
    reading = Reader(known[0]).reading()
    fine, coarse = picture_of(reading), picture_of(reading, cells_most=1)
    assert fine.resident.shape[1] > coarse.resident.shape[1] == 1
    assert fine.resident.sum() == coarse.resident.sum()
    assert fine.live.sum() == coarse.live.sum()


def test_cells_fit_the_page():
    assert cells_a_chunk(100, 1 << 18) == 64
    for chunks in (5000, 50_000, 260_000):
        assert chunks * cells_a_chunk(chunks, 1 << 18) <= 1 << 18


def test_over_time_keeps_chunks_that_come_and_go(known):
    picture = picture_of(Reader(known[0]).reading())
    later = Picture(**{**picture.__dict__, **{
        name: getattr(picture, name)[:-1] for name in ("chunks", "bins", "resident", "live", "cached")
    }})  # fmt: skip
    addresses, bins, resident, live, each = over_time([picture, later], 1 << 20)
    assert len(addresses) == len(bins) == len(resident) == picture.resident.size
    assert each == picture.cell_bytes
    assert resident[:, 0].sum() == picture.resident.sum()
    assert resident[:, 1].sum() == later.resident.sum()
    assert live[:, 1].sum() == later.live.sum()


def test_shares_never_lose_a_byte():
    assert shares(np.array([0, 1, 500, 1000]), 1000).tolist() == [0, 1, 128, 255]
    assert packed(np.array([1, 2], dtype=np.uint8)) == "AQI="


@pytest.fixture(scope="module")
def page(known, tmp_path_factory):
    file = tmp_path_factory.mktemp("map") / "heap.html"
    done = folio_here("map", known[0], "-o", file, "--every", "0.1", "--times", "3")
    assert done.returncode == 0, done.stderr
    assert "3 samples" in done.stdout
    assert done.stdout.splitlines()[0] == one_line(f"process {known[0]}: {HEAP} known")
    assert done.stdout.splitlines()[-1].startswith("next: folio doctor")
    return file


def test_a_page_is_one_small_file(page, known):
    text = page.read_text()
    assert f"{one_line(f'process {known[0]}: {HEAP} known')}</h1>" in text
    assert "seconds since the first look" in text
    assert re.search(r"[\d.]+ MiB of objects resident in \d+ chunks of 256.0 KiB: [\d.]+ % live, ", text)
    assert len(text) < 5 << 20
    assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text


HOVER = """
<script>
const overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
for (const id of ["map", "time"]) {
  const canvas = document.getElementById(id), box = canvas.getBoundingClientRect();
  // The first cell with something: of the first chunk, in the first column of time.
  const samples = id === "map" ? 1 : data.over_time.times.length;
  const values = bytes((id === "map" ? data : data.over_time).resident);
  const cell = values.findIndex((value, i) => i % samples === 0 && value > 0) / samples;
  const [x, y] = id === "map" ? [cell, 0] : [0, cell];
  const [r, g, b, a] = canvas.getContext("2d").getImageData(x, y, 1, 1).data;
  const labels = (axis) => [...document.querySelectorAll(`#${id}-${axis} span`)].map((each) => each.textContent);
  canvas.dispatchEvent(new PointerEvent("pointermove", {
    clientX: box.left + (x + 0.5) * box.width / canvas.width,
    clientY: box.top + (y + 0.5) * box.height / canvas.height,
  }));
  const said = document.createElement("pre");
  said.className = "seen";
  said.textContent = JSON.stringify({id, tip: tip.textContent, shown: tip.style.visibility, width: canvas.width, a,
                                     colour: [r, g, b], y: labels("y"), x: labels("x"), dark: dark.matches,
                                     inner: innerWidth, overflow});
  document.body.append(said);
}
document.querySelector("#legend tr[data-number]").click();
</script>
"""


def browsed(file, *more):
    """The page as Chromium has it after its scripts."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"]
    done = subprocess.run([*command, *more, f"file://{file}"], capture_output=True, text=True, timeout=300)
    seen = [json.loads(text) for text in re.findall(r'<pre class="seen">(.*?)</pre>', done.stdout, re.DOTALL)]
    assert [each["id"] for each in seen] == ["map", "time"], done.stderr
    return done.stdout, seen


@pytest.fixture
def hovered(page, tmp_path):
    file = tmp_path / "hovered.html"
    file.write_text(page.read_text().replace("</html>", HOVER + "</html>"))
    return file


@needs_browser
@pytest.mark.parametrize(("scheme", "paper"), [("1", [255, 255, 255]), ("0", [22, 22, 22])], ids=["light", "dark"])
def test_pointing_at_a_cell_tells_what_it_is(hovered, known, scheme, paper):
    text, seen = browsed(hovered, f"--blink-settings=preferredColorScheme={scheme}")
    picture = picture_of(Reader(known[0]).reading())
    first = int(picture.chunks[0])
    rows, _, resident, _, _ = over_time([picture], TIME_ROWS_MOST)
    pointed = [first + int((picture.resident[0] > 0).argmax()) * picture.cell_bytes]
    pointed.append(int(rows[(resident[:, 0] > 0).argmax()]))
    for each, address in zip(seen, pointed, strict=True):
        assert each["dark"] == (scheme == "0")
        assert each["shown"] == "visible"
        assert each["tip"].startswith(hex(address))
        assert "resident" in each["tip"]
        assert each["a"] == 255, "drawn"
        assert each["colour"] != paper, "the first chunk has something"
        assert each["y"][0] == hex(first), "the axis begins with the first address"
        assert len(each["y"]) > 3
    assert seen[0]["x"][0] == "0"
    assert seen[0]["x"][-1].endswith(" MiB")
    assert seen[1]["x"][0] == "0"
    assert seen[1]["width"] % 3 == 0, "a column, or as many for each sample"
    assert 'aria-pressed="true"' in text, "a click chooses a line"


PHONE = """<!doctype html><iframe src="hovered.html" style="width: 390px; height: 800px; border: 0"></iframe>
<script>
onload = () => {
  const page = document.querySelector("iframe").contentDocument;
  document.body.append(...page.querySelectorAll(".seen"));
};
</script>
"""


@needs_browser
def test_a_phone_shows_all_of_it(hovered):
    wrapper = hovered.with_name("phone.html")
    wrapper.write_text(PHONE)
    for each in browsed(wrapper, "--allow-file-access-from-files")[1]:
        assert (each["inner"], each["overflow"]) == (390, 0)
        assert all(label.startswith("…") for label in each["y"]), "addresses without what they have in common"


# What people see who lack a kind of cones: Machado, Oliveira and Fernandes 2009, at full strength.
SIGHT = {
    "usual": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_CONES = [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
TO_OKLAB = [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]


@pytest.mark.parametrize(("sight", "least"), [("usual", 0.15), ("protan", 0.07), ("deutan", 0.07), ("tritan", 0.07)])
@pytest.mark.parametrize("rest", [REST_LIGHT, REST_DARK])
def test_colours_are_well_apart(sight, least, rest):
    """As distances in Oklab, where 0.02 is just seen."""
    linear = np.array([rgb(colour) for colour in (*COLOURS, rest)])
    linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.transpose(SIGHT[sight]), 0, 1)
    places = np.cbrt(seen @ np.transpose(TO_CONES)) @ np.transpose(TO_OKLAB)
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    assert apart[~np.eye(len(places), dtype=bool)].min() > least


def test_the_largest_kinds_have_the_colours(known):
    rows = legend([picture_of(Reader(known[0]).reading())], dict.fromkeys(range(200), 1))
    assert [row["resident"] for row in rows] == sorted((row["resident"] for row in rows), reverse=True)
    assert [row["colour"] for row in rows][: len(COLOURS)] == list(range(len(COLOURS)))
    assert all(row["colour"] is None for row in rows[len(COLOURS) :])


def test_an_image_is_made(known, tmp_path):
    pytest.importorskip("matplotlib")
    for name, more in [("one.png", []), ("many.png", ["--every", "0.1", "--times", "2"])]:
        done = folio_here("map", known[0], "-o", tmp_path / name, *more)
        assert done.returncode == 0, done.stderr
        data = (tmp_path / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) > 10_000


def test_without_matplotlib(known, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = folio_here("map", known[0], "-o", tmp_path / "a.png")
    says = f"folio map: a.png needs matplotlib: {sys.executable} -m pip install matplotlib, or -o map.html\n"
    assert (done.returncode, done.stderr) == (2, says)


def test_for_machines(known, tmp_path):
    found = folio_json("map", known[0], "-o", tmp_path / "map.html")
    assert found["samples"] == 1
    huge = next(row for row in found["parts"] if row["number"] == HUGE)
    parts = explain(Reader(known[0]))
    assert huge["live"] == parts.huge.live


@pytest.mark.parametrize(
    ("file", "says"), [("map.pdf", "ends in .html, .png or .svg"), ("nowhere/map.html", "is no folder")]
)
def test_wrong_names_are_one_line(known, tmp_path, file, says):
    done = folio_here("map", known[0], "-o", tmp_path / file)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
