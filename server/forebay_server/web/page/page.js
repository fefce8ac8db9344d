// The status page: asks the daemon for /status.json every two seconds and shows it.
//
// Whatever comes from outside (names of objects, labels, paths) goes into the page as text, never as markup. Rows are
// kept by key and only what has changed is written, so that nothing moves that has not to. When the daemon does not
// answer the page says so, keeps what it knew, and goes on asking; a daemon of another version is shown by its own page.
"use strict";

const PERIOD_MS = 2000;
const PATIENCE_MS = 5000;
const SPAN_SECONDS = 600;
const KNOWN_VERSION = 1;
const LATELY_POINTS = 3;
const IDLE_SECONDS = 10;
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);

// -- words and numbers ----------------------------------------------------------------------------------------------

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

function scaled(bytes) {
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return [value, unit];
}

function size(bytes) {
  const [value, unit] = scaled(bytes);
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

const rate = (bytesPerSecond) => `${size(bytesPerSecond)}/s`;

/** A count of at most four digits: `8,192`, `81.9 k`, `8.19 M`. */
function short(number) {
  if (number < 10000) return count(number);
  const power = Math.min(3, Math.floor(Math.log10(number) / 3));
  return `${(number / 1000 ** power).toPrecision(3)} ${["", "k", "M", "G"][power]}`;
}

const sampleRate = (perSecond) => `${short(perSecond)} samples/s`;
const count = (number) => Math.round(number).toLocaleString("en-US");
const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;

function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

const clock = (date) => date.toLocaleTimeString([], { hour12: false });

/** The last part of a URL, and what stands before it. */
function parted(url) {
  const cut = url.replace(/\/+$/, "").lastIndexOf("/");
  return cut < 0 ? [url, ""] : [url.slice(cut + 1), url.slice(0, cut + 1)];
}

// -- writing into the page ------------------------------------------------------------------------------------------

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function putClass(element, name) {
  if (element.className !== name) element.className = name;
}

function putTitle(element, text) {
  if (element.title !== text) element.title = text;
}

/** A number large and its unit small: `12.5 MiB/s`. */
function putFigure(element, text) {
  if (element.textContent === text) return;
  const cut = text.indexOf(" ");
  if (cut < 0) {
    element.textContent = text;
    return;
  }
  const unit = document.createElement("small");
  unit.textContent = text.slice(cut);
  element.replaceChildren(text.slice(0, cut), unit);
}

function made(tag, className) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  return element;
}

/** Makes the children of `parent` those of the items, in their order, and keeps the ones that are there. */
function sync(parent, items, keyOf, make, fill) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = old.get(key);
    if (child === undefined) {
      child = make();
      child.dataset.key = key;
    }
    old.delete(key);
    fill(child, item);
    if (child === next) {
      next = next.nextElementSibling;
    } else {
      parent.insertBefore(child, next);
    }
  }
  for (const child of old.values()) child.remove();
}

/** A row with a cell for each [label, class]; the label is shown beside the value on narrow screens. */
function row(cells) {
  const line = made("tr");
  for (const [label, className] of cells) {
    const cell = made("td", className);
    cell.dataset.label = label;
    line.append(cell);
  }
  return line;
}

function twoLines(cell) {
  if (!cell.firstElementChild) cell.append(made("span", "name"), made("span", "under"));
  return [cell.children[0], cell.children[1]];
}

function bar(className, ...parts) {
  const element = made("div", className);
  element.setAttribute("role", "img");
  for (const part of parts) element.append(made("span", part));
  return element;
}

function putBar(element, shares, label) {
  [...element.children].forEach((part, index) => {
    const width = `${(100 * Math.max(0, Math.min(1, shares[index] || 0))).toFixed(2)}%`;
    if (part.style.width !== width) part.style.width = width;
  });
  if (element.getAttribute("aria-label") !== label) element.setAttribute("aria-label", label);
}

function showTable(name, rows, total) {
  byId(`${name}-empty`).hidden = rows.length > 0;
  byId(`${name}-table`).hidden = rows.length === 0;
  put(byId(`${name}-more`), total > rows.length ? `${count(rows.length)} of ${count(total)}` : "");
}

// -- parts of the page ----------------------------------------------------------------------------------------------

function showHead(daemon) {
  document.title = `${daemon.host} · forebay`;
  put(byId("host"), daemon.host);
  const kind = daemon.is_embedded ? "embedded daemon" : "daemon";
  put(byId("about"), `${kind} ${daemon.version}, pid ${daemon.process_id}, up ${duration(daemon.uptime_seconds)}`);
  put(byId("address"), `unix:${daemon.socket}`);
}

function sum(points, name) {
  return points.reduce((total, point) => total + point[name], 0);
}

function mean(points, name) {
  const seconds = sum(points, "seconds");
  return seconds ? points.reduce((total, point) => total + point[name] * point.seconds, 0) / seconds : 0;
}

function showFigures(status, points) {
  const { counters } = status;
  const requests = sum(points, "requests");
  const hits = counters.hits + counters.in_place;
  const everyRequest = hits + counters.misses + counters.pending;
  putFigure(byId("hit-ratio"), requests ? percent(sum(points, "hits") / requests) : "–");
  put(
    byId("hit-ratio-note"),
    everyRequest ? `${percent(hits / everyRequest)} since the start` : "nothing was asked for yet",
  );
  const lately = points.slice(-LATELY_POINTS);
  putFigure(byId("remote-rate"), rate(mean(lately, "remote_bytes_per_second")));
  put(byId("remote-note"), `${size(counters.remote_bytes)} since the start`);
  putFigure(byId("sample-rate"), sampleRate(mean(lately, "samples_per_second")));
  put(byId("sample-note"), `${short(counters.samples)} since the start`);

  const { sessions } = status;
  const stalled = sessions.rows.filter((session) => session.waiting_seconds >= sessions.stalled_seconds).length;
  putFigure(byId("session-count"), count(sessions.count));
  put(byId("session-note"), stalled ? `${count(stalled)} stalled` : sessions.count ? "none stalled" : "");
  byId("session-note").classList.toggle("warns", stalled > 0);

  const demands = status.fills.demands;
  putFigure(byId("fill-count"), count(status.fills.count));
  put(
    byId("fill-note"),
    status.fills.count ? `${count(demands)} asked for, ${count(status.fills.count - demands)} ahead` : "",
  );
  putFigure(byId("wait-seconds"), duration(sum(points, "wait_seconds")));
  put(byId("wait-note"), "in the last 10 min");
}

function makeDisk() {
  const item = made("li");
  const name = made("div", "disk-name");
  name.append(made("span", "path"), made("span", "health"));
  const numbers = made("div", "disk-numbers");
  for (let index = 0; index < 6; index += 1) {
    const number = made("span");
    number.append(made("b"), "");
    numbers.append(number);
  }
  item.append(name, bar("bar", "used", "reserved", "lost"), numbers, made("p", "reason"));
  return item;
}

function fillDisk(item, disk) {
  const [name, level, numbers, reason] = item.children;
  put(name.children[0], disk.path);
  const words = [disk.state, ...(disk.is_slow ? ["slow"] : []), ...(disk.is_draining ? ["draining"] : [])];
  put(name.children[1], words.length > 1 && disk.state === "normal" ? words.slice(1).join(", ") : words.join(", "));
  putClass(name.children[1], disk.state === "normal" && !disk.is_slow ? "health" : "health warns");
  putTitle(name.children[1], disk.reason);
  put(reason, disk.reason);
  const lost = disk.quarantined_bytes + disk.lingering_bytes;
  const parts = [disk.used_bytes, disk.reserved_bytes, lost];
  const shares = parts.map((bytes) => (disk.capacity_bytes ? bytes / disk.capacity_bytes : 0));
  putBar(level, shares, `${percent(shares[0])} used`);
  const said = [
    [size(disk.used_bytes), ` of ${size(disk.capacity_bytes)}`],
    [disk.reserved_bytes ? size(disk.reserved_bytes) : "", " reserved"],
    [disk.quarantined_bytes ? size(disk.quarantined_bytes) : "", " in quarantine"],
    [disk.lingering_bytes ? size(disk.lingering_bytes) : "", " still mapped"],
    [size(disk.free_bytes), " free"],
    [count(disk.pieces), disk.pieces === 1 ? " piece" : " pieces"],
  ];
  said.forEach(([number, what], index) => {
    const place = numbers.children[index];
    place.hidden = number === "";
    put(place.firstChild, number);
    if (place.lastChild.nodeValue !== what) place.lastChild.nodeValue = what;
  });
}

/** Loaders put the source behind what they are; it has a column of its own. */
function named(session) {
  const source = `: ${session.source}`;
  return session.label.endsWith(source) ? session.label.slice(0, -source.length) : session.label;
}

const moves = new Map();

/** What a session does, in a word or two, with the class of its dot. */
function mood(session, stalledSeconds, now) {
  const before = moves.get(session.id);
  if (before === undefined || before.position !== session.position) {
    const isFirstSeenAtRest = before === undefined && session.positions_per_second === 0;
    moves.set(session.id, { position: session.position, at: isFirstSeenAtRest ? -IDLE_SECONDS : now });
  }
  if (session.is_quiet) return ["silent", "mood"];
  const waiting = session.waiting_seconds;
  if (waiting >= stalledSeconds) return [`stalled ${duration(waiting)}`, "mood stalls"];
  if (waiting >= 1) return [`waits ${duration(waiting)}`, "mood waits"];
  return now - moves.get(session.id).at < IDLE_SECONDS ? ["reads", "mood reads"] : ["idle", "mood"];
}

const SESSION_CELLS = [
  ["State", ""],
  ["Loader", "wide"],
  ["Source", "wide"],
  ["Position", "number"],
  ["Per second", "number"],
  ["Leases", "number"],
  ["Needs", "number"],
  ["Waited", "number"],
];

function showSessions(sessions, now) {
  showTable("sessions", sessions.rows, sessions.count);
  const seen = new Set(sessions.rows.map((session) => session.id));
  for (const id of moves.keys()) if (!seen.has(id)) moves.delete(id);
  sync(byId("sessions"), sessions.rows, (session) => session.id, () => row(SESSION_CELLS), (line, session) => {
    const cells = line.children;
    const [word, className] = mood(session, sessions.stalled_seconds, now);
    if (!cells[0].firstElementChild) cells[0].append(made("span"));
    put(cells[0].firstElementChild, word);
    putClass(cells[0].firstElementChild, className);
    const [label, process] = twoLines(cells[1]);
    put(label, named(session) || "without a label");
    putTitle(label, session.label);
    put(process, `pid ${session.process_id}`);
    const [name, place] = twoLines(cells[2]);
    const [last, before] = parted(session.source);
    put(name, last);
    put(place, before);
    putTitle(cells[2], session.source);
    put(cells[3], count(session.position));
    put(cells[4], count(session.positions_per_second));
    put(cells[5], count(session.leases));
    put(cells[6], count(session.needs));
    put(cells[7], duration(session.waited_seconds));
  });
}

const DATASET_CELLS = [
  ["Source", "wide"],
  ["Of the cache", ""],
  ["Cached", "number"],
  ["Pieces", "number"],
  ["Sessions", "number"],
];

function showDatasets(datasets, disks) {
  showTable("datasets", datasets.rows, datasets.count);
  const capacity = disks.reduce((total, disk) => total + disk.capacity_bytes, 0);
  sync(byId("datasets"), datasets.rows, (dataset) => dataset.source, () => row(DATASET_CELLS), (line, dataset) => {
    const cells = line.children;
    const [name, place] = twoLines(cells[0]);
    const [last, before] = parted(dataset.source || "of an unknown source");
    put(name, last);
    put(place, dataset.is_in_place ? `${before} · read where it lies` : before);
    putTitle(cells[0], dataset.source);
    const share = capacity ? dataset.bytes / capacity : 0;
    if (!cells[1].firstElementChild) cells[1].append(bar("bar thin", "used"));
    putBar(cells[1].firstElementChild, [share], percent(share));
    put(cells[2], size(dataset.bytes));
    put(cells[3], count(dataset.pieces));
    put(cells[4], count(dataset.sessions));
  });
}

const FILL_CELLS = [
  ["Object", "wide"],
  ["Piece", "number"],
  ["Why", ""],
  ["For", "full"],
  ["Since", "number"],
  ["Progress", ""],
  ["Received", "number full"],
];

/** Whom it is fetched for: `train`, `train and 3 more`, or nobody any more. */
function forWhom(fill, labels) {
  const { ids, count: all } = fill.sessions;
  const [first] = ids.map((id) => labels.get(id)).filter(Boolean);
  if (!first) return all ? plural(all, "session", "sessions") : "nobody now";
  return all > 1 ? `${first} and ${count(all - 1)} more` : first;
}

function showFills(fills, sessions) {
  showTable("fills", fills.rows, fills.count);
  const labels = new Map(sessions.rows.map((session) => [session.id, named(session)]));
  sync(byId("fills"), fills.rows, (fill) => fill.id, () => row(FILL_CELLS), (line, fill) => {
    const cells = line.children;
    const [name, place] = twoLines(cells[0]);
    const [last, before] = parted(fill.object);
    put(name, last);
    put(place, before);
    putTitle(cells[0], fill.object);
    put(cells[1], count(fill.piece));
    put(cells[2], fill.kind === "demand" ? "asked for" : "ahead");
    put(cells[3], forWhom(fill, labels));
    put(cells[4], duration(fill.seconds));
    const share = fill.total_bytes ? fill.received_bytes / fill.total_bytes : 0;
    if (!cells[5].firstElementChild) cells[5].append(bar("bar thin", "used"));
    putBar(cells[5].firstElementChild, [share], fill.total_bytes ? percent(share) : "not begun");
    put(cells[6], fill.total_bytes ? `${size(fill.received_bytes)} of ${size(fill.total_bytes)}` : "queued");
  });
}

const UPLOAD_CELLS = [
  ["State", "full"],
  ["Checkpoint", "wide"],
  ["To", "wide"],
  ["Since", "number"],
  ["Progress", ""],
  ["Uploaded", "number full"],
];

const PHASES = {
  begun: ["is written", "mood waits"],
  queued: ["waits", "mood waits"],
  uploading: ["uploads", "mood reads"],
  uploaded: ["waits for others", "mood waits"],
  durable: ["durable", "mood"],
  failed: ["failed", "mood stalls"],
  superseded: ["superseded", "mood"],
};

/** What becomes of a staged checkpoint, with the class of its dot; one that is tried again after a failure fails. */
function fate(upload) {
  const isRetried = upload.error && upload.phase !== "failed" && upload.phase !== "superseded";
  return isRetried ? ["fails, is retried", "mood stalls"] : PHASES[upload.phase] || [upload.phase, "mood"];
}

function showUploads(uploads) {
  showTable("uploads", uploads.rows, uploads.count);
  const { used_bytes: used, quota_bytes: quota, reason: whyNot } = uploads.staging;
  const pending = uploads.pending ? `, ${size(uploads.pending_bytes)} to upload` : "";
  put(byId("staging"), whyNot || `${size(used)} of ${size(quota)} staged${pending}`);
  const keyOf = (upload) => `${upload.root} ${upload.attempt}`;
  sync(byId("uploads"), uploads.rows, keyOf, () => row(UPLOAD_CELLS), (line, upload) => {
    const cells = line.children;
    const [word, className] = fate(upload);
    if (!cells[0].firstElementChild) cells[0].append(made("span"));
    put(cells[0].firstElementChild, word);
    putClass(cells[0].firstElementChild, className);
    const [step, attempt] = twoLines(cells[1]);
    put(step, `step ${count(upload.step)}`);
    put(attempt, upload.attempt);
    const [name, place] = twoLines(cells[2]);
    if (cells[2].children.length < 3) cells[2].append(made("span", "reason"));
    const [last, before] = parted(upload.root);
    put(name, last);
    put(place, before);
    put(cells[2].children[2], upload.error);
    putTitle(cells[2], upload.root);
    put(cells[3], duration(upload.seconds));
    const share = upload.size_bytes ? upload.uploaded_bytes / upload.size_bytes : 0;
    if (!cells[4].firstElementChild) cells[4].append(bar("bar thin", "used"));
    putBar(cells[4].firstElementChild, [share], `${percent(share)} uploaded`);
    put(cells[5], `${size(upload.uploaded_bytes)} of ${size(upload.size_bytes)}`);
  });
}

// -- the chart ------------------------------------------------------------------------------------------------------

/** The next power of two that is not below: a round number in the units of bytes, and so is its half. */
const binaryCeiling = (bytes) => 2 ** Math.ceil(Math.log2(Math.max(bytes, 1024)));

/** The next number that is not below with one digit, 1, 2, 4 or 8, before its zeros. */
function decimalCeiling(number) {
  const power = 10 ** Math.floor(Math.log10(Math.max(number, 10)));
  return [1, 2, 4, 8, 10].find((digit) => digit * power >= number) * power;
}

const CHARTS = [
  { name: "remote-chart", what: "From remote", field: "remote_bytes_per_second", ceilingOf: binaryCeiling, said: rate },
  {
    name: "sample-chart",
    what: "To trainers",
    field: "samples_per_second",
    ceilingOf: decimalCeiling,
    said: (perSecond) => `${short(perSecond)}/s`,
  },
];

function svg(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Draws one series over the last ten minutes, and says it in words too. */
function drawChart({ name, what, field, ceilingOf, said }, points, uptimeSeconds) {
  const chart = byId(name);
  const [width, height] = [chart.clientWidth, chart.clientHeight];
  if (!width) return;
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const [left, right, top, bottom] = [72, width - 1, 5, height - 19];
  const shown = points.filter((point) => uptimeSeconds - point.at_seconds <= SPAN_SECONDS);
  const most = shown.reduce((highest, point) => Math.max(highest, point[field]), 0);
  const ceiling = ceilingOf(most);
  const x = (at) => (right - ((right - left) * Math.max(0, uptimeSeconds - at)) / SPAN_SECONDS).toFixed(1);
  const y = (bytes) => (bottom - ((bottom - top) * bytes) / ceiling).toFixed(1);

  const [title, grid, area, line] = chart.children;
  grid.replaceChildren(
    ...[0, 0.5, 1].flatMap((part) => {
      const at = Math.round(Number(y(part * ceiling))) + 0.5;
      return [
        svg("line", { class: "rule", x1: left, x2: right, y1: at, y2: at }),
        svg("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, part ? said(part * ceiling) : "0"),
      ];
    }),
    ...[[10, "start"], [5, "middle"], [0, "end"]].map(([minutes, anchor]) => {
      const at = right - ((right - left) * minutes) / 10;
      return svg("text", { x: at, y: height - 3, "text-anchor": anchor }, minutes ? `${minutes} min ago` : "now");
    }),
  );
  const path = shown.map((point, index) => `${index ? "L" : "M"}${x(point.at_seconds)} ${y(point[field])}`).join("");
  line.setAttribute("d", path);
  const [first, last] = [shown[0], shown[shown.length - 1]];
  area.setAttribute("d", first ? `${path}L${x(last.at_seconds)} ${bottom}L${x(first.at_seconds)} ${bottom}Z` : "");
  const now = said(mean(points.slice(-LATELY_POINTS), field));
  put(title, `${what} in the last ten minutes: ${now} now, ${said(most)} at most`);
}

function showCharts(points, uptimeSeconds) {
  for (const chart of CHARTS) drawChart(chart, points, uptimeSeconds);
}

// -- asking ---------------------------------------------------------------------------------------------------------

const known = { status: null, bootId: null, points: [], goneSince: null, version: null };

function say(state, text) {
  const place = byId("state");
  if (place.dataset.state !== state) place.dataset.state = state;
  put(place, text);
  document.body.classList.toggle("is-old", state === "gone");
}

function take(status) {
  const isOther = known.version !== null && known.version !== status.daemon.version;
  if (isOther || status.version !== KNOWN_VERSION) {
    location.reload();
    return;
  }
  known.version = status.daemon.version;
  if (known.bootId !== status.daemon.boot_id) known.points = [];
  known.bootId = status.daemon.boot_id;
  const { fields, points } = status.history;
  known.points.push(...points.map((values) => Object.fromEntries(fields.map((name, index) => [name, values[index]]))));
  known.points = known.points.slice(-Math.ceil(SPAN_SECONDS / status.history.interval_seconds));
  known.status = status;
  known.goneSince = null;
}

function show() {
  const { status, points } = known;
  if (status === null) return;
  showHead(status.daemon);
  showFigures(status, points);
  showCharts(points, status.daemon.uptime_seconds);
  sync(byId("disks"), status.disks, (disk) => disk.id, makeDisk, fillDisk);
  showSessions(status.sessions, status.daemon.uptime_seconds);
  showDatasets(status.datasets, status.disks);
  showUploads(status.uploads);
  showFills(status.fills, status.sessions);
  if (status.daemon.is_draining) {
    say("draining", "Ending: takes no new sessions");
  } else {
    say("serving", "Serving");
  }
  put(byId("updated"), `as of ${clock(new Date())}`);
}

async function ask() {
  const last = known.points.length ? known.points[known.points.length - 1].at_seconds : -1;
  const answer = await fetch(`status.json?after=${last}`, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const status = await answer.json();
  // A daemon that was started since has counted anew: what it did before `after` is wanted too.
  if (known.bootId !== null && status.daemon.boot_id !== known.bootId) {
    known.points = [];
    known.bootId = null;
    return ask();
  }
  return status;
}

let timer = 0;
let isAsking = false;

async function look() {
  clearTimeout(timer);
  if (isAsking || document.hidden) return;
  isAsking = true;
  let isAnswered = false;
  try {
    take(await ask());
    isAnswered = true;
  } catch {
    known.goneSince = known.goneSince || new Date();
    say("gone", `Not answering since ${clock(known.goneSince)}; asking again every 2 s`);
  } finally {
    isAsking = false;
  }
  timer = setTimeout(look, PERIOD_MS);
  if (isAnswered) show();
}

document.addEventListener("visibilitychange", look);
new ResizeObserver(() => {
  if (known.status !== null) showCharts(known.points, known.status.daemon.uptime_seconds);
}).observe(byId("charts"));
look();
