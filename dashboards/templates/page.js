"use strict";
// Text from Records enters the document as text nodes only; the state lives in the address after '#'.
(() => {
  const $ = (id) => document.getElementById(id);
  const blocks = [...document.querySelectorAll("script[data-name]")];
  const shared = JSON.parse($("shared").textContent);
  const overview = $("all-boards") && JSON.parse($("all-boards").textContent);
  const parsed = new Map();
  // q: number of the board, -1 for the overview
  const state = { q: 0, sort: "", dir: "", show: "", row: "", theme: "", notes: "", columns: "", only: "" };

  // characters that a cell of a table shows in one line
  const LONGEST_LINE = 40;
  const KEPT = ["sort", "dir", "show", "row", "theme", "notes", "columns", "only"];

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
    state.q = at < 0 && !overview ? 0 : at;
    for (const name of KEPT) state[name] = given.get(name) || "";
  }

  function address(at, names) {
    const kept = new URLSearchParams();
    if (blocks[at]) kept.set("q", blocks[at].dataset.name);
    for (const name of names) if (state[name]) kept.set(name, state[name]);
    return "#" + kept;
  }

  function writeAddress() {
    history.replaceState(null, "", address(state.q, KEPT));
  }

  // a step that the browser's button takes back
  function show(at) {
    const changed = at !== state.q;
    Object.assign(state, { q: at, sort: "", dir: "", row: "", only: "" });
    if (changed) history.pushState(null, "", address(at, KEPT));
    drawAll();
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

  // the columns that answer the board's question, all of them, or the chosen ones where the board has any
  function drawnColumns(board) {
    if (state.columns === "all") return filledColumns(board);
    const chosen = filledColumns(board).filter((c) => state.columns.split(",").includes(c.name));
    if (chosen.length) return chosen;
    return board.columns.filter((c) => board.shownColumns.includes(c.name));
  }

  function description(column) {
    return `${column.description} (${column.unit || "text"})`;
  }

  function shown(entry) {
    return entry.text + (entry.note.length === 1 ? " " + entry.note : "");
  }

  function markMore(box) {
    box.classList.toggle("wider", box.scrollLeft + box.clientWidth + 1 < box.scrollWidth);
  }

  // not markMore: a reader may have scrolled to the end
  function isTooWide(box) {
    return box.scrollWidth > box.clientWidth + 4;
  }

  // an interval stands below its value in a table that would otherwise be too wide
  function result(text) {
    const [, value, interval] = /^(.+?)( \(.+\)(?: \S)?)$/.exec(text) || [null, text, ""];
    const cell = make("td", value);
    if (interval) cell.append(make("span", interval, { className: "interval" }));
    return cell;
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
      [...document.querySelectorAll("thead button")].find((b) => b.textContent === button.textContent)?.focus();
    });
    cell.append(button);
    return cell;
  }

  function caption(text) {
    return make("caption", text, { className: "unseen" });
  }

  function drawTable() {
    const { board } = report();
    const columns = drawnColumns(board);
    const table = $("table");
    const head = make("tr");
    head.append(heading("rank", "", "95 % rank interval; ties in alphabetical order", ""));
    head.append(heading("variant", "variant", "name with parameters", ""));
    for (const c of columns) head.append(heading(c.heading, c.name, description(c), c.better));
    const body = make("tbody");
    const rows = ordered(board);
    let before = null;
    for (const row of rows) {
      const group = `${row.kind}/${row.group}`;
      const line = make("tr", null, { className: row.kind });
      if (!state.sort && before !== null && before !== group) line.classList.add("cut");
      before = group;
      const place = make("td", row.place || (row.kind === "baseline" ? "·" : "–"));
      if (report().figures.length) place.prepend(picker(row.name));
      line.append(place);
      const open = state.row === row.name;
      const button = make("button", row.name, { type: "button", "aria-expanded": String(open) });
      button.addEventListener("click", () => {
        state.row = open ? "" : row.name;
        drawTable();
        writeAddress();
        [...document.querySelectorAll("tbody th button")].find((b) => b.textContent === row.name)?.focus();
      });
      const name = make("th", null, { scope: "row" });
      name.append(button);
      line.append(name);
      for (const c of columns) {
        const entry = row.entries[c.name];
        // a row without its result says why
        const lacks = !entry.text && row.reason && c === columns[0];
        const cell = result(lacks ? "no result" : shown(entry));
        if (lacks || entry.note.length > 1) cell.title = lacks ? row.reason : entry.note;
        line.append(cell);
      }
      body.append(line);
      if (open) body.append(detail(row, columns.length + 2));
    }
    const top = make("thead");
    top.append(head);
    table.className = "ranks";
    table.replaceChildren(caption("Ranks and results. A button in a heading sorts; a variant's name opens its Records"), top, body);
    const box = table.parentElement;
    table.classList.toggle("stacked", isTooWide(box));
    const wider = isTooWide(box);
    markMore(box);
    const hidden = filledColumns(board).length - columns.length;
    const isFewer = state.columns === "all" && filledColumns(board).length > board.shownColumns.length;
    $("more-columns").hidden = !hidden && !isFewer;
    $("more-columns").textContent = isFewer ? "Fewer columns" : `${hidden} more column${hidden > 1 ? "s" : ""}`;
    $("count").textContent = `${rows.length} of ${board.rows.length} variants and baselines${wider ? "; scroll the table for more columns" : ""}`;
  }

  function picked() {
    return state.only ? JSON.parse(state.only) : [];
  }

  // lays the rows that are ticked on one another: the figures show these alone
  function picker(name) {
    const words = `Show ${name} in the figures`;
    const box = make("input", null, { type: "checkbox", checked: picked().includes(name), title: words });
    box.setAttribute("aria-label", words);
    box.addEventListener("change", () => {
      const names = picked().filter((other) => other !== name).concat(box.checked ? [name] : []);
      state.only = names.length ? JSON.stringify(names) : "";
      drawAllFigures();
      writeAddress();
    });
    return box;
  }

  // bluer is faster, more orange is slower; a factor of 16 is the deepest. No colour where nothing is told
  function shade(cell, { text, value, note }) {
    if (!value || !note || text.startsWith("≈")) return;
    const share = Math.min(100, Math.round(25 * Math.abs(Math.log2(value))));
    cell.style.background = `color-mix(in srgb, var(${value < 1 ? "--faster" : "--slower"}) ${share}%, transparent)`;
  }

  // a part is small and is not sorted
  function drawParts() {
    const wanted = state.show.toLowerCase();
    $("parts").replaceChildren(...report().board.parts.flatMap((part, at) => {
      const columns = drawnColumns(part);
      const head = make("tr");
      head.append(make("td"), make("th", "variant", { scope: "col" }));
      for (const c of columns) head.append(make("th", c.heading, { scope: "col", title: description(c) }));
      const body = make("tbody");
      for (const row of part.rows) {
        if (!row.name.toLowerCase().includes(wanted)) continue;
        const line = make("tr", null, { className: row.kind });
        line.append(make("td", row.kind === "baseline" ? "·" : ""), make("th", row.name, { scope: "row" }));
        for (const c of columns) {
          const entry = row.entries[c.name];
          const text = shown(entry);
          const cell = text.length > LONGEST_LINE ? make("td", text, { className: "words" }) : result(text);
          if (entry.note.length > 1) cell.title = entry.note;
          if (c.unit === "× reference") shade(cell, entry);
          line.append(cell);
        }
        body.append(line);
      }
      const top = make("thead");
      top.append(head);
      const table = make("table", null, { className: "ranks" });
      table.append(caption(part.title), top, body);
      const title = make("h3", part.title, { id: `part-${at}` });
      const section = make("section");
      section.setAttribute("aria-labelledby", title.id);
      section.append(title, scrolling(table, title.id));
      return [section];
    }));
  }

  // wide tables scroll by themselves, by keyboard too
  function scrolling(table, label) {
    const scroll = make("div", null, { className: "scroll", tabIndex: 0, role: "region" });
    scroll.setAttribute("aria-labelledby", label);
    scroll.append(table);
    return scroll;
  }

  function detail(row, width) {
    const { records, commands, machines } = report();
    const line = make("tr", null, { className: "detail" });
    const cell = make("td", null, { colSpan: width });
    const inner = make("div", null, { className: "inner" });
    if (row.reason) inner.append(make("p", "Unranked: " + row.reason, { className: "long" }));
    if (commands[row.name]) inner.append(make("div", "Command that measures it again:"), make("pre", commands[row.name]));
    const own = records.filter((record) => record.variant === row.name);
    if (own.length) inner.append(make("div", `${own.length} Records:`));
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

  // the chart in so much room; a copy, since a wider window must find the wide one again
  function fitted(spec, room, data, longest) {
    const copy = JSON.parse(JSON.stringify(spec));
    const names = 6 * Math.max(0, ...data.map((row) => (row.name || "").length));
    const walk = (part) => {
      if (part.facet && part.spec) {
        const step = part.spec.width?.step;
        const heads = Math.max(1, ...data.map((row) => row.head + 1 || 1));
        // a panel is at least as wide as the name above it
        const above = Math.min(part.facet.header?.labelLimit ?? 0, 6 * longest);
        const least = step ? Math.max(step * heads, above) + 34 : 230 + names;
        part.columns = Math.max(1, Math.min(part.columns * (step ? 3 : 1), Math.floor(room / least)));
        if (!step) part.spec.width = Math.floor(room / part.columns) - 65 - names;
      } else {
        if (typeof part.width === "number") part.width = room;
        for (const name of ["layer", "hconcat", "vconcat", "concat"]) (part[name] || []).forEach(walk);
        if (part.spec) walk(part.spec);
      }
    };
    walk(copy);
    return copy;
  }

  // a variant has its colour and shape in all figures; softmax's black is white on a dark ground
  function named(spec, order, data, ink) {
    const own = new Set(data.map((row) => row.variant));
    const values = order.filter((name) => own.has(name));
    const look = (at) => order.map((name) => shared.colours[name][at]);
    const walk = (part) => {
      for (const [name, channel] of Object.entries(part.encoding || {})) {
        if (channel.field !== "variant" || !["color", "stroke", "fill", "shape"].includes(name)) continue;
        channel.scale = { domain: order, range: look(name === "shape" ? 1 : 0) };
        if (channel.legend) channel.legend = { ...channel.legend, values };
        // of channels with one domain Vega-Lite makes one legend, and none where one of them wants none
        else channel.scale = { domain: [...order, ""], range: [...channel.scale.range, ink] };
      }
      for (const name of ["layer", "hconcat", "vconcat", "concat"]) (part[name] || []).forEach(walk);
      if (part.spec) walk(part.spec);
    };
    walk(spec);
    return JSON.parse(JSON.stringify(spec).replaceAll('"#000000"', JSON.stringify(ink)));
  }

  // the variants with data, in the order of the board
  function variants(data, board) {
    const found = new Set(Object.values(data).flatMap(unpackedRows).map((row) => row.variant).filter(Boolean));
    const first = (board?.rows ?? []).map((row) => row.name).filter((name) => found.has(name));
    return [...new Set([...first, ...found])];
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
      + (mapsLeftOut ? ` Left out to keep the page small: ${mapsLeftOut} variant${mapsLeftOut > 1 ? "s" : ""}.` : "");
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

  function drawFigures({ figures, data, board }, place) {
    const order = variants(data, board);
    const style = getComputedStyle(document.documentElement);
    const [ink, line] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
    const words = { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line };
    const actions = { export: true, source: false, compiled: false, editor: false };
    const drawn = figures.map(([name, , , about]) => {
      const figure = make("figure", null, { id: "figure-" + name });
      const mount = make("div", null, { role: "img" });
      mount.setAttribute("aria-label", `${name.replaceAll("-", " ")}. ${about}`);
      figure.append(mount, make("figcaption", about));
      return figure;
    });
    // their widths are known once they are in the document
    place.replaceChildren(...drawn);
    figures.forEach(([name, chart, sets], at) => {
      const [figure, mount] = [drawn[at], drawn[at].firstChild];
      const wanted = ({ variant }) => !variant || !state.only || picked().includes(variant);
      const rows = Object.fromEntries(sets.map((set) => [set, unpackedRows(data[set]).filter(wanted)]));
      const all = sets.flatMap((set) => rows[set]);
      if (state.only && !all.some((row) => row.variant)) {
        figure.hidden = true;
        figure.dataset.ready = "yes";
        return;
      }
      const room = Math.max(180, mount.clientWidth - 62);
      const longest = Math.max(...all.map((row) => (row.variant || "").length));
      const columns = Math.max(1, Math.floor(mount.clientWidth / (34 + 6 * longest)));
      const config = {
        aria: false, background: "transparent", axis: { ...words, labelSeparation: 6 },
        header: { labelColor: ink, titleColor: ink },
        legend: { ...words, orient: "bottom", columns, labelLimit: 320 },
        title: { color: ink, subtitleColor: ink }, view: { stroke: line }, text: { color: ink },
      };
      const spec = named(fitted(shared.charts[chart], room, all, longest), order, all, ink);
      spec.datasets = { ...spec.datasets, ...rows };
      figure.append(asTable(name, sets, data));
      vegaEmbed(mount, spec, { ast: true, config, actions, renderer: "svg", downloadFileName: "attnbench-" + name })
        .then(() => {
          mount.querySelector("summary").setAttribute("aria-label", "Save this figure");
          figure.dataset.ready = "yes";
        })
        .catch((error) => { mount.textContent = "This figure cannot be drawn: " + error; console.error(error); });
    });
  }

  // the values of a figure for those who cannot see it, or wish to copy them; made when it is opened
  function asTable(name, sets, data) {
    const details = make("details");
    const summary = make("summary", "Values of this figure");
    details.append(summary);
    details.addEventListener("toggle", () => {
      if (!details.open || details.childElementCount > 1) return;
      for (const set of sets) {
        const [fields, rows] = data[set];
        const table = make("table");
        const head = make("tr");
        for (const field of fields) head.append(make("th", field.replaceAll("_", " "), { scope: "col" }));
        const [top, body] = [make("thead"), make("tbody")];
        top.append(head);
        for (const row of rows) {
          const line = make("tr");
          row.forEach((value, at) => {
            const text = typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value ?? "");
            line.append(fields[at] === "variant" ? make("th", text, { scope: "row" }) : make("td", text));
          });
          body.append(line);
        }
        table.append(caption(`${name.replaceAll("-", " ")}: ${set.replaceAll("_", " ")}`), top, body);
        const scroll = scrolling(table, "");
        scroll.removeAttribute("aria-labelledby");
        scroll.setAttribute("aria-label", summary.textContent);
        details.append(scroll);
      }
    });
    return details;
  }

  // a long name breaks between its parameters and the values of a grid, a number such as 1,024 nowhere
  const breakable = (name) => name.split(/(?<=[[|]|,(?!\d))/).flatMap((part) => [part, make("wbr")]);

  // the task asked for on a phone: at first the one that tells most variants from softmax
  function abilities(columns, rows) {
    const menu = $("ability");
    if (!menu.options.length) {
      const told = (at) => rows.filter(([, cells]) => cells[at]?.verdict).length;
      const tasks = columns.map((column, at) => at).filter((at) => !columns[at].is_cost);
      menu.append(...tasks.map((at) => make("option", columns[at].title, { value: String(at) })));
      menu.value = String(tasks.reduce((best, at) => (told(at) > told(best) ? at : best), tasks[0] ?? -1));
    }
    return Number(menu.value);
  }

  // who is good at what: each number with the mark and the colour of its difference from softmax
  function drawAnswer() {
    const { columns, rows } = overview.answer || { columns: [], rows: [] };
    $("answer").hidden = !rows.length;
    // a phone has room for one task, chosen above, and for the first cost
    const narrow = matchMedia("(max-width: 600px)").matches && columns.length > 2;
    const asked = abilities(columns, rows), cost = columns.findIndex((column) => column.is_cost);
    const shown = columns.map((column, at) => at).filter((at) => !narrow || at === asked || at === cost);
    $("asked").hidden = !narrow;
    const head = make("tr");
    head.append(make("th", "attention", { scope: "col" }));
    for (const { title, report, unit } of shown.map((at) => columns[at])) {
      const at = blocks.findIndex((block) => block.dataset.name === report);
      const cell = make("th", null, { scope: "col" });
      const link = make("a", null, { href: address(at, ["theme"]) });
      link.append(...breakable(title));
      cell.append(link, make("small", unit));
      head.append(cell);
    }
    const body = make("tbody");
    for (const [name, cells] of rows.filter(([, cells]) => shown.some((at) => cells[at]))) {
      const line = make("tr");
      const label = make("th", null, { scope: "row" });
      label.append(...breakable(name));
      line.append(label);
      for (const at of shown) {
        const cell = cells[at] ?? { text: "not run", verdict: "empty", hint: `${name} has no Record on ${columns[at].title}` };
        const mark = { better: "\u00a0▲", worse: "\u00a0▼" }[cell.verdict] ?? "";
        line.append(make("td", cell.text + mark, { className: cell.verdict, title: cell.hint }));
      }
      body.append(line);
    }
    const top = make("thead");
    top.append(head);
    const table = $("answer-table");
    table.replaceChildren(caption("Test result of each attention on each task, and its cost"), top, body);
    $("answer-more").hidden = !isTooWide(table.parentElement);
    markMore(table.parentElement);
  }

  function drawOverview() {
    $("lead").textContent = overview.lead;
    drawAnswer();
    $("groups").replaceChildren(...overview.groups.flatMap((group, number) => {
      const title = make(group.folded ? "span" : "h3", group.title, { id: `group-${number}` });
      const head = make("tr");
      for (const text of ["task", "first place", "result", "what can be told", "newest Record"]) {
        head.append(make("th", text, { scope: "col", role: "columnheader" }));
      }
      // cells stand below each other on a phone, where only their roles tell that this is a table
      const [top, body] = [make("thead", null, { role: "rowgroup" }), make("tbody", null, { role: "rowgroup" })];
      head.setAttribute("role", "row");
      top.append(head);
      for (const board of group.boards) {
        const at = blocks.findIndex((block) => block.dataset.name === board.report);
        const task = make("th", null, { scope: "row", role: "rowheader" });
        task.append(make("a", board.title, { href: address(at, ["theme"]) }));
        if (board.data) task.append(make("small", "⚠ " + board.data, { className: "warn" }));
        const first = make("td", null, { role: "cell" });
        if (board.leaders) first.append(make("strong", board.leaders), " ", make("span", board.place, { className: "place" }));
        const result = make("td", board.result, { role: "cell" });
        if (board.reference && board.leaders !== "softmax") result.append(make("small", "softmax " + board.reference));
        const told = make("td", board.headline, { role: "cell" });
        const day = make("td", board.newest, { role: "cell" });
        if (board.state) day.append(make("small", board.state, { className: board.state.split(":")[0] }));
        const line = make("tr", null, { role: "row", className: board.is_average ? "average" : "" });
        line.append(task, first, result, told, day);
        body.append(line);
      }
      const table = make("table", null, { className: "boards", role: "table" });
      table.append(caption(group.title), top, body);
      if (!group.folded) return [title, scrolling(table, title.id)];
      const [fold, summary] = [make("details"), make("summary")];
      const named = group.boards.length > 8 ? group.boards.length : group.boards.map((board) => board.title).join("; ");
      summary.append(title, `: ${named}`);
      fold.append(summary, scrolling(table, title.id));
      return [fold];
    }));
  }

  // shows or hides a column; what is chosen stays in the address
  function chooser(name) {
    const { board } = report();
    const box = make("input", null, { type: "checkbox", checked: drawnColumns(board).some((c) => c.name === name) });
    box.addEventListener("change", () => {
      const kept = drawnColumns(board).map((c) => c.name).filter((other) => other !== name);
      state.columns = [...kept, ...(box.checked ? [name] : [])].join(",");
      drawTable();
      // without any the table has those that it began with
      if (!state.columns) drawNotes(board);
      writeAddress();
    });
    return box;
  }

  // the most important notes; the others in a section that opens
  function drawNotes({ notes }) {
    const lines = (chosen) => chosen.flatMap((note) => {
      const className = note.warning ? "warning" : "";
      return [make("dt", (note.warning ? "⚠ " : "") + note.topic, { className }), make("dd", note.text, { className })];
    });
    const rest = notes.filter((note) => !note.shown);
    $("chief-notes").replaceChildren(...lines(notes.filter((note) => note.shown)));
    $("notes").replaceChildren(...lines(rest));
    $("all-notes").hidden = !rest.length;
    $("all-notes").open = state.notes === "all";
    $("all-notes").firstElementChild.textContent = `${rest.length} more note${rest.length > 1 ? "s" : ""}`;
    const { board } = report();
    const columns = [board, ...board.parts].flatMap(filledColumns).filter((column) => column.description);
    const meanings = new Map(columns.map((column) => [column.heading, description(column)]));
    const terms = [...meanings].flatMap(([heading, text]) => {
      const [term, label] = [make("dt"), make("label")];
      const own = filledColumns(board).find((column) => column.heading === heading);
      if (own) label.append(chooser(own.name));
      label.append(heading);
      term.append(label);
      return [term, make("dd", text)];
    });
    $("columns").lastElementChild.replaceChildren(...terms);
    $("columns").hidden = !terms.length;
    $("noted").hidden = !notes.length && !terms.length;
  }

  function drawAll() {
    document.documentElement.dataset.theme = dark() ? "dark" : "light";
    $("theme").textContent = dark() ? "Light" : "Dark";
    $("theme").setAttribute("aria-pressed", String(dark()));
    $("home").hidden = !overview;
    $("overview").hidden = state.q >= 0;
    $("board").hidden = $("filtering").hidden = state.q < 0;
    $("report").value = String(state.q);
    for (const place of ["figures", "overview-figures"]) $(place).replaceChildren();
    if (state.q < 0) {
      $("home").setAttribute("aria-current", "page");
      document.title = `${$("name").textContent}: overview`;
      drawOverview();
    } else if (!blocks.length) {
      $("headline").textContent = "No Records yet.";
      return;
    } else {
      $("home").removeAttribute("aria-current");
      const { board, figures } = report();
      const title = board.question || board.title;
      document.title = `${$("name").textContent}: ${title}`;
      $("filter").value = state.show;
      $("title").textContent = title;
      $("headline").textContent = board.headline;
      const origin = board.notes.find((note) => note.topic === "data" && note.warning);
      $("origin").textContent = origin ? `⚠ ${origin.topic}: ${origin.text}` : "";
      $("drawn").hidden = !figures.length;
      drawTable();
      drawParts();
      drawMaps();
      drawNotes(board);
    }
    // all words can be read before the figures are drawn
    requestAnimationFrame(() => setTimeout(drawAllFigures, 0));
  }

  function drawAllFigures() {
    if (state.q < 0) drawFigures(overview, $("overview-figures"));
    else drawFigures(report(), $("figures"));
  }

  // the boards in the groups, the order and the words of the overview; by their whole names where words are alike
  function choices() {
    if (!overview) return blocks.map((block, at) => make("option", block.dataset.name, { value: String(at) }));
    const groups = overview.groups.map(({ title, boards }) => {
      const together = make("optgroup", null, { label: title });
      for (const board of boards) {
        const alone = boards.filter((other) => other.title === board.title).length === 1;
        const at = blocks.findIndex((block) => block.dataset.name === board.report);
        together.append(make("option", alone ? board.title : board.report, { value: String(at) }));
      }
      return together;
    });
    return [make("option", "choose one", { value: "-1" }), ...groups];
  }

  $("ability").addEventListener("change", drawAnswer);
  $("report").append(...choices());
  $("report").addEventListener("change", (event) => show(Number(event.target.value)));
  $("home").addEventListener("click", (event) => {
    event.preventDefault();
    show(-1);
    $("overview-title").focus();
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    // the address says what is shown, so the link must not change it
    event.preventDefault();
    $("content").focus();
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
  $("more-columns").addEventListener("click", () => {
    state.columns = state.columns === "all" ? "" : "all";
    drawTable();
    drawParts();
    drawNotes(report().board);
    writeAddress();
  });
  for (const id of ["table", "answer-table"]) $(id).parentElement.addEventListener("scroll", (event) => markMore(event.target));
  for (const id of ["layer", "head"]) $(id).addEventListener("change", drawMaps);
  $("theme").addEventListener("click", () => {
    state.theme = dark() ? "light" : "dark";
    drawAll();
    writeAddress();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (blocks.length && Math.abs(innerWidth - width) > 40 && !matchMedia("print").matches) {
      width = innerWidth;
      if (state.q < 0) drawAnswer();
      drawAllFigures();
    }
  });
  addEventListener("hashchange", () => {
    const before = state.q;
    readAddress();
    drawAll();
    if (state.q !== before) {
      // a reader by ear learns what is shown now
      scrollTo(0, 0);
      $(state.q < 0 ? "overview-title" : "title").focus({ preventScroll: true });
    }
  });
  // on paper nothing can be opened
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("main > section:not([hidden]) details:not(figure details):not([open])")];
    for (const each of opened) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
  readAddress();
  drawAll();
})();
