"use strict";
// Draws what /kvboost/overview tells, every two seconds. Text from the server is only ever set as text, never as HTML.
const REFRESH_MS = 2000;
const NAMESPACE_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  const { style, ...rest } = properties;
  Object.assign(node, rest);
  if (style) Object.assign(node.style, style);
  node.append(...children.filter((child) => child !== null && child !== ""));
  return node;
}

function draw(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const share = (part, whole) => (whole ? `${(100 * part / whole).toFixed(1)} %` : "–");
const count = (number) => number.toLocaleString("en");
const seconds = (s) => (s < 1 ? `${(1000 * s).toFixed(0)} ms` : `${s.toFixed(2)} s`);
const clock = (at_s) => new Date(1000 * at_s).toLocaleTimeString();
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) { number /= 1024; unit += 1; }
  return `${unit && number < 100 ? number.toFixed(1) : number.toFixed(0)} ${units[unit]}`;
}

function showStatus(told) {
  const up = told.runtimes.filter((one) => one.up);
  const models = [...new Set(up.map((one) => one.model))];
  const missing = told.runtimes.filter((one) => !one.up).map((one) => `runtime ${one.address}`);
  if (told.cache.address && !told.cache.up) missing.push(`cache ${told.cache.address}`);
  const words = models.length ? [`${models.join(", ")} · ${up.length} of ${told.runtimes.length} runtimes`] : [];
  if (missing.length) words.push(`no answer from ${missing.join(", ")}`);
  byId("status").className = missing.length ? "bad" : "muted";
  byId("status").textContent = words.join(" · ");
}

function showCards(told) {
  const counters = told.runtimes.filter((one) => one.up).map((one) => one.counters);
  const total = (name) => sum(counters.map((one) => one[name] || 0));
  const prompt = total("prompt_tokens");
  const cards = [
    ["prompt tokens reused", share(prompt - total("tokens_computed"), prompt)],
    ["requests", count(total("requests"))],
    ["in flight", count(told.in_flight)],
    ["K/V held", told.cache.up ? bytes(told.cache.stored_bytes) : "–"],
    ["fallbacks", count(total("fallbacks"))],
  ];
  byId("cards").replaceChildren(
    ...cards.map(([name, value]) => make("div", { className: "card" }, make("b", { textContent: value }), name)),
  );
}

function showHistory(told) {
  const reused = told.palette.tiers.filter((one) => one.tier !== "computed");
  const points = told.history.filter((point) => point.requests > 0);
  byId("legend").replaceChildren(...told.palette.tiers.map((one) =>
    make("span", { title: one.meaning }, make("i", { style: { background: one.colour } }), one.tier)),
  make("span", { title: "had a donor, recomputed all the same" },
    make("i", { style: { background: told.palette.repaired } }), "repaired"));
  if (!points.length) {
    byId("history").replaceChildren(make("p", { className: "muted", textContent: "No request yet." }));
    return;
  }
  const wide = Math.max(byId("history").clientWidth, 280), high = 190, left = 46, bottom = 22, top = 8;
  const first = told.history[0].at_s, last = Math.max(told.history[told.history.length - 1].at_s, first + 1);
  const width = Math.max((wide - left) / Math.max(told.history.length, 24) - 1, 2);
  const x = (at_s) => left + (wide - left - width) * (at_s - first) / (last - first);
  const y = (part) => top + (high - top - bottom) * (1 - part);
  const chart = draw("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img",
    "aria-label": "share of prompt tokens reused, by tier, over time" });
  for (const part of [0, 0.5, 1]) {
    chart.append(draw("line", { x1: left, x2: wide, y1: y(part), y2: y(part), stroke: "var(--line)" }));
    chart.append(draw("text", { x: left - 6, y: y(part) + 4, "text-anchor": "end" }, `${100 * part} %`));
  }
  for (const point of points) {
    const all = sum(Object.values(point.tokens_by_tier));
    let below = 0;
    const words = [`${clock(point.at_s)}, ${point.requests} requests`];
    const bars = draw("g", {});
    for (const one of reused) {
      const part = (point.tokens_by_tier[one.tier] || 0) / Math.max(all, 1);
      if (!part) continue;
      bars.append(draw("rect", { x: x(point.at_s), y: y(below + part), width, height: y(0) - y(part), fill: one.colour }));
      below += part;
      words.push(`${one.tier} ${share(part, 1)}`);
    }
    // What was computed shows as a foot line, so that a request without reuse is seen.
    bars.append(draw("rect", { x: x(point.at_s), y: y(0), width, height: 3, fill: "var(--muted)" }));
    bars.append(draw("title", {}, words.join(", ")));
    chart.append(bars);
  }
  chart.append(draw("text", { x: left, y: high - 4 }, clock(first)));
  chart.append(draw("text", { x: wide, y: high - 4, "text-anchor": "end" }, clock(last)));
  byId("history").replaceChildren(chart);
}

function showMemory(told) {
  if (!told.cache.up) {
    const words = told.cache.address ? "The cache does not answer." : "No cache service is watched.";
    byId("memory").replaceChildren(make("p", { className: "muted", textContent: words }));
    return;
  }
  const held = [...told.cache.namespaces].sort((a, b) => b.stored_bytes - a.stored_bytes);
  const colour = (i) => NAMESPACE_COLOURS[i % NAMESPACE_COLOURS.length];
  const bar = make("div", { className: "bar", role: "img" }, ...held.map((one, i) => make("b", {
    style: { width: `${100 * one.stored_bytes / told.cache.max_bytes}%`, background: colour(i) } })));
  bar.setAttribute("aria-label", "bytes of K/V by namespace, of the whole budget");
  const rows = held.map((one, i) => make("p", { className: "facts" },
    make("i", { style: { background: colour(i), display: "inline-block", width: ".8rem", height: ".8rem",
      borderRadius: "3px", marginRight: ".4rem" } }),
    `${one.model}${one.tenant ? `, tenant ${one.tenant}` : ""} · ${bytes(one.stored_bytes)} in ${count(one.chunks)} ` +
    `chunks, ${count(one.evicted_chunks)} evicted`));
  const free = `${bytes(told.cache.stored_bytes)} of ${bytes(told.cache.max_bytes)}`;
  byId("memory").replaceChildren(bar, make("p", { textContent: free }), ...rows);
}

// One tier of one runtime over time: its setting as a line on the left scale, the audits' mean KL as dots on the right one.
function settingChart(told, address, tier) {
  const points = told.history.flatMap((point) => ((point.audits || {})[address] || [])
    .filter((one) => one.tier === tier).map((one) => ({ at_s: point.at_s, ...one })));
  if (!points.length) return null;
  const name = tier === "exact" ? "recompute_ratio" : "threshold";
  const wide = Math.max(byId("audits").clientWidth, 250), high = 120, left = 38, right = 44, bottom = 20, top = 8;
  const first = points[0].at_s, last = Math.max(points[points.length - 1].at_s, first + 1);
  const x = (at_s) => left + 4 + (wide - left - right - 8) * (at_s - first) / (last - first);
  const y = (part) => top + (high - top - bottom) * (1 - part);
  const most = Math.max(...points.map((one) => one.mean_kl || 0));
  const chart = draw("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img",
    "aria-label": `${tier}: ${name.replace("_", " ")} and mean KL of audits over time` });
  for (const part of [0, 0.5, 1]) {
    chart.append(draw("line", { x1: left, x2: wide - right, y1: y(part), y2: y(part), stroke: "var(--line)" }));
    chart.append(draw("text", { x: left - 6, y: y(part) + 4, "text-anchor": "end", fill: "#0072b2" }, `${part}`));
    if (most) chart.append(draw("text", { x: wide - right + 6, y: y(part) + 4 }, `${part ? (part * most).toPrecision(2) : 0}`));
  }
  chart.append(draw("polyline", { points: points.map((one) => `${x(one.at_s)},${y(one[name])}`).join(" "),
    fill: "none", stroke: "#0072b2", "stroke-width": 2 }));
  for (const one of points.filter((each) => most && each.mean_kl !== null)) {
    chart.append(draw("circle", { cx: x(one.at_s), cy: y(one.mean_kl / most), r: 2.5, fill: "#d55e00" },
      draw("title", {}, `${clock(one.at_s)}, ${name.replace("_", " ")} ${one[name].toFixed(3)}, mean KL ${one.mean_kl.toPrecision(2)}`)));
  }
  chart.append(draw("text", { x: left, y: high - 4 }, clock(first)));
  chart.append(draw("text", { x: wide - right, y: high - 4, "text-anchor": "end" }, clock(last)));
  const key = (colour, words) => make("span", {}, make("i", { style: { background: colour } }), words);
  return make("div", { className: "setting" }, chart, make("div", { className: "legend" },
    key("#0072b2", name === "threshold" ? "threshold (left)" : "share repaired (left)"),
    key("#d55e00", most ? "mean KL of audits, nats (right)" : "mean KL of audits: none yet")));
}

function showAudits(told) {
  const audits = told.runtimes.filter((one) => one.up).flatMap((one) =>
    one.audits.map((audit) => ({ ...audit, runtime: one.address })));
  if (!audits.length) {
    byId("audits").replaceChildren(make("p", { className: "muted", textContent: "Only lossless reuse is on." }));
    return;
  }
  const several = new Set(audits.map((one) => one.runtime)).size > 1;
  byId("audits").replaceChildren(...audits.map((one) => {
    const where = several ? `${one.runtime}` : "";
    const head = make("header", {}, make("strong", { textContent: one.off ? `${one.tier}: switched off` : one.tier }),
      make("span", { className: "muted", textContent: where }));
    const now = one.tier === "exact" ? [] : [`threshold ${one.threshold.toFixed(3)}`];
    now.push(`repairs ${share(one.recompute_ratio, 1)}`);
    const found = one.audits ? [`mean KL ${one.mean_kl === null ? "–" : one.mean_kl.toPrecision(2)}`,
      `${count(one.violations)} of ${count(one.audits)} audits over the bound on KL`] : ["no audit yet"];
    const bounds = make("div", { className: "bar", role: "img" },
      make("b", { style: { marginLeft: `${100 * one.rate_low}%`, width: `${100 * (one.rate_high - one.rate_low)}%`,
        background: "#0072b2" } }));
    bounds.setAttribute("aria-label", "bounds of the share of violations");
    const known = one.rate_high - one.rate_low < 1;
    const between = known
      ? `at this setting ${share(one.rate_low, 1)} to ${share(one.rate_high, 1)} of requests violate`
      : "too few audits at this setting to bound the share of violations";
    return make("div", { className: "row" }, head,
      make("div", { className: "facts", textContent: [...now, ...found].join(" · ") }), known ? bounds : null,
      make("div", { className: "facts", textContent: between }), settingChart(told, one.runtime, one.tier));
  }));
}

function strip(request, palette) {
  const colours = Object.fromEntries(palette.tiers.map((one) => [one.tier, one.colour]));
  const place = (start, end) => ({ left: `${100 * start / request.prompt_tokens}%`,
    width: `max(1px, ${100 * (end - start) / request.prompt_tokens}%)` });
  const bar = make("div", { className: "strip", role: "img" },
    ...request.runs.map((run) => make("b", { title: `${run.tier}, tokens ${run.start} to ${run.end}`,
      style: { ...place(run.start, run.end), background: colours[run.tier] } })),
    ...request.repaired.map(([start, end]) => make("u", { title: `repaired, tokens ${start} to ${end}`,
      style: { ...place(start, end), background: palette.repaired } })));
  bar.setAttribute("aria-label", "the prompt, coloured by tier");
  return bar;
}

function showRequests(told) {
  if (!told.requests.length) {
    byId("requests").replaceChildren(make("p", { className: "muted", textContent: "No request yet." }));
    return;
  }
  byId("requests").replaceChildren(...told.requests.map((one) => {
    const head = make("header", {},
      make("span", {}, make("strong", { textContent: share(one.reused_tokens, one.prompt_tokens) }),
        ` of ${count(one.prompt_tokens)} tokens reused`),
      make("span", { className: "muted", textContent: `${clock(one.at_s)} · ${one.model}` }));
    const facts = [`first token ${seconds(one.ttft_s)}`, `${count(one.new_tokens)} answer tokens in ${seconds(one.duration_s)}`];
    if (one.saved_s > 0) facts.push(`saved about ${seconds(one.saved_s)}`);
    if (one.recomputed_tokens) facts.push(`${count(one.recomputed_tokens)} tokens repaired`);
    if (one.declined.length) facts.push(one.declined.join("; "));
    const line = make("div", { className: "facts", textContent: facts.join(" · ") });
    if (one.has_map) line.append(" · ", make("a", { href: `kvboost/requests/${one.id}/map`, textContent: "reuse map" }));
    const fault = one.fallback ? make("div", { className: "facts bad", textContent: `fell back: ${one.fallback}` }) : null;
    return make("div", { className: "row" }, head, strip(one, told.palette), line, fault);
  }));
}

async function refresh() {
  try {
    const answer = await fetch("kvboost/overview");
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const told = await answer.json();
    for (const show of [showStatus, showCards, showHistory, showMemory, showAudits, showRequests]) show(told);
    document.body.dataset.shown = "yes";
  } catch (error) {
    byId("status").className = "bad";
    byId("status").textContent = `the gateway does not answer (${error.message})`;
  }
  setTimeout(refresh, document.hidden ? 5 * REFRESH_MS : REFRESH_MS);
}

refresh();
