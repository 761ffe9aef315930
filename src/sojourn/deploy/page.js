// Shows what the server says, every second. All words come ready from the server and are set as text, never as HTML.
(() => {
  const { told, charts, titles, log_span } = JSON.parse(document.getElementById("data").textContent);
  const element = (id) => document.getElementById(id);
  const ENDED = ["over", "stopped", "diverged"];
  const PATIENCE = 5000; // milliseconds without a word after which the connection counts as lost
  const AGAIN = 2000;
  const views = new Map();
  let last = told;
  let heard = Date.now();
  let broken = false;

  const say = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const make = (tag, name) => Object.assign(document.createElement(tag), name ? { className: name } : {});

  // As many children as entries; those that are there stay, so that what a reader has selected stays selected.
  function rows(parent, entries, create, fill) {
    while (parent.children.length > entries.length) parent.lastChild.remove();
    while (parent.children.length < entries.length) parent.append(create());
    entries.forEach((entry, i) => fill(parent.children[i], entry));
  }

  function facts(id, entries, mark = () => "") {
    const create = () => { const box = make("div"); box.append(make("dt"), make("dd")); return box; };
    rows(element(id), entries, create, (box, [name, value]) => {
      say(box.children[0], name);
      say(box.children[1], value);
      box.className = mark(value);
    });
  }

  function workers(entries) {
    const cells = ["doing", "span", "applied", "rejected", "staleness", "last"];
    const create = () => {
      const row = make("tr");
      const head = Object.assign(make("th"), { scope: "row" });
      row.append(head, ...cells.map((name) => make("td", name === "doing" ? "doing left" : name === "last" ? "left" : "")));
      return row;
    };
    rows(element("workers"), entries, create, (row, entry) => {
      row.className = entry.state;
      ["name", ...cells].forEach((name, i) => say(row.children[i], entry[name]));
    });
    element("nobody").hidden = entries.length > 0;
  }

  // --- charts

  const title = (metric) => titles[metric] ?? metric;
  const curves = (metrics, kind) => metrics.flatMap((row) => Object.keys(row)
    .filter((key) => key.includes(kind) && Number.isFinite(row[key]))
    .map((key) => ({ metric: title(key), done: row.done, value: row[key] })));

  function wantsLog(values) {
    const positive = values.filter((value) => value > 0);
    return positive.length > 0 && positive.length === values.length && Math.max(...positive) / Math.min(...positive) > log_span;
  }

  async function draw(id, data, empty, { log = false, x } = {}) {
    const place = element(id);
    place.classList.toggle("empty", data.length === 0);
    place.dataset.empty = empty;
    if (data.length === 0) return; // scales of nothing have no ends
    const key = `${log}${x}`;
    const known = views.get(id);
    if (known?.key === key) {
      if (known.seen !== (known.seen = JSON.stringify(data))) await known.view.data("rows", data).runAsync();
      return;
    }
    const spec = structuredClone(charts[id]);
    if (x) spec.encoding.x.title = x;
    if (log) spec.encoding.y.scale = { type: "log", nice: false };
    spec.data.values = data;
    const options = { actions: false, renderer: "svg", mode: "vega-lite", ast: true, defaultStyle: false, logLevel: 1, tooltip: { disableDefaultStyle: true } };
    const { view } = await vegaEmbed(place, spec, options);
    known?.view.finalize();
    views.set(id, { view, key, seen: JSON.stringify(data) });
  }

  let drawing = false; // a slow browser leaves out what came meanwhile
  async function drawAll({ run, metrics, staleness, throughput }) {
    if (drawing) return;
    drawing = true;
    try {
      const x = run.unit === "rounds" ? "Rounds" : "Uploads applied";
      const losses = curves(metrics, "loss"), accuracies = curves(metrics, "accuracy");
      element("accuracy-figure").hidden = metrics.length > 0 && accuracies.length === 0;
      element("staleness-figure").hidden = run.mode === "rounds";
      say(element("unit"), "(uploads per second)");
      await draw("loss", losses, "No evaluation yet", { x, log: wantsLog(losses.map((row) => row.value)) });
      if (!element("accuracy-figure").hidden) await draw("accuracy", accuracies, "No evaluation yet", { x });
      const bars = staleness.map(([late, count]) => ({ left: late - 0.45, right: late + 0.45, staleness: late, count }));
      if (!element("staleness-figure").hidden) await draw("staleness", bars, "No upload yet");
      await draw("throughput", throughput.map(([seconds, rate]) => ({ seconds, rate })), "No upload yet");
    } finally {
      drawing = false;
    }
  }

  // --- what the server says

  function banner() {
    const { status, banner } = last.words;
    const node = element("banner");
    const lost = broken || Date.now() - heard > PATIENCE;
    const ended = ENDED.includes(status);
    node.className = lost && !ended ? "lost" : status;
    const gone = ended ? `${banner} The server has ended.` : "Connection to the server lost; trying again. What you see may be old.";
    say(node, lost ? gone : banner);
  }

  function show(now) {
    last = now;
    const { words, snapshot } = now;
    say(element("label"), words.label);
    say(element("method"), words.method);
    say(element("progress"), words.progress);
    element("share").value = words.share;
    document.title = `${words.progress} · ${words.label}`;
    facts("facts", [...words.metrics, ...words.facts]);
    facts("counts", words.counts, (value) => (value === "0" ? "" : "some"));
    workers(words.workers);
    drawAll(snapshot);
    banner();
  }

  function listen() {
    const source = new EventSource("events");
    source.onmessage = (event) => {
      heard = Date.now();
      broken = false;
      show(JSON.parse(event.data));
    };
    source.onerror = () => {
      broken = true;
      banner();
      if (source.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN); // else the browser tries by itself
    };
  }

  show(told);
  listen();
  setInterval(banner, 1000);
})();
