#include "levada/report/feed_page_assets.h"

namespace levada::report {

const std::string_view feed_page_style = R"css(
:root { color-scheme: light dark;
  --page: #f5f6f8; --card: #ffffff; --line: #dde1e7; --ink: #1b2229; --soft: #5a6572; --accent: #1769aa;
  --alert: #b3261e; --alert-page: #fdecea;
  --read: #1f6fb5; --pack: #159570; --memory: #8a4bc2; --room: #d4510e; --grant: #c29300; --handover: #8b95a3;
  --step: #e1e6ec; --curve-5: #a8326b; --curve-6: #5d7a00; --curve-7: #6b5b4b; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161b; --card: #1a2027; --line: #2f3843; --ink: #e8ecf1; --soft: #9ba7b5; --accent: #6db6f2;
  --alert: #ffb4a9; --alert-page: #43201c;
  --read: #57a5e6; --pack: #36c796; --memory: #bd8af0; --room: #ff8a52; --grant: #edbd45; --handover: #8b96a5;
  --step: #2c353f; --curve-5: #f08ab8; --curve-6: #b6d34f; --curve-7: #c8b39d; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 30px; line-height: 1.15; letter-spacing: -.015em; margin: 2px 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 18px; letter-spacing: -.005em; margin: 0 0 2px; }
p { margin: 0 0 10px; }
code { font: .92em ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; overflow-wrap: anywhere; }
.eyebrow { color: var(--accent); font-weight: 650; font-size: 13px; letter-spacing: .04em; margin: 0; }
.facts, .about, footer { color: var(--soft); }
.about { max-width: 104ch; font-size: 14px; margin-bottom: 14px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 18px 20px;
  margin-top: 18px; }
.alert { background: var(--alert-page); color: var(--alert); border: 1px solid currentColor; border-radius: 12px;
  padding: 12px 16px; margin: 16px 0 0; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(148px, 1fr)); gap: 12px; margin: 18px 0 0; }
.figures > div { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 11px 12px; }
.figures dt { color: var(--soft); font-size: 13px; }
.figures dd { margin: 0; font-size: 20px; font-weight: 650; letter-spacing: -.01em; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.figures small { font-size: 12.5px; font-weight: 500; letter-spacing: 0; white-space: nowrap; }
.figures dd + dd { color: var(--soft); font-size: 13px; font-weight: 400; letter-spacing: 0; line-height: 1.4; }
.finding { border-left: 4px solid var(--accent); }
.finding p { margin: 0; font-size: 16px; max-width: 90ch; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 8px; list-style: none; margin: 0 0 12px -8px; padding: 0;
  font-size: 13px; }
.legend li { display: flex; align-items: baseline; gap: 7px; padding: 2px 8px; border-radius: 6px; cursor: default; }
.legend li[data-kind]:hover { background: var(--page); }
.legend span { color: var(--soft); font-variant-numeric: tabular-nums; }
.swatch { display: inline-block; flex: none; width: 11px; height: 11px; border-radius: 3px; align-self: center; }
.timeline-row { display: grid; grid-template-columns: 128px 1fr 58px; gap: 0 12px; align-items: center;
  margin-bottom: 5px; }
.who { font-size: 13px; line-height: 1.2; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.who span { color: var(--soft); margin-left: 5px; }
.sum { font-size: 13px; text-align: right; font-variant-numeric: tabular-nums; }
.timeline-row svg { display: block; width: 100%; height: var(--tall); border-radius: 4px; cursor: crosshair; }
.stage { position: relative; min-width: 0; }
.cursor { position: absolute; top: -3px; bottom: -3px; left: var(--x, 0); width: 1px; background: var(--ink);
  opacity: 0; pointer-events: none; }
.plot.active .cursor { opacity: .65; }
.plot[data-only] path { opacity: .12; }
.axis { position: relative; height: 22px; border-top: 1px solid var(--line); margin-top: 8px; color: var(--soft);
  font-size: 12px; font-variant-numeric: tabular-nums; }
.axis span { position: absolute; top: 4px; transform: translateX(-50%); white-space: nowrap; }
.axis span:first-child { transform: none; }
.axis span.last { transform: translateX(-100%); }
.axis span::before { content: ""; position: absolute; top: -5px; left: 50%; height: 5px; width: 1px;
  background: var(--line); }
.axis span:first-child::before { left: 0; }
.axis span.last::before { left: 100%; }
.curves { display: grid; grid-template-columns: 74px 1fr; gap: 0 10px; }
.curves .axis { grid-column: 2; margin-top: 0; }
.heights { position: relative; color: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
.heights span { position: absolute; right: 0; transform: translateY(-50%); white-space: nowrap; }
.curves svg { display: block; width: 100%; height: 210px; cursor: crosshair; }
.curves .grid { stroke: var(--line); stroke-width: 1; }
.curves .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.scroll { overflow: auto; max-height: 560px; margin: 0 -20px -6px; padding: 0 20px 6px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
.ranks { width: 100%; }
th { font-weight: 600; text-align: left; }
.ranks thead th { position: sticky; top: 0; background: var(--card); color: var(--soft); font-weight: 500;
  font-size: 13px; vertical-align: bottom; }
.ranks th, .ranks td { padding: 7px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
.ranks .n { text-align: right; }
.ranks tbody tr:last-child > * { border-bottom: 0; }
.bar { display: flex; width: 150px; height: 12px; border-radius: 3px; overflow: hidden; background: var(--step); }
.bar i { display: block; height: 100%; }
.tag { font-size: 12px; color: var(--accent); border: 1px solid currentColor; border-radius: 99px; padding: 0 7px;
  margin-left: 7px; }
.matrix th { font-size: 13px; padding: 3px 8px; white-space: nowrap; font-weight: 500; }
.matrix thead th { text-align: center; }
.matrix th span { display: block; color: var(--soft); font-weight: 400; font-size: 12px; }
.matrix thead th:first-child { text-align: left; color: var(--soft); font-weight: 400; }
.matrix td { min-width: 20px; height: 34px; padding: 3px 8px; text-align: center; font-size: 13px; white-space: nowrap;
  border: 2px solid var(--card); border-radius: 6px; background: var(--page); }
.matrix td.own { outline: 1px dashed currentColor; outline-offset: -4px; }
.matrix td.strong { color: var(--card); }
.matrix.dense td { padding: 0; height: 22px; }
.matrix.dense th { padding: 2px 4px; font-size: 11px; }
#tip { position: fixed; z-index: 9; pointer-events: none; visibility: hidden; background: var(--card); color: var(--ink);
  border: 1px solid var(--line); border-radius: 8px; padding: 8px 11px; font-size: 13px; line-height: 1.45;
  box-shadow: 0 6px 24px rgb(0 0 0 / .18); max-width: 280px; }
#tip div { display: flex; align-items: center; gap: 7px; font-variant-numeric: tabular-nums; }
#tip b { display: block; }
footer { margin-top: 22px; font-size: 13px; }
.k-read { fill: var(--read); background: var(--read); } .k-pack { fill: var(--pack); background: var(--pack); }
.k-memory { fill: var(--memory); background: var(--memory); } .k-room { fill: var(--room); background: var(--room); }
.k-grant { fill: var(--grant); background: var(--grant); }
.k-handover { fill: var(--handover); background: var(--handover); }
.k-step { fill: var(--step); background: var(--step); }
.plot[data-only=read] .k-read, .plot[data-only=pack] .k-pack, .plot[data-only=memory] .k-memory,
.plot[data-only=room] .k-room, .plot[data-only=grant] .k-grant, .plot[data-only=handover] .k-handover,
.plot[data-only=step] .k-step { opacity: 1; }
.c-0 { stroke: var(--read); background: var(--read); } .c-1 { stroke: var(--room); background: var(--room); }
.c-2 { stroke: var(--pack); background: var(--pack); } .c-3 { stroke: var(--memory); background: var(--memory); }
.c-4 { stroke: var(--grant); background: var(--grant); } .c-5 { stroke: var(--curve-5); background: var(--curve-5); }
.c-6 { stroke: var(--curve-6); background: var(--curve-6); } .c-7 { stroke: var(--curve-7); background: var(--curve-7); }
.c-other { stroke: var(--handover); background: var(--handover); }
@media (max-width: 620px) {
  main { padding: 18px 12px 32px; }
  h1 { font-size: 24px; }
  .card { padding: 14px 14px; }
  .scroll { margin: 0 -14px -6px; padding: 0 14px 6px; }
  .figures { grid-template-columns: 1fr 1fr; gap: 8px; }
  .figures > div { padding: 9px 12px; }
  .figures dd { font-size: 18px; }
  .timeline-row { grid-template-columns: 1fr auto; gap: 1px 8px; margin-bottom: 8px; }
  .timeline-row .who { order: 1; } .timeline-row .sum { order: 2; }
  .timeline-row .stage { order: 3; grid-column: 1 / 3; }
  .timeline-row.times .who, .timeline-row.times .sum { display: none; }
  .timeline-row.times > div { grid-column: 1 / 3; }
  .axis span:nth-child(even) { display: none; }
  .curves { grid-template-columns: 60px 1fr; }
}
@media print { body { background: none; } .card { break-inside: avoid; } }
)css"
                                         // of a pipeline
                                         R"css(
.bottleneck { border-left: 4px solid var(--accent); padding-left: 12px; margin: 4px 0 16px; font-size: 16px;
  max-width: 90ch; }
.wide { overflow-x: auto; }
.graph { display: block; margin: 0 auto 14px; font-size: 12px; }
.graph text { fill: var(--soft); } .graph .middle { text-anchor: middle; }
.graph .role { font-size: 13px; font-weight: 600; fill: var(--accent); }
.graph .name { font-size: 13.5px; font-weight: 600; fill: var(--ink); }
.graph .process > rect { fill: var(--page); stroke: var(--line); }
.graph .node rect { fill: var(--card); stroke: var(--line); }
.graph .slowest rect { stroke: var(--room); stroke-width: 2; }
.graph .meter { stroke: var(--step); stroke-width: 4; } .graph .full { stroke: var(--pack); }
.graph .slowest .full { stroke: var(--room); }
.graph .way { fill: none; stroke: var(--soft); stroke-width: 1.5; } .graph .crosses { stroke-width: 2.5; stroke: var(--accent); }
.graph marker path { fill: var(--soft); }
.graph .caller { fill: none; stroke: var(--line); }
.stages tbody th { vertical-align: top; } .stages tbody th, .stages tbody td { white-space: normal; }
.stages .n { white-space: nowrap; }
.tag.slowest { color: var(--room); white-space: nowrap; }
.k-work { background: var(--pack); } .k-input { background: var(--read); } .k-rest { background: var(--step); }
@media print { .scroll { max-height: none; overflow: visible; } .graph { max-width: 100%; height: auto; }
  .bar, .swatch { print-color-adjust: exact; -webkit-print-color-adjust: exact; } .card.pipeline { break-inside: auto; } }
)css";

const std::string_view feed_page_script = R"js(
(() => {
  "use strict";
  const root = document.documentElement;
  window.addEventListener("error", (event) => { root.dataset.error = event.message; });
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");

  const seconds = (value) => value >= 100 ? Math.floor(value / 60) + ":" + String(Math.floor(value % 60)).padStart(2, "0") + " min"
    : value >= 1 ? value.toFixed(2) + " s" : value >= 1e-3 ? (value * 1e3).toFixed(1) + " ms" : (value * 1e6).toFixed(0) + " us";
  const bytes = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (value >= 1024 && unit + 1 < units.length) { value /= 1024; ++unit; }
    return (unit ? value.toFixed(1) : value) + " " + units[unit];
  };

  const row = (style, text) => {
    const line = document.createElement("div");
    const swatch = document.createElement("i");
    swatch.className = "swatch " + style;
    line.append(swatch, text);
    return line;
  };
  const show = (event, title, rows) => {
    const head = document.createElement("b");
    head.textContent = title;
    tip.replaceChildren(head, ...rows);
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 16 + box.width > innerWidth;
    const left = right ? event.clientX - 16 - box.width : event.clientX + 16;
    const top = Math.min(event.clientY + 14, innerHeight - box.height - 6);
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, top) + "px";
    tip.style.visibility = "visible";
  };

  const shareRows = (timelineRow, part) => timelineRow.shares[part]
    .map((share, at) => [share, data.kinds[at]])
    .filter(([share]) => share > 0)
    .map(([share, kind]) => row("k-" + kind.style, kind.name + " " + (share / 10).toFixed(share < 100 ? 1 : 0) + "%"));
  const memoryRows = (part) => data.memory
    .filter((curve) => curve.used.length)
    .map((curve) => row(curve.style, "rank " + curve.rank + " " + bytes(curve.used[part])))
    .slice(0, 12);

  for (const stage of document.querySelectorAll(".stage[data-at]")) {
    const plot = stage.closest(".plot");
    const timelineRow = stage.dataset.at === "memory" ? null : data.rows[Number(stage.dataset.at)];
    const move = (event) => {
      const box = stage.getBoundingClientRect();
      const x = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 0.99999);
      const part = Math.floor(x * data.parts);
      plot.style.setProperty("--x", 100 * x + "%");
      plot.classList.add("active");
      const rows = timelineRow ? shareRows(timelineRow, part) : memoryRows(part);
      if (!rows.length) rows.push(document.createTextNode("nothing recorded"));
      show(event, (timelineRow ? timelineRow.name + ", " : "") + "at " + seconds(x * data.seconds), rows);
    };
    const leave = () => { plot.classList.remove("active"); tip.style.visibility = "hidden"; };
    stage.addEventListener("pointermove", move);
    stage.addEventListener("pointerdown", move);
    stage.addEventListener("pointerleave", leave);
    stage.addEventListener("pointercancel", leave);
  }
  for (const key of document.querySelectorAll(".legend li[data-kind]")) {
    const plot = key.closest(".plot");
    key.addEventListener("pointerenter", () => { plot.dataset.only = key.dataset.kind; });
    key.addEventListener("pointerleave", () => { delete plot.dataset.only; });
  }
  root.dataset.ready = "yes";
})();
)js";

}  // namespace levada::report
