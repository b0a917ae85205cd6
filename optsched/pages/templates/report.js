"use strict";
(() => {
  const NS = "http://www.w3.org/2000/svg";

  // Tables: sorted by a click on a header, filtered by words.
  const value = (cell) => {
    const given = cell.dataset.v ?? cell.textContent.trim();
    return given === "inf" ? Infinity : given === "" || isNaN(given) ? given : Number(given);
  };
  const order = (a, b) =>
    typeof a === "number" && typeof b === "number" ? (a === b ? 0 : a - b) : String(a).localeCompare(String(b), "en", { numeric: true });
  for (const table of document.querySelectorAll("table")) {
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, column) => {
      header.firstElementChild.addEventListener("click", () => {
        const up = header.getAttribute("aria-sort") !== "ascending";
        for (const other of headers) other.removeAttribute("aria-sort");
        header.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0];
        const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * order(value(a.cells[column]), value(b.cells[column])));
        body.append(...rows);
      });
    });
  }
  for (const input of document.querySelectorAll("input[data-table]")) {
    const rows = [...document.getElementById(input.dataset.table).tBodies[0].rows];
    const output = input.closest(".filter").querySelector("output");
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      output.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    });
  }

  // Schedules.
  const which = document.getElementById("which");
  if (!which) return;
  const packed = {};
  for (const [key, text] of Object.entries(JSON.parse(document.getElementById("data").textContent))) packed[key.slice(0, 16)] = text;
  const svg = document.getElementById("view");
  const said = document.getElementById("said");
  const RIGHT = 8;
  let view = null;
  let from = 0;
  let until = 1;

  const unpacked = async (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  };
  const prepared = (found) => {
    for (const row of found.rows) {
      const [, , , , flat] = row;
      const bars = [];
      let last = 0;
      for (let place = 0; place < flat.length; place += 3) {
        const start = last + flat[place + 1];
        last = start + flat[place + 2];
        bars.push([found.activities[flat[place]], start, last]);
      }
      row[4] = bars;
    }
    if (found.kv) {
      let time = 0;
      const points = [];
      for (let place = 0; place < found.kv.points.length; place += 2) {
        time += found.kv.points[place];
        points.push([time, found.kv.points[place + 1]]);
      }
      found.kv.points = points;
    }
    const ps = found.end * found.tick_ps;
    const [unit, scale] = ps < 1e7 ? ["ps", 1] : ps < 2e9 ? ["µs", 1e6] : ps < 2e12 ? ["ms", 1e9] : ["s", 1e12];
    found.unit = unit;
    found.scale = scale / found.tick_ps;
    return found;
  };
  const time = (ticks) => (ticks / view.scale).toLocaleString("en", { maximumFractionDigits: 3 });

  const add = (parent, name, attributes, text) => {
    const element = document.createElementNS(NS, name);
    for (const [key, given] of Object.entries(attributes)) element.setAttribute(key, given);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  };
  const described = (parent, text) => add(parent, "title", {}, text);
  const HEIGHTS = { wait: 0.12, keep: 0.34, host: 0.2 };
  const markClass = (change) => (change === "hit" ? "mark found" : change.startsWith("move") ? "mark moved" : "mark");
  const markPath = (change, x, y, r) =>
    change === "evict" ? `M${x - r} ${y - r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}`
    : change === "hit" ? `M${x} ${y - r}l${r} ${r}l${-r} ${r}l${-r} ${-r}Z`
    : change === "swap out" ? `M${x - r} ${y - r}h${2 * r}l${-r} ${2 * r}Z`
    : change === "swap in" ? `M${x - r} ${y + r}h${2 * r}l${-r} ${-2 * r}Z`
    : change === "move out" ? `M${x - r} ${y - r}v${2 * r}l${2 * r} ${-r}Z`
    : `M${x + r} ${y - r}v${2 * r}l${-2 * r} ${-r}Z`;

  const step = (span) => {
    const power = 10 ** Math.floor(Math.log10(span / 4));
    return [1, 2, 5, 10].map((factor) => factor * power).find((each) => span / each <= 6);
  };

  const draw = () => {
    if (!view) return;
    const width = Math.max(280, svg.clientWidth);
    const many = view.rows.length > 24;
    const left = many ? 44 : Math.min(130, 14 + 7 * Math.max(...view.rows.map((row) => row[2].length)));
    const rowHeight = many ? Math.max(4, Math.min(12, Math.round(900 / view.rows.length))) : 22;
    const kvHeight = view.kv ? 60 : 0;
    const x = (ticks) => left + ((ticks / view.end - from) / (until - from)) * (width - left - RIGHT);
    while (svg.childNodes.length > 1) svg.lastChild.remove();
    const clip = add(svg, "clipPath", { id: "inside" });
    const drawing = add(svg, "g", { "clip-path": "url(#inside)" });
    const labels = add(svg, "g", {});
    let y = 6;
    let machine = null;
    const places = [];
    view.rows.forEach((row, number) => {
      if (view.machines > 1 && row[0] !== machine) {
        machine = row[0];
        add(labels, "text", { class: "lane", x: 0, y: y + 14 }, `machine ${machine}`);
        y += 22;
      }
      places.push(y);
      if (!many || number % 10 === 0) {
        add(labels, "text", { x: left - 6, y: y + Math.min(rowHeight, 22) * 0.68, "text-anchor": "end" }, many ? row[1] : row[2]);
      }
      for (const [activity, start, end] of row[4]) {
        const a = x(start);
        const b = x(end);
        if (b < left || a > width) continue;
        const height = (HEIGHTS[activity] ?? 0.86) * rowHeight;
        const room = b - a > 4 && !(activity in HEIGHTS) ? 1 : 0;
        const box = { class: activity, x: a.toFixed(1), width: Math.max(0.5, b - a - room).toFixed(1), height: height.toFixed(1) };
        const drawn = add(drawing, "rect", { ...box, y: (y + (rowHeight - height) / 2).toFixed(1) });
        described(drawn, `request ${row[1]}: ${activity}, ${time(start)} to ${time(end)} ${view.unit}`);
      }
      y += rowHeight;
    });
    for (const [row, change, ticks, tokens] of view.marks) {
      const name = view.changes[change];
      const drawn = add(drawing, "path", { class: markClass(name), d: markPath(name, x(ticks), places[row] + rowHeight / 2, many ? 3 : 5) });
      described(drawn, `request ${view.rows[row][1]}: ${name}, ${tokens} tokens, ${time(ticks)} ${view.unit}`);
    }
    y += 8;
    if (view.kv) {
      const level = (tokens) => y + kvHeight - (tokens / view.kv.capacity) * kvHeight;
      let path = "";
      let last = null;
      for (const [ticks, tokens] of view.kv.points) {
        path += last === null ? `M${x(ticks).toFixed(1)} ${level(0)}` : `H${x(ticks).toFixed(1)}`;
        path += `V${level(tokens).toFixed(1)}`;
        last = tokens;
      }
      add(drawing, "path", { class: "kv", d: `${path}H${x(view.end).toFixed(1)}V${level(0)}` });
      add(drawing, "line", { class: "grid", x1: left, x2: width, y1: y, y2: y });
      add(labels, "text", { x: left - 6, y: y + 10, "text-anchor": "end" }, view.kv.capacity);
      add(labels, "text", { x: left - 6, y: y + kvHeight, "text-anchor": "end" }, "KV");
      y += kvHeight;
    }
    const first = (from * view.end) / view.scale;
    const lastTime = (until * view.end) / view.scale;
    const every = step(lastTime - first);
    for (let at = Math.ceil(first / every) * every; at <= lastTime + 1e-9; at += every) {
      const place = x(at * view.scale);
      drawing.prepend(add(drawing, "line", { class: "grid", x1: place, x2: place, y1: 0, y2: y }));
      const anchor = place > width - 30 ? "end" : "middle";
      add(labels, "text", { x: place, y: y + 16, "text-anchor": anchor }, Number(at.toPrecision(6)).toLocaleString("en"));
    }
    add(labels, "text", { x: 0, y: y + 16 }, view.unit);
    y += 24;
    add(clip, "rect", { x: left, y: 0, width: width - left - RIGHT + 6, height: y });
    svg.setAttribute("viewBox", `0 0 ${width} ${y}`);
    svg.setAttribute("height", y);
    said.textContent = `${time(from * view.end)} to ${time(until * view.end)} of ${time(view.end)} ${view.unit}; ${view.batches} batches, ${view.marks.filter((mark) => view.changes[mark[1]] === "evict").length} evictions`;
  };

  const describe = () => {
    const name = which.selectedOptions[0].textContent;
    document.getElementById("view-title").textContent = `${name}: ${view.rows.length} rows of requests, ${view.batches} batches, ends at ${time(view.end)} ${view.unit}`;
    document.getElementById("provenance").href = `#t-${which.value}`;
    const kinds = document.getElementById("kinds");
    kinds.replaceChildren();
    const activities = new Set(view.rows.flatMap((row) => row[4].map((bar) => bar[0])));
    const label = { keep: "keeps KV", host: "KV on the host", wait: "waits" };
    for (const activity of view.activities.filter((each) => activities.has(each))) {
      const item = document.createElement("li");
      const swatch = document.createElement("i");
      swatch.className = activity;
      item.append(swatch, label[activity] ?? activity);
      kinds.append(item);
    }
    for (const change of view.changes.filter((_, number) => view.marks.some((mark) => mark[1] === number))) {
      const item = document.createElement("li");
      const picture = add(item, "svg", { "aria-hidden": "true" });
      add(picture, "path", { class: markClass(change), d: markPath(change, 13, 7, 5) });
      item.append(change);
      kinds.append(item);
    }
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    const columns = ["request", "machine", "first run", "last end", "evictions"];
    for (const column of columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = column === "first run" || column === "last end" ? `${column} (${view.unit})` : column;
      head.append(cell);
    }
    const body = table.createTBody();
    for (const [machine, , shown, evictions, bars] of view.rows) {
      const runs = bars.filter((bar) => !(bar[0] in HEIGHTS));
      const row = body.insertRow();
      for (const text of [shown, machine, runs.length ? time(runs[0][1]) : "–", runs.length ? time(runs.at(-1)[2]) : "–", evictions]) row.insertCell().textContent = text;
    }
    document.querySelector("#as-table div").replaceChildren(table);
  };

  const show = async (key) => {
    which.value = key;
    view = prepared(await unpacked(packed[key]));
    from = 0;
    until = 1;
    describe();
    draw();
  };
  const zoom = (factor, centre = (from + until) / 2) => {
    const width = factor ? Math.min(1, Math.max(1e-5, (until - from) / factor)) : 1;
    const share = (centre - from) / (until - from);
    from = factor ? Math.max(0, Math.min(1 - width, centre - share * width)) : 0;
    until = from + width;
    draw();
  };
  const move = (share) => {
    const width = until - from;
    from = Math.max(0, Math.min(1 - width, from + share * width));
    until = from + width;
    draw();
  };
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => zoom(Number(button.dataset.zoom)));
  for (const button of document.querySelectorAll("[data-move]")) button.addEventListener("click", () => move(Number(button.dataset.move) / 4));
  const KEYS = { "+": () => zoom(2), "=": () => zoom(2), "-": () => zoom(0.5), 0: () => zoom(0), ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25) };
  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.3 : 1 / 1.3, from + (event.offsetX / svg.clientWidth) * (until - from));
  }, { passive: false });
  let held = null;
  svg.addEventListener("pointerdown", (event) => {
    held = event.clientX;
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (held === null) return;
    move((held - event.clientX) / svg.clientWidth);
    held = event.clientX;
  });
  for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => (held = null));
  which.addEventListener("change", () => show(which.value));
  addEventListener("resize", draw);
  const go = () => {
    const target = decodeURIComponent(location.hash.slice(1));
    const key = target.slice(2);
    if (target.startsWith("s-") && packed[key]) {
      show(key).then(() => {
        document.getElementById("schedule").scrollIntoView();
        svg.focus({ preventScroll: true });
      });
      return true;
    }
    if (target.startsWith("t-")) document.getElementById(target)?.focus();
    return false;
  };
  addEventListener("hashchange", go);
  if (!go()) show(which.value);
})();
