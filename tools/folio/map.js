// Draws the page of `folio map` from its data: canvases of one pixel a cell, axes around them, what a cell is.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const palette = JSON.parse(document.getElementById("palette").textContent);
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const kinds = new Map(data.legend.map((row) => [row.number, row]));
const dark = matchMedia("(prefers-color-scheme: dark)");
const element = (id) => document.getElementById(id);
const tip = element("tip");
let only = null;

function size(n) {
  for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (n >= scale) return +(n / scale).toFixed(n / scale < 10 ? 1 : 0) + " " + unit;
  }
  return Math.round(n) + " B";
}

const hex = (address) => "0x" + address.toString(16);
const rgb = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
const paper = () => rgb(dark.matches ? palette.back_dark : palette.back_light);
const rest = () => rgb(dark.matches ? palette.rest_dark : palette.rest_light);

// From nearly the paper's colour to the kind's own, by what is live (0 to 255).
function mixed(colour, live) {
  const share = palette.pale + (1 - palette.pale) * live / 255;
  return paper().map((channel, i) => Math.round(channel + share * (colour[i] - channel)));
}

// Looked up for each cell, so made once for each kind and share.
function shadesOf() {
  const made = new Map();
  for (const [number, row] of kinds) {
    const chosen = only === null || only === number;
    const colour = row.colour === null ? rest() : rgb(palette.colours[row.colour]);
    const faded = paper().map((channel, i) => channel + 0.25 * (rest()[i] - channel));
    made.set(number, Array.from({length: 256}, (_, live) => mixed(chosen ? colour : faded, live)));
  }
  return made;
}

// Draws cells (x, y) into a canvas of a pixel each, or of several side by side, so that columns stay sharp where rows are
// squeezed; at(x, y) is {number, resident, live} or null.
function paint(canvas, width, height, at) {
  const squeezed = height > canvas.clientHeight;
  const repeat = squeezed ? Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio / width)) : 1;
  canvas.width = width * repeat;
  canvas.height = Math.max(height, 1);
  canvas.style.imageRendering = squeezed ? "auto" : "pixelated";
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
  const shades = shadesOf(), none = paper();
  for (let y = 0; y < height; ++y) {
    for (let x = 0; x < width; ++x) {
      const cell = at(x, y);
      if (cell === null) continue;
      const [r, g, b] = cell.resident === 0 ? none : shades.get(cell.number)[cell.live];
      for (let i = 0; i < repeat; ++i) image.data.set([r, g, b, 255], 4 * ((y * width + x) * repeat + i));
    }
  }
  context.putImageData(image, 0, 0);
}

// `figure` is {width, height, tell(x, y)}, as last drawn.
function hover(canvas, figure) {
  const show = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = Math.min(figure.width - 1, Math.floor((event.clientX - box.left) / box.width * figure.width));
    const y = Math.min(figure.height - 1, Math.floor((event.clientY - box.top) / box.height * figure.height));
    const text = x < 0 || y < 0 ? null : figure.tell(x, y);
    tip.style.visibility = text === null ? "hidden" : "visible";
    if (text === null) return;
    tip.textContent = text;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
    const below = event.clientY + 18 + tip.offsetHeight < innerHeight;
    tip.style.top = (below ? event.clientY + 14 : event.clientY - tip.offsetHeight - 14) + "px";
  };
  canvas.addEventListener("pointermove", show);
  canvas.addEventListener("pointerdown", show);
  canvas.addEventListener("pointerleave", () => { tip.style.visibility = "hidden"; });
}

// Labels [[place from 0 to 1, text], ...] along an axis.
function axis(node, side, labels) {
  node.replaceChildren(...labels.map(([place, text]) => {
    const label = document.createElement("span");
    label.style[side] = 100 * place + "%";
    label.className = place === 0 ? "start" : place === 1 ? "end" : "";
    label.textContent = text;
    return label;
  }));
}

// Addresses along the y axis; address(i) is that of row i.
function addressAxis(node, title, rows, height, address) {
  const count = Math.max(1, Math.min(rows, Math.floor(height / 26)));
  const step = Math.ceil(rows / count), labels = [];
  const narrow = innerWidth < 600, texts = [];
  for (let row = 0; row < rows; row += step) texts.push(hex(address(row)));
  let common = 0;
  while (narrow && texts.length > 1 && texts.every((t) => t.length === texts[0].length && t[common] === texts[0][common])) {
    ++common;
  }
  common = common > 4 ? common : 0;
  texts.forEach((text, i) => labels.push([(i * step + 0.5) / rows, common ? "…" + text.slice(common) : text]));
  axis(node, "top", labels);
  const room = document.createElement("i");  // as wide as the widest of them
  room.textContent = labels.reduce((widest, [, text]) => text.length > widest.length ? text : widest, "");
  node.append(room);
  element(title).textContent = common ? `address, all of them ${texts[0].slice(0, common)}…` : "address";
}

// About `most` round steps from `from` to `to`, and both ends.
function timeTicks(from, to, most) {
  if (to <= from) return [[0, from + " s"]];
  const rough = (to - from) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to + step / 1e6; at += step) {
    ticks.push([(at - from) / (to - from), String(+at.toFixed(6))]);
  }
  return ticks;
}

function makeMap() {
  const [resident, live, cached] = [bytes(data.resident), bytes(data.live), bytes(data.cached)];
  const n = data.chunks.length, cells = data.cells, cellBytes = data.chunk_bytes / cells;
  const canvas = element("map"), figure = {};
  hover(canvas, figure);
  return () => {
    // About three times as wide as high, and cells that a finger or an eye still finds.
    const wanted = Math.max(1, Math.round(Math.sqrt(3 * n * cells) / cells));
    const fits = Math.max(1, Math.floor(canvas.clientWidth / (4 * cells)), Math.ceil(n / 300));
    const perLine = Math.max(1, Math.min(wanted, fits, n)), lines = Math.ceil(n / perLine), width = perLine * cells;
    const index = (x, y) => (y * perLine + Math.floor(x / cells)) * cells + x % cells;
    const at = (x, y) => {
      const i = index(x, y), chunk = Math.floor(i / cells);
      return chunk >= n ? null : {number: data.bins[chunk], resident: resident[i], live: live[i]};
    };
    const height = Math.max(40, Math.min(900, lines * 14));
    canvas.style.height = height + "px";
    Object.assign(figure, {width, height: lines, tell: (x, y) => {
      const i = index(x, y), chunk = Math.floor(i / cells);
      if (chunk >= n) return null;
      const from = BigInt(data.chunks[chunk]) + BigInt((i % cells) * cellBytes);
      const part = (values) => size(values[i] / 255 * cellBytes);
      const number = data.bins[chunk], bin = number > 0 ? ` (bin ${number})` : "";
      return `${hex(from)}\nto ${hex(from + BigInt(cellBytes))}\n${kinds.get(number).name}${bin}\n` +
          `resident ${part(resident)} of ${size(cellBytes)}\nlive ${part(live)}, cached ${part(cached)}`;
    }});
    paint(canvas, width, lines, at);
    addressAxis(element("map-y"), "map-title", lines, height, (line) => BigInt(data.chunks[line * perLine]));
    const stops = perLine > 1 && perLine < 13 ? perLine : 4;
    axis(element("map-x"), "left", Array.from({length: stops + 1}, (_, i) =>
        [i / stops, +(i / stops * perLine * data.chunk_bytes / 2 ** 20).toFixed(1) + (i === stops ? " MiB" : "")]));
    element("map-below").textContent = perLine === 1 ? "offset in the chunk of each line" :
        `in each line ${perLine} chunks of ${size(data.chunk_bytes)}`;
  };
}

function makeTime() {
  const t = data.over_time;
  if (t === null) return () => {};
  const [resident, live] = [bytes(t.resident), bytes(t.live)];
  const width = t.times.length, rows = t.bins.length, canvas = element("time");
  const at = (x, y) => ({number: t.bins[y], resident: resident[y * width + x], live: live[y * width + x]});
  const figure = {width, height: rows, tell: (x, y) => {
    const cell = at(x, y), part = (value) => size(value / 255 * t.row_bytes);
    return `${t.addresses[y]}, ${size(t.row_bytes)}\nafter ${t.times[x]} s\n${kinds.get(cell.number).name}\n` +
        `resident ${part(cell.resident)}, live ${part(cell.live)}`;
  }};
  hover(canvas, figure);
  return () => {
    const height = Math.max(60, Math.min(900, rows * 3));
    canvas.style.height = height + "px";
    paint(canvas, width, rows, at);
    addressAxis(element("time-y"), "time-title", rows, height, (row) => BigInt(t.addresses[row]));
    axis(element("time-x"), "left", timeTicks(t.times[0], t.times[width - 1], canvas.clientWidth < 500 ? 4 : 8));
  };
}

const draws = [makeMap(), makeTime()];
function drawAll() {
  const ramp = [0, 255].map((live) => `rgb(${mixed(rest(), live).join(" ")})`);
  element("ramp").style.background = `linear-gradient(to right, ${ramp.join(", ")})`;
  draws.forEach((draw) => draw());
}
function choose(row) {
  const number = Number(row.dataset.number);
  only = only === number ? null : number;
  for (const each of document.querySelectorAll("#legend tr[data-number]")) {
    each.setAttribute("aria-pressed", only === Number(each.dataset.number));
  }
  drawAll();
}
for (const row of document.querySelectorAll("#legend tr[data-number]")) {
  row.addEventListener("click", () => choose(row));
  row.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(row);
  });
}
dark.addEventListener("change", drawAll);
addEventListener("resize", drawAll);
drawAll();
