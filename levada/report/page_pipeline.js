// Draws a pipeline with the functions of page.js, which is loaded after this file.
"use strict";
const roles = ["dispatcher", "worker", "consumer"];
const size = { width: 186, height: 62, across: 18, down: 24, head: 34, margin: 16, between: 64, caller: 74, shadow: 5 };

/// The layout: a box for each kind of process, with its stages from top to bottom, each below its inputs.
const layout = (pipeline) => {
  const boxes = [], nodes = new Map();
  const passesOn = pipeline.dispatch_boundary !== null && pipeline.dispatch_boundary === pipeline.collect_boundary;
  let x = size.shadow;
  for (const role of roles) {
    const mine = [];
    for (const stage of pipeline.stages.filter((each) => each.process === role)) {
      const before = mine.filter((node) => stage.inputs.includes(node.stage.name));
      const node = { stage, column: 0, level: 0 };
      if (before.length) node.column = Math.min(...before.map((each) => each.column));
      if (before.length) node.level = Math.max(...before.map((each) => each.level)) + 1;
      while (mine.some((other) => other.level === node.level && other.column === node.column)) ++node.column;
      mine.push(node);
      nodes.set(stage.name, node);
    }
    if (role === "worker" && passesOn) mine.push({ column: 0, level: 0 });
    if (!mine.length) continue;
    const columns = Math.max(...mine.map((node) => node.column)) + 1;
    const levels = Math.max(...mine.map((node) => node.level)) + 1;
    const box = { role, nodes: mine, x, width: 2 * size.margin + columns * size.width + (columns - 1) * size.across,
      height: size.head + size.margin + levels * size.height + (levels - 1) * size.down };
    for (const node of mine) {
      node.box = box;
      node.x = x + size.margin + node.column * (size.width + size.across);
      node.y = size.shadow + size.head + node.level * (size.height + size.down);
    }
    x += box.width + size.between;
    boxes.push(box);
  }
  return { boxes, nodes, pass: passesOn ? boxes.find((box) => box.role === "worker").nodes.at(-1) : null };
};

const graph = (pipeline, id, caller) => {
  const { boxes, nodes, pass } = layout(pipeline);
  const titles = { dispatcher: "dispatching process", worker: counted(pipeline.workers, "worker"),
    consumer: "consumer" };
  const text = (x, y, style, words) => s("text", { x, y, class: style }, words);
  const short = (words, max) =>
    [...words].length <= max ? words : `${[...words].slice(0, max - 1).join("")}\u2026`;
  const rect = (x, y, width, height, rx, style) => s("rect", { x, y, width, height, rx, class: style });
  const drawn = ({ stage, x, y }) => {
    const frame = rect(x, y, size.width, size.height, 8);
    if (!stage) return s("g", { class: "node" }, frame, text(x + 12, y + 35, "what", "pass on"));
    const counts = pipeline.processes.filter((process) => process.role === stage.process)
      .map((process) => process.stages.find((each) => each.name === stage.name));
    const items = sum(counts.map((each) => each.items)), busy = sum(counts.map((each) => each.busy_s));
    const works = pipeline.seconds > 0 && counts.length ? Math.min(busy / pipeline.seconds / counts.length, 1) : 0;
    const rate = pipeline.seconds > 0 ? items / pipeline.seconds : 0, room = size.width - 16;
    const meter = (style, width) => s("path", { class: style, d: `M${x + 8} ${y + size.height - 4}h${width}` });
    return s("g", { class: stage.name === pipeline.bottleneck ? "node slowest" : "node", "data-stage": stage.name },
      s("title", null, `${stage.name}: ${stage.what}`), frame, text(x + 12, y + 20, "name", short(stage.name, 20)),
      text(x + 12, y + 36, "what", short(stage.what, 24)),
      text(x + 12, y + 51, "what", `${thousands(rate)}/s, works ${share(works)}`),
      meter("meter", room), meter("meter full", (room * works).toFixed(1)));
  };
  const arrow = (style, path) => s("path", { class: style, d: path });
  const down = (from, { x, y }) => {
    const begin = from.x + size.width / 2, end = x + size.width / 2, bend = y - size.down;
    return arrow("way", `M${begin} ${from.y + size.height}V${bend}C${begin} ${y - 2} ${end} ${bend} ${end} ${y - 2}`);
  };
  const across = (from, x, y) => {
    const begin = { x: from.x + size.width, y: from.y + size.height / 2 }, reach = size.between;
    const bend = `${begin.x + reach} ${begin.y} ${x - reach} ${y}`;
    return arrow("way crosses", `M${begin.x} ${begin.y}C${bend} ${x - 2} ${y}`);
  };
  const enter = (from, to) => from.box === to.box ? down(from, to) : across(from, to.x, to.y + size.height / 2);
  const leaves = (name) => pass && name === pipeline.collect_boundary ? pass : nodes.get(name);
  const ways = pipeline.stages.flatMap((stage) =>
    stage.inputs.map((input) => enter(leaves(input), nodes.get(stage.name))));
  if (pass) ways.push(enter(nodes.get(pipeline.dispatch_boundary), pass));
  const last = leaves(pipeline.stages.at(-1).name), end = boxes.at(-1);
  const out = { x: end.x + end.width + size.between, y: last.y + size.height / 2 };
  ways.push(across(last, out.x, out.y));
  const width = out.x + size.caller + size.shadow;
  const height = Math.max(...boxes.map((box) => box.height)) + 4 * size.shadow;
  const copies = (box) => (box.role === "worker" && pipeline.workers > 1 ? [2, 1, 0] : [0])
    .filter((copy) => copy < Math.max(pipeline.workers, 1))
    .map((copy) => rect(box.x + copy * size.shadow, size.shadow * (copy + 1), box.width, box.height, 12));
  const head = s("marker", { id: `tip-${id}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerUnits: "userSpaceOnUse",
    markerWidth: 9, markerHeight: 9, orient: "auto" }, s("path", { d: "M0 0L8 4L0 8z" }));
  return h("div", { class: "wide" }, s("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, width, height,
    role: "img", "aria-label": "the stages of the pipeline and their processes" }, s("defs", null, head),
    boxes.map((box) => s("g", { class: "process" }, copies(box),
      text(box.x + size.margin, size.shadow + 22, "role", titles[box.role]), box.nodes.map(drawn))),
    s("g", { "marker-end": `url(#tip-${id})` }, ways), rect(out.x, out.y - 16, size.caller, 32, 16, "caller"),
    text(out.x + size.caller / 2, out.y + 4, "what middle", caller)));
};

const stageTable = (pipeline) => {
  const row = (process, counts, number) => {
    const part = (time) => pipeline.seconds > 0 ? time / pipeline.seconds : 0;
    const working = Math.min(part(counts.busy_s), 1), input = Math.min(part(counts.waited_s), 1 - working);
    const room = pipeline.seconds > 0 ? 1 - working - input : 0;
    const numbers = [commas(counts.items), thousands(part(counts.items)), share(working), share(input), share(room)];
    const cells = numbers.map((text) => h("td", { class: "n" }, text));
    if (counts.skipped > 0) cells[0].append(h("span", { class: "tag" }, `${commas(counts.skipped)} skipped`));
    return h("tr", { "data-process": process.name, "data-stage": counts.name },
      number === 0 ? h("th", { scope: "rowgroup", rowspan: process.stages.length }, process.name) : null,
      h("td", null, counts.name,
        counts.name === pipeline.bottleneck ? h("span", { class: "tag slowest" }, "bottleneck") : null), cells,
      h("td", null, bar([{ style: "k-work", name: "working", share: working },
        { style: "k-input", name: "waiting for input", share: input },
        { style: "k-rest", name: "waiting for room", share: room }])));
  };
  const processes = roles.flatMap((role) => pipeline.processes.filter((process) => process.role === role));
  const heads = ["process", "stage", "items", "a second", "working", "waits for input", "waits for room", "its time"];
  return h("div", { class: "scroll" }, h("table", { class: "ranks stages" },
    h("thead", null, h("tr", null, heads.map((name, at) =>
      h("th", { scope: "col", class: at >= 2 && at <= 6 ? "n" : null }, name)))),
    h("tbody", null, processes.map((process) =>
      process.stages.map((counts, number) => row(process, counts, number))))));
};

const pipelineSection = ({ rank, report }) => {
  const id = rank < 0 ? "pipeline" : `pipeline-${rank}`;
  const workers = report.workers ? counted(report.workers, "worker") : "no workers";
  const facts = [counted(report.stages.length, "stage"), workers, `${seconds(report.seconds)} of epochs`];
  const made = section(id, rank < 0 ? "Stages" : `Pipeline that rank ${rank} reads from`,
    `${facts.join(" \u00b7 ")}. Stages before the bottleneck wait for room, stages after it wait for input.`,
    h("p", { class: "bottleneck" }, report.finding), graph(report, id, rank < 0 ? "your loop" : "the feed"),
    legend([{ style: "k-work", name: "working" },
      { style: "k-input", name: "waiting for input: the stage before it has nothing yet" },
      { style: "k-rest", name: "waiting for room: no stage after it has requested more" }]), stageTable(report));
  made.className = "card pipeline";
  return made;
};
