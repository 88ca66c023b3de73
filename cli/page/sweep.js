// The combinations of a sweep: a slider for each list of values chooses one, and its numbers, the
// parts of its step, its timeline and its memory are drawn at once. cli/sweep_page.c writes the data.
"use strict";
(async () => {
  const LEFT = 80, HEAD = 20, GAP = 4, KERNELS = 22, TRANSFERS = 12; // pixels
  const NUMBERS = [["step_s", "step time", "s", -1], ["tokens_per_s", "tokens/s, all GPUs", "", 1],
                   ["tokens_per_s_per_gpu", "tokens/s, one GPU", "", 1], ["mfu", "MFU", "%", 1],
                   ["peak_bytes", "memory peak", "B", -1]];
  const PARTS = [["compute", "#0072b2"], ["exposed transfers", "#e69f00"], ["idle (bubble)", "#999999"]];
  const byId = (id) => document.getElementById(id);
  const head = JSON.parse(document.querySelector(".weft-sweep-head").textContent);
  const packed = await weftUnpack(document.querySelector(".weft-sweep-data"));
  const details = JSON.parse(new TextDecoder().decode(packed));
  const sliders = head.lists.map((_, i) => byId(`weft-knob-${i}`));
  const rows = [...byId("weft-all-cells").rows].slice(1), canvas = byId("weft-boxes");
  const known = head.cells.filter((cell) => "step_s" in cell);
  const longest = Math.max(...known.map((cell) => cell.step_s), 0);
  const fitting = known.filter((cell) => cell.fate === "ok");
  const mostBytes = details.reduce((most, d) => d ? Math.max(most, d.capacity,
    ...d.memory.map((parts) => parts.reduce((a, b) => a + b, 0))) : most, 0);

  const amount = (value, unit) => unit === "%" ? `${(100 * value).toFixed(1)} %` : weftQuantity(value, unit);
  const values = () => sliders.map((slider) => Number(slider.value));
  // The number of a combination: the last list varies fastest.
  const cellOf = (at) => at.reduce((cell, value, i) => cell * head.lists[i].values.length + value, 0);
  const bar = (spans, mark) => `<div class="bar">${spans.map(([share, colour, title]) =>
    `<span title="${title}" style="width:${(100 * share).toFixed(4)}%;background:${colour}"></span>`)
    .join("")}${mark ? `<i title="memory of a GPU" style="left:${(100 * mark).toFixed(3)}%"></i>` : ""}</div>`;
  const key = (looks) => looks.map(([word, colour]) =>
    `<b><span style="background:${colour}"></span>${weftSafe(word)}</b> `).join("");

  // ------------------------------------------------------------------------ words

  function showNumbers(cell) {
    const best = (name, sign) => fitting.length
      ? fitting.map((other) => other[name]).reduce((a, b) => (sign * b > sign * a ? b : a)) : NaN;
    byId("weft-numbers").innerHTML =
      "<tr><th></th><th>chosen</th><th>best of those that fit</th><th>chosen/best</th></tr>" +
      NUMBERS.map(([name, word, unit, sign]) => {
        const most = best(name, sign), large = name === "peak_bytes" && cell.fate !== "ok";
        return `<tr><td>${word}</td><td${large ? " class=large" : ""}>${amount(cell[name], unit)}` +
          `${large ? ` (${cell.fate})` : ""}</td><td>${isNaN(most) ? "none" : amount(most, unit)}</td>` +
          `<td>${isNaN(most) ? "" : (cell[name] / most).toFixed(3)}</td></tr>`;
      }).join("");
  }

  function showParts(cell, detail) {
    byId("weft-parts").innerHTML = `<div>${PARTS.map(([word], i) =>
      `${word} ${weftQuantity(detail.parts[i], "s")} (${(100 * detail.parts[i] / cell.step_s).toFixed(1)} %)`)
      .join(", ")}; ${detail.ops} ops</div>` + bar(PARTS.map(([word, colour], i) =>
        [detail.parts[i] / longest, colour, `${word} ${weftQuantity(detail.parts[i], "s")}`]));
  }

  function showMemory(detail) {
    byId("weft-memory").innerHTML = detail.memory.map((parts, stage) =>
      `<div>stage ${stage}: ${weftQuantity(parts.reduce((a, b) => a + b, 0), "B")}</div>` +
      bar(parts.map((bytes, i) => [bytes / mostBytes, head.kinds[i].colour,
        `${head.kinds[i].word} ${weftQuantity(bytes, "B")}`]), detail.capacity / mostBytes)).join("");
  }

  // Tokens per second of the values of each list, while the other lists keep theirs.
  function showProfiles(at) {
    const most = Math.max(...known.map((cell) => cell.tokens_per_s), 1e-30);
    head.lists.forEach((list, i) => {
      const profile = sliders[i].parentElement.querySelector(".profile");
      profile.replaceChildren(...list.values.map((value, v) => {
        const cell = head.cells[cellOf(at.map((old, k) => (k === i ? v : old)))];
        const span = document.createElement("span"), has = "step_s" in cell;
        span.title = `${list.name} ${value}: ${has ? weftQuantity(cell.tokens_per_s, "tokens/s") : cell.fate}`;
        span.className = !has ? "none" : cell.fate !== "ok" ? "large" : v === at[i] ? "chosen" : "";
        if (has) span.style.height = `${100 * cell.tokens_per_s / most}%`;
        span.onclick = () => { sliders[i].value = v; show(); };
        return span;
      }));
    });
  }

  // --------------------------------------------------------------------- timeline

  let drawn = []; // boxes on the canvas: { x, x2, y, y2, text }

  const isStage = (word) => word.startsWith("stage");
  const height = (word) => (isStage(word) ? KERNELS : TRANSFERS);

  function layRows(detail) {
    let y = HEAD;
    return detail.rows.map((word) => {
      y += isStage(word) ? GAP : 1;
      const row = { word, y, height: height(word) };
      y += row.height;
      return row;
    });
  }

  function sizeCanvas(tall) {
    const ratio = window.devicePixelRatio || 1, pen = canvas.getContext("2d");
    canvas.style.height = `${tall}px`;
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(tall * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "11px system-ui, sans-serif";
    return pen;
  }

  // The timeline of a combination; a reason in its place if the page does not have it.
  function showTimeline(cell, detail) {
    const style = getComputedStyle(document.documentElement), ink = style.getPropertyValue("--ink");
    const soft = style.getPropertyValue("--soft"), line = style.getPropertyValue("--line");
    drawn = [];
    byId("weft-box").textContent = "";
    if (!detail.boxes) {
      sizeCanvas(0);
      byId("weft-box").textContent = detail.n_boxes > head.most_boxes
        ? `The timeline has ${detail.n_boxes} boxes and is left out: a page has at most ${head.most_boxes} of each.`
        : `The timeline is left out: those before it fill the ${weftQuantity(head.most_bytes, "B")} of a page.`;
      return;
    }
    const lanes = layRows(detail), last = lanes[lanes.length - 1];
    const pen = sizeCanvas(last.y + last.height + 8), wide = canvas.clientWidth - LEFT - 8;
    const seconds = byId("weft-one-axis").checked ? longest : cell.step_s;
    const x = (t) => LEFT + t / seconds * wide;
    paintRuler(pen, { seconds, x, soft, line, bottom: last.y + last.height });
    for (const lane of lanes) {
      pen.fillStyle = isStage(lane.word) ? ink : soft;
      pen.fillText(lane.word, isStage(lane.word) ? 4 : 40, lane.y + lane.height / 2 + 4);
    }
    detail.boxes.forEach((flat, series) => {
      for (let i = 0; i < flat.length; i += 4)
        paintBox(pen, { lane: lanes[flat[i]], series: head.series[series], micro: flat[i + 3], x,
                        begin: flat[i + 1] / head.instants * cell.step_s,
                        end: flat[i + 2] / head.instants * cell.step_s });
    });
    canvas.setAttribute("aria-label", `Timeline of ${detail.rows.filter(isStage).length} stages, ` +
      `step of ${weftQuantity(cell.step_s, "s")}`);
  }

  function paintRuler(pen, axis) {
    let step = 10 ** Math.floor(Math.log10(axis.seconds));
    while (axis.x(step) - axis.x(0) > 160) step /= 2;
    pen.strokeStyle = axis.line;
    pen.fillStyle = axis.soft;
    for (let t = 0; t <= axis.seconds * (1 + 1e-9); t += step) {
      const at = Math.round(axis.x(t)) + 0.5;
      pen.beginPath();
      pen.moveTo(at, HEAD - 4);
      pen.lineTo(at, axis.bottom);
      pen.stroke();
      if (at < canvas.clientWidth - 45) pen.fillText(weftQuantity(t, "s"), at + 3, 12);
    }
  }

  function paintBox(pen, box) {
    const left = box.x(box.begin), right = Math.max(box.x(box.end), left + 0.7);
    pen.fillStyle = box.series.colour;
    pen.fillRect(left, box.lane.y, right - left - (right - left > 3 ? 0.5 : 0), box.lane.height);
    const text = String(box.micro);
    if (box.micro >= 0 && right - left > 6 * text.length + 4) {
      pen.fillStyle = "#14181f";
      pen.textAlign = "center";
      pen.fillText(text, (left + right) / 2, box.lane.y + box.lane.height / 2 + 4);
      pen.textAlign = "left";
    }
    drawn.push({ x: left, x2: right, y: box.lane.y, y2: box.lane.y + box.lane.height,
                 text: `${box.lane.word}: ${box.series.word}` +
                   (box.micro >= 0 ? ` of microbatch ${box.micro}` : "") +
                   `, ${weftQuantity(box.end - box.begin, "s")}, from ${weftQuantity(box.begin, "s")} ` +
                   `to ${weftQuantity(box.end, "s")}` });
  }

  canvas.addEventListener("pointermove", (event) => {
    const at = drawn.find((box) => event.offsetX >= box.x - 1 && event.offsetX <= box.x2 + 1 &&
                                   event.offsetY >= box.y && event.offsetY <= box.y2);
    if (drawn.length) byId("weft-box").textContent = at ? at.text : "";
  });

  // ------------------------------------------------------------------------ choice

  function show() {
    const at = values(), number = cellOf(at), cell = head.cells[number], detail = details[number];
    head.lists.forEach((list, i) => {
      sliders[i].parentElement.querySelector("output").textContent = list.values[at[i]];
      sliders[i].setAttribute("aria-valuetext", list.values[at[i]]);
    });
    rows.forEach((row, i) => row.classList.toggle("chosen", i === number));
    showProfiles(at);
    byId("weft-chosen").hidden = !detail;
    byId("weft-reason").textContent = detail ? ""
      : cell.fate === "refused" ? `Refused: ${cell.reason}` : "Not predicted.";
    if (!detail) return;
    showNumbers(cell);
    showParts(cell, detail);
    showTimeline(cell, detail);
    showMemory(detail);
  }

  function choose(number) {
    for (let i = head.lists.length; i-- > 0;) {
      sliders[i].value = number % head.lists[i].values.length;
      number = Math.floor(number / head.lists[i].values.length);
    }
    show();
  }

  byId("weft-parts-key").innerHTML = key(PARTS);
  const legends = new Map(head.series.map((series) => [series.colour, series.word]).reverse());
  byId("weft-series-key").innerHTML = key([...legends].reverse().map(([colour, word]) => [word, colour]));
  byId("weft-kinds-key").innerHTML = key(head.kinds.map((kind) => [kind.word, kind.colour]));
  sliders.forEach((slider) => { slider.oninput = show; });
  rows.forEach((row, i) => { row.onclick = () => choose(i); });
  byId("weft-sliders").onsubmit = () => false;
  byId("weft-one-axis").onchange = show;
  window.addEventListener("resize", show);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  // begin with the fastest combination that fits
  const first = fitting.length ? fitting.reduce((a, b) => (b.tokens_per_s > a.tokens_per_s ? b : a)) : head.cells[0];
  choose(head.cells.indexOf(first));
  window.weftSweep = { choose, sliders, head, details, boxes: () => drawn.length };
  document.documentElement.dataset.weft = `${head.cells.length} combinations`;
})().catch((error) => { document.documentElement.dataset.weft = `error: ${error.message}`; throw error; });
