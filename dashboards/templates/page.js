"use strict";
// Text from Records enters the document as text nodes only; the state lives in the address after '#'.
(() => {
  const $ = (id) => document.getElementById(id);
  const blocks = [...document.querySelectorAll("script[data-name]")];
  const shared = JSON.parse($("shared").textContent);
  const parsed = new Map();
  const state = { q: 0, sort: "", dir: "", show: "", row: "", theme: "", notes: "" };

  const KEPT = ["sort", "dir", "show", "row", "theme", "notes"];

  function make(tag, text, properties = {}) {
    const element = document.createElement(tag);
    if (text !== undefined && text !== null) element.textContent = text;
    for (const [name, value] of Object.entries(properties)) {
      if (name in element) element[name] = value;
      else element.setAttribute(name, value);
    }
    return element;
  }

  // the page holds rows as lists, since hundreds of boards would repeat the name of every field
  function unpackedRows([fields, rows]) {
    return rows.map((row) => Object.fromEntries(fields.map((field, at) => [field, row[at]])));
  }

  function unpacked(block) {
    const found = JSON.parse(block.textContent);
    fill(found.board);
    found.records = unpackedRows(found.records);
    return found;
  }

  function fill(board) {
    board.columns = shared.columns[board.columns];
    for (const row of board.rows) {
      row.entries = Object.fromEntries(board.columns.map(({ name }) => {
        const [text, value, note] = row.entries[name] || ["", null, ""];
        return [name, { text, value, note }];
      }));
    }
    board.parts.forEach(fill);
  }

  function report() {
    if (!parsed.has(state.q)) parsed.set(state.q, unpacked(blocks[state.q]));
    return parsed.get(state.q);
  }

  function readAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const at = blocks.findIndex((block) => block.dataset.name === given.get("q"));
    state.q = at < 0 ? 0 : at;
    for (const name of KEPT) state[name] = given.get(name) || "";
  }

  function writeAddress() {
    const kept = new URLSearchParams();
    if (blocks.length) kept.set("q", blocks[state.q].dataset.name);
    for (const name of KEPT) if (state[name]) kept.set(name, state[name]);
    history.replaceState(null, "", "#" + kept);
  }

  function dark() {
    return state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function ordered(board) {
    const wanted = state.show.toLowerCase();
    const kept = board.rows.filter((row) => row.name.toLowerCase().includes(wanted));
    if (!state.sort) return kept;
    const sign = state.dir === "desc" ? -1 : 1;
    const value = (row) => (state.sort === "variant" ? row.name : row.entries[state.sort]?.value ?? null);
    return kept.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (x < y ? -1 : x > y ? 1 : 0) || (a.name < b.name ? -1 : 1);
    });
  }

  function filledColumns(board) {
    return board.columns.filter((c) => board.rows.some((row) => row.entries[c.name].text));
  }

  function description(column) {
    return `${column.description} (${column.unit || "text"})`;
  }

  function shown(entry) {
    return entry.text + (entry.note.length === 1 ? " " + entry.note : "");
  }

  function heading(label, name, title, better) {
    const cell = make("th", null, { scope: "col" });
    const button = make("button", label, { type: "button", title });
    if (state.sort === name) cell.setAttribute("aria-sort", state.dir === "desc" ? "descending" : "ascending");
    button.addEventListener("click", () => {
      // the good end first, then the other end, then the order of ranks again
      const first = better === "higher" ? "desc" : "asc";
      if (state.sort !== name) [state.sort, state.dir] = [name, first];
      else if (state.dir === first) state.dir = first === "asc" ? "desc" : "asc";
      else [state.sort, state.dir] = ["", ""];
      drawTable();
      writeAddress();
      [...document.querySelectorAll("th button")].find((b) => b.textContent === button.textContent)?.focus();
    });
    cell.append(button);
    return cell;
  }

  function drawTable() {
    const { board } = report();
    const columns = filledColumns(board);
    const table = $("table");
    const head = make("tr");
    head.append(heading("rank", "", "95 % rank interval; ties in alphabetical order", ""));
    head.append(heading("variant", "variant", "name with parameters", ""));
    for (const c of columns) head.append(heading(c.heading, c.name, description(c), c.better));
    head.firstChild.firstChild.disabled = false;
    const body = make("tbody");
    const rows = ordered(board);
    let before = null;
    for (const row of rows) {
      const group = `${row.kind}/${row.group}`;
      const line = make("tr", null, { className: row.kind });
      if (!state.sort && before !== null && before !== group) line.classList.add("cut");
      before = group;
      line.append(make("td", row.place || (row.kind === "baseline" ? "·" : "–")));
      const open = state.row === row.name;
      const button = make("button", row.name, { type: "button", "aria-expanded": String(open) });
      button.addEventListener("click", () => {
        state.row = open ? "" : row.name;
        drawTable();
        writeAddress();
        [...document.querySelectorAll("td button")].find((b) => b.textContent === row.name)?.focus();
      });
      const name = make("td");
      name.append(button);
      line.append(name);
      for (const c of columns) {
        const entry = row.entries[c.name];
        const cell = make("td", shown(entry));
        if (entry.note.length > 1) cell.title = entry.note;
        line.append(cell);
      }
      body.append(line);
      if (open) body.append(detail(row, columns.length + 2));
    }
    const top = make("thead");
    top.append(head);
    table.replaceChildren(top, body);
    $("count").textContent = `${rows.length} of ${board.rows.length} variants and baselines`;
  }

  // a part is small and is not sorted
  function drawParts() {
    const wanted = state.show.toLowerCase();
    $("parts").replaceChildren(...report().board.parts.flatMap((part, at) => {
      const columns = filledColumns(part);
      const head = make("tr");
      head.append(make("th", "", { scope: "col" }), make("th", "variant", { scope: "col" }));
      for (const c of columns) head.append(make("th", c.heading, { scope: "col", title: description(c) }));
      const body = make("tbody");
      for (const row of part.rows) {
        if (!row.name.toLowerCase().includes(wanted)) continue;
        const line = make("tr", null, { className: row.kind });
        line.append(make("td", row.kind === "baseline" ? "·" : ""), make("td", row.name));
        for (const c of columns) line.append(make("td", shown(row.entries[c.name])));
        body.append(line);
      }
      const top = make("thead");
      top.append(head);
      const table = make("table");
      table.append(top, body);
      const title = make("h3", part.title, { id: `part-${at}` });
      const scroll = make("div", null, { className: "scroll", tabIndex: 0, role: "region" });
      scroll.setAttribute("aria-labelledby", title.id);
      scroll.append(table);
      return [title, scroll];
    }));
  }

  function detail(row, width) {
    const { records, commands, machines } = report();
    const line = make("tr", null, { className: "detail" });
    const cell = make("td", null, { colSpan: width });
    const inner = make("div", null, { className: "inner" });
    if (row.reason) inner.append(make("p", "Unranked: " + row.reason, { className: "long" }));
    if (commands[row.name]) inner.append(make("div", "Command that measures it again:"), make("pre", commands[row.name]));
    const own = records.filter((record) => record.variant === row.name);
    inner.append(make("div", `${own.length} Records:`));
    const list = make("ul");
    for (const s of own.slice(0, 200)) {
      const item = make("li");
      item.append(make("code", s.key), ` ${s.lane}, seed ${s.seed}, ${s.outcome.replaceAll("_", " ")}; `);
      item.append(`${s.started}, ${s.seconds.toFixed(1)} s on ${s.machine}; code ${s.digest}`);
      if (s.implementation) item.append(`; ran as ${s.implementation}`);
      if (s.numbers.length) item.append(make("div", s.numbers.join(" · ")));
      if (s.reason) item.append(make("div", s.reason, { className: "long" }));
      list.append(item);
    }
    if (own.length > 200) list.append(make("li", `and ${own.length - 200} more Records`));
    inner.append(list);
    for (const name of new Set(own.map((s) => s.machine))) {
      inner.append(make("div", `Machine ${name}: ${machines[name] || "unknown"}`));
    }
    cell.append(inner);
    line.append(cell);
    return line;
  }

  function fitted(spec, width) {
    // copies, since a wider window must find the wide one again
    const copy = structuredClone(spec);
    const walk = (part) => {
      if (typeof part.width === "number" && part.width > width) part.width = width;
      if (part.facet && part.columns && width < 420) part.columns = 1;
      for (const name of ["layer", "hconcat", "vconcat", "concat"]) (part[name] || []).forEach(walk);
      if (part.spec) walk(part.spec);
    };
    walk(copy);
    return copy;
  }

  function drawMap(maps, shades, layer, head) {
    const at = layer * maps.heads + head;
    const size = maps.rows * maps.keys;
    const canvas = make("canvas", null, { width: maps.keys, height: maps.rows });
    const words = `layer ${layer}, head ${head}: maximum ${maps.tops[at].toPrecision(3)}`;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${maps.variant}, ${words}`);
    const brush = canvas.getContext("2d");
    const image = brush.createImageData(maps.keys, maps.rows);
    const ink = dark() ? [122, 183, 255] : [7, 87, 168];
    for (let i = 0; i < size; i++) image.data.set([...ink, shades.charCodeAt(at * size + i)], 4 * i);
    brush.putImageData(image, 0, 0);
    const one = make("span");
    one.append(canvas, make("small", words));
    return one;
  }

  function drawMaps() {
    const { maps, mapsLeftOut } = report();
    $("maps").hidden = !maps.length && !mapsLeftOut;
    $("maps-words").textContent = "Rows are queries, columns are keys. Each map is scaled by its own maximum, printed below "
      + "it. One example and one seed for each variant; long sequences are averaged over squares."
      + (mapsLeftOut ? ` ${mapsLeftOut} variants are left out to keep the page small.` : "");
    for (const [id, name] of [["layer", "layers"], ["head", "heads"]]) {
      const count = Math.max(0, ...maps.map((each) => each[name]));
      const chosen = $(id).value;
      const choices = ["all", ...Array(count).keys()].map((value) => make("option", String(value)));
      $(id).replaceChildren(...choices);
      $(id).value = choices.some((choice) => choice.value === chosen) ? chosen : "all";
    }
    $("attention-maps").replaceChildren(...maps.map((maps) => {
      const shades = atob(maps.shades);
      const place = make("div");
      place.append(make("p", maps.variant));
      for (let layer = 0; layer < maps.layers; layer++) {
        for (let head = 0; head < maps.heads; head++) {
          const shown = (id, at) => $(id).value === "all" || Number($(id).value) === at;
          if (shown("layer", layer) && shown("head", head)) place.append(drawMap(maps, shades, layer, head));
        }
      }
      return place;
    }));
  }

  function drawFigures() {
    const place = $("figures");
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
    const line = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
    const words = { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line };
    const config = {
      background: "transparent", axis: words, legend: words, header: words,
      title: { color: ink, subtitleColor: ink }, view: { stroke: line }, text: { color: ink },
    };
    const actions = { export: true, source: false, compiled: false, editor: false };
    const narrow = place.clientWidth < 560;
    if (narrow) config.legend = { ...words, orient: "bottom", columns: 2 };
    const room = Math.max(180, place.clientWidth - (narrow ? 110 : 150));
    const { figures, data } = report();
    const drawn = figures.map(([name, chart, sets]) => {
      const spec = fitted(shared.charts[chart], room);
      const own = Object.fromEntries(sets.map((set) => [set, unpackedRows(data[set])]));
      spec.datasets = { ...spec.datasets, ...own };
      const figure = make("figure", null, { id: "figure-" + name, "aria-label": name.replaceAll("-", " ") });
      const mount = make("div");
      figure.append(mount);
      vegaEmbed(mount, spec, { config, actions, renderer: "svg", downloadFileName: "attnbench-" + name })
        .then(() => { figure.dataset.ready = "yes"; })
        .catch((error) => { mount.textContent = "This figure cannot be drawn: " + error; console.error(error); });
      return figure;
    });
    place.replaceChildren(...drawn);
  }

  // a line for each of the most important notes; all of them, in full, in a section that opens
  function drawNotes({ notes, chiefNotes }) {
    const lines = (chosen, words) => chosen.flatMap((note) => {
      const className = note.warning ? "warning" : "";
      return [make("dt", (note.warning ? "⚠ " : "") + note.topic, { className }), make("dd", words(note), { className })];
    });
    const chief = notes.filter((note) => note.brief || note.warning).slice(0, chiefNotes);
    $("chief-notes").replaceChildren(...lines(chief, (note) => note.brief || note.text));
    $("notes").replaceChildren(...lines(notes, (note) => note.text));
    $("all-notes").hidden = !notes.length;
    $("all-notes").open = state.notes === "all";
    $("all-notes").firstElementChild.textContent = notes.length === 1 ? "The note in full" : `All ${notes.length} notes`;
  }

  function drawAll() {
    document.documentElement.dataset.theme = dark() ? "dark" : "light";
    $("theme").textContent = dark() ? "Light" : "Dark";
    $("theme").setAttribute("aria-pressed", String(dark()));
    if (!blocks.length) {
      $("headline").textContent = "No Records yet.";
      return;
    }
    const { board } = report();
    $("report").value = String(state.q);
    $("filter").value = state.show;
    $("title").textContent = board.question || board.title;
    $("headline").textContent = board.headline;
    drawNotes(board);
    drawTable();
    drawParts();
    drawMaps();
    // the board can be read before the figures are drawn
    requestAnimationFrame(() => setTimeout(drawFigures, 0));
  }

  $("report").append(...blocks.map((block, at) => make("option", block.dataset.name, { value: String(at) })));
  $("report").addEventListener("change", (event) => {
    Object.assign(state, { q: Number(event.target.value), sort: "", dir: "", row: "" });
    drawAll();
    writeAddress();
  });
  $("filter").addEventListener("input", (event) => {
    state.show = event.target.value;
    drawTable();
    drawParts();
    writeAddress();
  });
  $("all-notes").addEventListener("toggle", () => {
    state.notes = $("all-notes").open ? "all" : "";
    writeAddress();
  });
  for (const id of ["layer", "head"]) $(id).addEventListener("change", drawMaps);
  $("theme").addEventListener("click", () => {
    state.theme = dark() ? "light" : "dark";
    drawAll();
    writeAddress();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (blocks.length && Math.abs(innerWidth - width) > 40) { width = innerWidth; drawFigures(); }
  });
  addEventListener("hashchange", () => {
    if (location.hash === "#board") return;
    readAddress();
    drawAll();
  });
  readAddress();
  drawAll();
})();
