// Draws a report from the JSON in #data. Whatever comes from there becomes text or an attribute's value, never markup.
"use strict";
const root = document.documentElement;
window.addEventListener("error", (event) => { root.dataset.error = event.message; });
const data = JSON.parse(document.getElementById("data").textContent);
const main = document.querySelector("main");
const tip = document.getElementById("tip");

// Elements. Attributes that are null or undefined are left out, as are such children.
const maker = (namespace) => (name, attributes, ...children) => {
  const made = document.createElementNS(namespace, name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
};
const h = maker(root.namespaceURI);
const s = maker("http://www.w3.org/2000/svg");

// Formats of numbers.
const commas = (value) => Math.round(value).toLocaleString("en-US");
const counted = (count, noun) => `${commas(count)} ${noun}${count === 1 ? "" : "s"}`;
const ratio = (value) => `${value.toFixed(3)}x`;
const scaled = (value, base, units) => {
  let unit = 0;
  while (value >= base * 0.99995 && unit + 1 < units.length) { value /= base; ++unit; }
  return [value, units[unit], unit];
};
const thousands = (value) => {
  const [shown, unit] = scaled(value, 1000, ["", " k", " M", " G", " T"]);
  return shown.toFixed(1) + unit;
};
const bytes = (value) => {
  const [shown, unit, power] = scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
  return `${power ? shown.toFixed(1) : shown} ${unit}`;
};
const share = (value) =>
  value <= 0 ? "0%" : value < 1e-3 ? "<0.1%" : `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)}%`;
const minutes = (value) => `${Math.floor(value / 60)}:${String(Math.floor(value % 60)).padStart(2, "0")} min`;
const seconds = (value) => value >= 100 ? minutes(value) : value >= 1 ? `${value.toFixed(1)} s`
  : value >= 1e-3 ? `${(value * 1e3).toFixed(1)} ms` : `${(value * 1e6).toFixed(0)} us`;

// The tooltip of a plot, at the pointer or the position of the arrow keys. `describe(part)` returns a title and rows.
const showTip = (x, y, title, rows) => {
  tip.replaceChildren(h("b", null, title), ...rows);
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - box.height - 6))}px`;
  tip.style.visibility = "visible";
};
const tipRow = (style, text) => h("div", null, h("i", { class: `swatch ${style}` }), text);
const inspectable = (stage, parts, describe) => {
  let at = 0;
  const plot = () => stage.closest(".plot");
  const show = (part, y) => {
    at = Math.min(Math.max(part, 0), parts - 1);
    const box = stage.getBoundingClientRect();
    const x = (at + 0.5) / parts;
    plot().style.setProperty("--x", `${100 * x}%`);
    plot().classList.add("active");
    const { title, rows } = describe(at);
    showTip(box.left + x * box.width, y ?? box.bottom, title, rows.length ? rows : ["nothing recorded"]);
  };
  const hide = () => {
    plot().classList.remove("active");
    tip.style.visibility = "hidden";
  };
  const point = (event) => {
    const box = stage.getBoundingClientRect();
    show(Math.floor((event.clientX - box.left) / box.width * parts), event.clientY);
  };
  const press = (event) => {
    const stages = [...plot().querySelectorAll(".stage")];
    const other = stages[stages.indexOf(stage) + { ArrowUp: -1, ArrowDown: 1 }[event.key]];
    if (event.key === "Escape") hide();
    else if (other) other.focus();
    else if (event.key === "ArrowLeft") show(at - (event.shiftKey ? 10 : 1));
    else if (event.key === "ArrowRight") show(at + (event.shiftKey ? 10 : 1));
    else return;
    event.preventDefault();
  };
  const focus = () => { if (stage.matches(":focus-visible")) show(at); };
  const listeners = { pointermove: point, pointerdown: point, pointerleave: hide, pointercancel: hide, keydown: press,
    focus, blur: hide };
  for (const [name, listener] of Object.entries(listeners)) stage.addEventListener(name, listener);
  return stage;
};
/// Tab reaches the first of several elements in a plot; the arrow keys reach the others.
const tabStop = (number) => number === 0 ? "0" : "-1";

// Parts that several sections share.
const section = (id, title, about, ...body) =>
  h("section", { class: "card plot", id }, h("h2", null, title), h("p", { class: "about" }, about), ...body);
const stretched = (width, label, ...children) =>
  s("svg", { viewBox: `0 0 ${width} 100`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    ...children);
const legend = (keys) => h("ul", { class: "legend" }, keys.map(({ style, name, value, kind }) => {
  const key = h("li", { "data-kind": kind }, h("i", { class: `swatch ${style}` }), name,
    value && h("span", null, value));
  if (!kind) return key;
  key.addEventListener("pointerenter", () => { key.closest(".plot").dataset.only = kind; });
  key.addEventListener("pointerleave", () => { delete key.closest(".plot").dataset.only; });
  return key;
}));
/// A bar of parts, each with a style, a name and a share of the whole.
const bar = (parts) => {
  const shown = parts.filter((part) => part.share > 0);
  const label = shown.map((part) => `${part.name} ${share(part.share)}`).join(", ");
  return h("div", { class: "bar", role: "img", "aria-label": label }, shown.map((part) =>
    h("i", { class: part.style, style: `width:${100 * part.share}%`,
      title: `${part.name} ${share(part.share)}` })));
};
/// Round numbers of one unit along the time.
const timeAxis = (length) => {
  const [size, name] = [[60, "min"], [1, "s"], [1e-3, "ms"]].find(([unit]) => length >= 2 * unit) ?? [1e-6, "us"];
  const end = Math.max(length / size, 1e-9);
  const power = 10 ** Math.floor(Math.log10(end / 4));
  const leading = end / 4 / power;
  const step = power * (leading >= 5 ? 5 : leading >= 2 ? 2 : 1);
  const marks = [];
  for (let number = 0; number * step <= end * (1 + 1e-9); ++number) {
    const place = 100 * number * step / end;
    marks.push(h("span", { style: `left:${place}%`, class: place > 94 ? "last" : null },
      `${+(number * step).toPrecision(6)} ${name}`));
  }
  return h("div", { class: "axis" }, marks);
};
/// Curves over a common range: [[style, [value per part]]], from `low` to `high`.
const curves = ({ lines, parts, low, high, label, height, axis, describe }) => {
  const path = (values) => {
    let text = "", before;
    values.forEach((value, part) => {
      const y = +(100 - 100 * (value - low) / (high - low)).toFixed(2);
      if (y !== before) text += before === undefined ? `M${part} ${y}` : `H${part}V${y}`;
      before = y;
    });
    return `${text}H${values.length}`;
  };
  const quarters = [0, 25, 50, 75, 100];
  const stroke = { "vector-effect": "non-scaling-stroke" };
  const stage = h("div", { class: "stage", tabindex: "0" }, stretched(parts, label,
    quarters.map((y) => s("path", { class: "grid", d: `M0 ${y}H${parts}`, ...stroke })),
    lines.map(({ style, values, rank }) =>
      s("path", { class: `curve ${style}`, "data-rank": rank, d: path(values), ...stroke }))),
    h("i", { class: "cursor" }));
  return h("div", { class: "curves" },
    h("div", { class: "heights" }, quarters.map((y) =>
      h("span", { style: `top:${y}%` }, height(low + (high - low) * (100 - y) / 100)))),
    inspectable(stage, parts, describe), axis);
};

// Feeds.
const kinds = data.kinds;
const own = kinds.findIndex((kind) => kind.style === "step");
const atWork = kinds.flatMap((kind, number) => kind.style === "read" || kind.style === "pack" ? [number] : []);
const over = (value, bound) => bound > 0 ? value / bound : 1;
const sum = (values) => values.reduce((all, value) => all + value, 0);

const header = (feed) => {
  const tokens = feed.sequence > 0
    ? [`${commas(feed.batch)} \u00d7 ${commas(feed.sequence)} tokens per step to each data-parallel rank`] : [];
  const facts = [counted(feed.ranks.length, "rank"), ...tokens, `readers: ${feed.readers}`, `engine: ${feed.engine}`];
  const paths = feed.paths.flatMap((path, number) => [number ? ", " : null, h("bdi", null, h("code", null, path))]);
  const alert = (...text) => h("p", { class: "alert", role: "alert" }, ...text);
  return [h("p", { class: "eyebrow" }, "levada feed"), h("h1", null, feed.mesh || "one rank"),
    h("p", { class: "facts" }, facts.join(" \u00b7 ")),
    feed.paths.length
      ? h("p", { class: "facts" }, paths, feed.more_paths ? ` and ${commas(feed.more_paths)} more` : null) : null,
    feed.error ? alert(h("b", null, "The feed failed."), ` ${feed.error}`)
      : feed.difference ? alert(feed.difference) : null];
};

const figures = (feed) => {
  const ends = { exhausted: "the data ended", steps: "as asked", stopped: "a rank asked for a stop",
    left: "the ranks left" };
  const total = (name) => sum(feed.ranks.map((rank) => rank[name]));
  const waited = total("wait_s"), time = total("seconds"), given = total("bytes"), read = total("bytes_read");
  const longest = feed.ranks.reduce((most, rank) => Math.max(most, rank.seconds), 0);
  const rate = (count) => longest > 0 ? count / longest : 0;
  /// The value's last word is its unit, unless one is given.
  const figure = (name, value, about, unit) => {
    const words = value.split(" ");
    const last = unit ?? (words.length > 1 ? words.pop() : "");
    return h("div", null, h("dt", null, name), h("dd", null, `${words.join(" ")} `, h("small", null, last)),
      h("dd", null, about));
  };
  const balance = feed.balance, delivered = `${bytes(Math.round(rate(given)))}/s delivered`;
  return h("dl", { class: "figures" },
    feed.sequence > 0 ? figure("Speed", thousands(rate(feed.tokens)), delivered, "tokens/s")
      : figure("Speed", thousands(rate(feed.steps)), delivered, "steps/s"),
    figure("Time", seconds(longest), "of the slowest rank"),
    figure("Steps", commas(feed.steps), ends[feed.end] ?? "then it failed"),
    feed.sequence > 0
      ? figure("Data", thousands(feed.tokens), `in ${counted(feed.samples, "sample")}`, "tokens") : null,
    figure("Sent", bytes(total("bytes_sent")), `${bytes(given)} delivered to ${counted(feed.ranks.length, "rank")}`),
    feed.bytes_consumed > 0
      ? figure("Read", bytes(read), `${(read / feed.bytes_consumed).toFixed(2)} times the data`) : null,
    !balance ? null : balance.wait === "micro"
      ? figure("Waits", over(balance.waiting, balance.waiting_bound).toFixed(3),
        "the least time of ranks that wait in each micro-batch", "x")
      : figure("Busiest rank", over(balance.busiest, balance.bound).toFixed(3),
        `the least possible work; ${ratio(over(balance.busiest_unbalanced, balance.bound))} unbalanced`, "x"),
    figure("Waited", share(time > 0 ? waited / time : 0), `of the ranks' time, ${seconds(waited)} in all`, ""));
};

/// The area of one kind in a stack of them; runs of equal parts are one piece.
const area = (shares, kind) => {
  let path = "", begin = 0, low = 0, high = 0;
  const finish = (end) => {
    if (high > low && begin < end) path += `M${begin} ${100 - low / 10}H${end}V${100 - high / 10}H${begin}z`;
  };
  shares.forEach((part, number) => {
    const under = sum(part.slice(0, kind)), over = under + part[kind];
    if (under === low && over === high) return;
    finish(number);
    [begin, low, high] = [number, under, over];
  });
  finish(shares.length);
  return path;
};

const timeline = (feed, thread, id, title, about) => {
  const { rows, ranks, total } = feed.timelines[thread];
  if (!rows.length) return null;
  const { parts, seconds: length } = feed.timelines;
  const steps = thread === "step";
  const nameOf = (kind) => (steps && kind.style !== "step" ? "waited: " : "") + kind.name;
  const height = rows.length <= 8 ? 36 : rows.length <= 16 ? 24 : 16;
  const line = (row, number) => {
    const whole = Math.max(sum(row.total), 1);
    const marked = share((steps ? whole - row.total[own] : sum(atWork.map((kind) => row.total[kind]))) / whole);
    const name = row.rank === null ? "all ranks" : `rank ${row.rank}`, place = feed.ranks[row.rank]?.place ?? "";
    const describe = (part) => ({ title: `${name} ${place}, at ${seconds((part + 0.5) / parts * length)}`,
      rows: row.shares[part].flatMap((each, at) =>
        each > 0 ? [tipRow(`k-${kinds[at].style}`, `${kinds[at].name} ${share(each / 1000)}`)] : []) });
    const areas = kinds.map((kind, at) => [kind, area(row.shares, at)]).filter(([, path]) => path);
    const drawing = stretched(parts, `${name}: ${steps ? "waited" : "at work"} ${marked} of the time`,
      areas.map(([kind, path]) => s("path", { class: `k-${kind.style}`, d: path })));
    drawing.setAttribute("shape-rendering", "crispEdges");
    const stage = h("div", { class: "stage", tabindex: tabStop(number) }, drawing, h("i", { class: "cursor" }));
    return h("div", { class: "timeline-row", "data-rank": row.rank ?? "all", style: `--tall:${height}px` },
      h("div", { class: "who" }, name, h("span", null, place)), inspectable(stage, parts, describe),
      h("div", { class: "sum" }, marked));
  };
  const all = sum(total);
  const keys = kinds.flatMap((kind, at) => total[at] > 0
    ? [{ style: `k-${kind.style}`, name: nameOf(kind), value: share(total[at] / all), kind: kind.style }] : []);
  const shown = rows.filter((row) => row.rank !== null).length;
  return section(id, title, about, legend(keys), rows.map(line),
    h("div", { class: "timeline-row times" }, h("div", { class: "who" }), timeAxis(length), h("div", { class: "sum" })),
    ranks > shown ? h("p", { class: "about" },
      `${shown} of ${commas(ranks)} ranks: those that ${steps ? "waited most" : "had the least time to spare"}.`) : null);
};

const work = (feed) => {
  const balance = feed.balance;
  if (!balance?.series.length) return null;
  const perStep = (value, entry) => value / Math.max(entry.steps, 1);
  const tokens = (entry) => `${thousands(perStep(entry.tokens, entry))} tokens per step, ` +
    `${share(entry.padding / Math.max(entry.tokens, 1))} of them padding`;
  const inEach = balance.wait === "micro";
  const [work, bound] = inEach ? ["waiting", "waiting_bound"] : ["busiest", "bound"];
  const even = balance.series.map((entry) => over(entry[work], entry[bound]));
  const uneven = balance.series.map((entry) => over(entry.busiest_unbalanced, entry.bound));
  const high = 1 + Math.max(Math.ceil(20 * (Math.max(...even, ...uneven) - 1)) / 20, 0.05);
  const ofMean = (part, of) => ratio(over(balance.series[part][of], balance.series[part].mean));
  const first = (part) => sum(balance.series.slice(0, part).map((entry) => entry.steps)) + 1;
  const key = (style, name, value, least) => ({ style, name, value: ratio(over(value, least)) });
  return section("work", "Balance of the steps",
    (inEach ? "Time of a step in which ranks wait in each micro-batch" : "Work of the busiest data-parallel rank") +
    " relative to the minimum possible: beyond 1x, the " +
    `other ranks wait. ${balance.by}; ${tokens(balance)}.`,
    legend([key("c-2", "balanced", balance[work], balance[bound]),
      key("c-1", "in the samples' order", balance.busiest_unbalanced, balance.bound)]),
    curves({ parts: even.length, low: 1, high, label: feed.balance_text,
      height: (value) => `${value.toFixed(high < 1.2 ? 3 : 2)}x`,
      lines: [{ style: "c-1", values: uneven }, { style: "c-2", values: even }],
      axis: h("div", { class: "axis" }, h("span", { style: "left:0%" }, "step 1"),
        h("span", { class: "last", style: "left:100%" }, `step ${commas(balance.steps)}`)),
      describe: (part) => ({ title: `from step ${commas(first(part))}`,
        rows: [tipRow("c-2", `balanced ${ratio(even[part])}, of the mean ${ofMean(part, work)}`),
          tipRow("c-1", `in the samples' order ${ratio(uneven[part])}, ` +
            `of the mean ${ofMean(part, "busiest_unbalanced")}`),
          h("div", null, tokens(balance.series[part]))] }) }));
};

const memory = (feed) => {
  const { curves: used, ranks } = feed.memory;
  if (!used.length) return null;
  const { parts, seconds: length } = feed.timelines;
  const colored = used.slice(0, 8).sort((a, b) => a.rank - b.rank);
  const styleOf = (curve) => colored.includes(curve) ? `c-${colored.indexOf(curve)}` : "c-other";
  const lines = used.map((curve) => ({ rank: curve.rank, style: styleOf(curve), values: curve.used }));
  const most = Math.max(...used.map((curve) => curve.peak));
  let high = 4096;
  while (high < most) high *= 2;
  if (high * 0.75 >= most) high *= 0.75;
  const keys = colored.map((curve) =>
    ({ style: styleOf(curve), name: `rank ${curve.rank}`, value: `at most ${bytes(curve.peak)}` }));
  const others = counted(ranks - colored.length, "other");
  if (ranks > colored.length) keys.push({ style: "c-other", name: `${used.length - colored.length} of ${others}` });
  return section("memory", "Memory in use",
    "Batches that each reader holds: being packed, in flight, or still in use by ranks.",
    legend(keys), curves({ lines: [...lines].reverse(), parts, low: 0, high, height: bytes, axis: timeAxis(length),
      label: `memory in use over time, at most ${bytes(most)}`,
      describe: (part) => ({ title: `at ${seconds((part + 0.5) / parts * length)}`,
        rows: lines.slice(0, 12).map((line) =>
          tipRow(line.style, `rank ${line.rank} ${bytes(line.values[part])}`)) }) }));
};

const edges = (feed) => {
  const { columns, rows } = feed.edges;
  if (!rows.length) return null;
  const named = columns.length <= 12;
  const most = Math.max(...rows.flatMap((row) => row.bytes));
  const place = (name) => named ? h("span", null, feed.ranks[name]?.place ?? "") : null;
  const cell = (row, value, to) => {
    const part = most > 0 ? value / most : 0;
    return h("td", { class: `${part > 0.5 ? "strong" : ""}${row.name === columns[to] && value > 0 ? " own" : ""}`,
      style: `background:color-mix(in srgb, var(--accent) ${Math.round(100 * part)}%, var(--page))`,
      "data-bytes": value, title: `from rank ${row.name} to rank ${columns[to]}: ${bytes(value)}` },
      named ? (value ? bytes(value) : "-") : null);
  };
  return section("edges", "Bytes sent between ranks",
    "Bytes over the whole feed, counted at each receiving rank. Ranks that need the same bytes share one message in " +
    "shared memory. Dashed: what a reader delivered to itself.",
    h("div", { class: "scroll" }, h("table", { class: named ? "matrix" : "matrix dense" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "from \\ to"), columns.map((name, number) =>
        named ? h("th", { scope: "col" }, `rank ${name}`, place(name))
          : h("th", { scope: "col", "aria-label": `rank ${name}` }, number % 8 === 0 ? name.split("-")[0] : null)))),
      h("tbody", null, rows.map((row) => h("tr", null, h("th", { scope: "row" }, `rank ${row.name}`, place(row.name)),
        row.bytes.map((value, to) => cell(row, value, to))))))));
};

const ranks = (feed) => {
  const first = 256;
  const dash = (value, text) => value > 0 ? text(value) : "-";
  const timeOf = (rank) => {
    const whole = sum(rank.shares);
    const part = (kind, at) => ({ style: `k-${kind.style}`, name: kind.name, share: rank.shares[at] / whole });
    return whole > 0 ? bar(kinds.map(part)) : null;
  };
  const waitShare = (rank) => rank.seconds > 0 ? rank.wait_s / rank.seconds : 0;
  const table = [
    { name: "place", value: (rank) => rank.place, show: (rank) => rank.place },
    { name: "batches", number: true, value: (rank) => rank.batches, show: (rank) => commas(rank.batches) },
    { name: "received", number: true, value: (rank) => rank.bytes, show: (rank) => bytes(rank.bytes) },
    { name: "waited", number: true, value: (rank) => rank.wait_s, show: (rank) => seconds(rank.wait_s) },
    { name: "of its time", number: true, value: waitShare, show: (rank) => share(waitShare(rank)) },
    { name: "its time", show: timeOf },
    { name: "as copies", number: true, value: (rank) => rank.copied, show: (rank) => dash(rank.copied, commas) },
    { name: "read", number: true, value: (rank) => rank.bytes_read,
      show: (rank) => rank.reader ? bytes(rank.bytes_read) : "-" },
    { name: "peak memory", number: true, value: (rank) => rank.memory, show: (rank) => dash(rank.memory, bytes) },
  ];
  const line = (rank) => h("tr", { "data-rank": rank.rank },
    h("th", { scope: "row" }, `rank ${rank.rank}`, rank.reader ? h("span", { class: "tag" }, "reads") : null),
    table.map((column) => h("td", { class: column.number ? "n" : null }, column.show(rank))));
  const body = h("tbody");
  const more = h("button", { type: "button", class: "more" }, `Show all ${commas(feed.ranks.length)} ranks`);
  let order = [...feed.ranks], limit = first;
  const fill = () => {
    body.replaceChildren(...order.slice(0, limit).map(line));
    more.hidden = order.length <= limit;
  };
  more.addEventListener("click", () => { limit = Infinity; fill(); });
  const heads = [{ name: "rank", value: (rank) => rank.rank }, ...table].map((column) => {
    const head = h("th", { scope: "col", class: column.number ? "n" : null });
    if (!column.value) { head.append(column.name); return head; }
    const button = h("button", { type: "button" }, column.name);
    // Numbers begin with the largest, names and ranks with the first.
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const up = before === null ? !column.number : before === "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const compare = (a, b) => typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
      order = [...feed.ranks].sort((a, b) => (up ? 1 : -1) * compare(column.value(a), column.value(b)));
      fill();
    });
    head.append(button);
    return head;
  });
  fill();
  return section("ranks", "Ranks",
    "The bytes that each rank received, and its waiting time. Click the name of a column to sort by it.",
    h("div", { class: "scroll" }, h("table", { class: "ranks" }, h("thead", null, h("tr", null, heads)), body)), more);
};

const footer = (feed) => {
  const { stride, dropped, silent } = feed.recording;
  const { version, host, began, command, prepare_seconds } = feed.run;
  return (version ? `Written by levada ${version} on ${host}, for the run that began at ${began}: levada ${command}. ` +
    `The data took ${seconds(prepare_seconds)} to open, before the first step.` : "Written by levada.") +
    (dropped ? ` To bound memory, the plots show one step of ${commas(stride)} (${counted(dropped, "event")} left ` +
      "out); the table counts all." : "") +
    (silent ? ` The records of ${counted(silent, "rank")} are empty or lost.` : "");
};

// The page.
const pipelines = data.pipelines.map(pipelineSection);
if (data.more_pipelines > 0) {
  const more = counted(data.more_pipelines, "more rank");
  pipelines.push(h("p", { class: "about" }, `The pipelines of ${more} are not shown.`));
}
const feed = data.feed;
const content = !feed ? [h("p", { class: "eyebrow" }, "levada"), h("h1", null, "Pipeline"), pipelines] : [
  header(feed), figures(feed),
  feed.finding ? h("section", { class: "card finding" }, h("p", null, feed.finding)) : null,
  timeline(feed, "step", "waits", "Where each rank's time went",
    "Time runs from left to right. Color is time in which a rank waited for its next batch, and shows what the " +
    "reader did meanwhile; the pale rest is the rank's own step. On the right: the share of time that it waited."),
  timeline(feed, "reader", "readers", "What the readers did",
    "Each reader's thread over the same time. A reader in back-pressure waits because the queue is full: it has time " +
    "to spare. One that reads or packs all the time sets the pace. On the right: the share of time that it read and packed."),
  pipelines, work(feed), memory(feed), edges(feed), ranks(feed)];
const end = h("footer", null, feed ? footer(feed) : "Written by levada.");
main.replaceChildren(...content.flat(Infinity).filter((each) => each !== null), end);
document.title = `levada ${feed ? `feed ${feed.mesh || "one rank"}` : "pipeline"}`;
main.getBoundingClientRect();  // lays the page out
root.dataset.ready = Math.round(performance.now());
