"""folio map: its figures are those of doctor, its pages draw and tell what a cell is, its images are made."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from conftest import HEAP, folio_here, folio_json, heap
from folio.map import packed, shares
from folio.parts import explain
from folio.picture import HUGE, LARGE, Picture, cells_a_chunk, over_time, picture_of
from folio.reader import Reader

STILL = "decay:3600000,housekeeper:off,dirty_floor:1000"
BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")


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
    assert done.stdout.splitlines()[-1].startswith("next: folio doctor")
    return file


def test_a_page_is_one_small_file(page):
    text = page.read_text()
    assert len(text) < 5 << 20
    assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text


HOVER = """
<script>
for (const id of ["map", "time"]) {
  const canvas = document.getElementById(id), box = canvas.getBoundingClientRect();
  const [r, g, b, a] = canvas.getContext("2d").getImageData(0, 0, 1, 1).data;
  canvas.dispatchEvent(new MouseEvent("mousemove", {clientX: box.left + 1, clientY: box.top + 1}));
  const said = document.createElement("pre");
  said.className = "seen";
  said.textContent = JSON.stringify({id, tip: tip.textContent, shown: tip.style.visibility, width: canvas.width, a,
                                     grey: r === g && g === b});
  document.body.append(said);
}
document.querySelector("#legend tr[data-number]").click();
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium-headless-shell")
def test_pointing_at_a_cell_tells_what_it_is(page, known, tmp_path):
    hovered = tmp_path / "hovered.html"
    hovered.write_text(page.read_text().replace("</html>", HOVER + "</html>"))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"]
    done = subprocess.run([*command, f"file://{hovered}"], capture_output=True, text=True, timeout=300)
    seen = [json.loads(text) for text in re.findall(r'<pre class="seen">(.*?)</pre>', done.stdout, re.DOTALL)]
    assert [each["id"] for each in seen] == ["map", "time"], done.stderr
    picture = picture_of(Reader(known[0]).reading())
    first = hex(int(picture.chunks[0]))
    for each in seen:
        assert each["shown"] == "visible"
        assert first in each["tip"]
        assert "resident" in each["tip"]
        assert each["a"] == 255, "drawn"
        assert not each["grey"], "in a colour: the first chunk has something"
    assert seen[1]["width"] == 3, "a column for each sample"
    assert 'aria-pressed="true"' in done.stdout, "a click chooses a line"


def test_an_image_is_made(known, tmp_path):
    pytest.importorskip("matplotlib")
    for name, more in [("one.png", []), ("many.png", ["--every", "0.1", "--times", "2"])]:
        done = folio_here("map", known[0], "-o", tmp_path / name, *more)
        assert done.returncode == 0, done.stderr
        data = (tmp_path / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) > 10_000


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
