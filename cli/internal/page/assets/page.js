// What a browser adds to the page: times that go on, views that follow, the live stream.
// Everything can be read and done without it.

const units = [[31536000, "y"], [86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];

/** @param {number} seconds */
function span(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1).replace(".0", "")} s`;
  const i = units.findIndex(([size]) => seconds >= size);
  const [size, name] = units[i];
  const text = `${Math.floor(seconds / size)}${name}`;
  if (i + 1 === units.length) return text;
  const rest = Math.floor((seconds % size) / units[i + 1][0]);
  return rest > 0 ? `${text} ${rest}${units[i + 1][1]}` : text;
}

// The clock of the page is the server's: the browser's may differ.
const asOf = document.querySelector(".asof time");
let ahead = asOf ? Date.parse(asOf.dateTime) - Date.now() : 0;

function tick() {
  const now = Date.now() + ahead;
  for (const time of document.querySelectorAll("time[data-relative]")) {
    const seconds = Math.round((Date.parse(time.dateTime) - now) / 1000);
    const text = seconds > 1 ? `in ${span(seconds)}` : seconds < -1 ? `${span(-seconds)} ago` : "now";
    if (time.textContent !== text) time.textContent = text;
  }
}

/** Follows a view: its live parts are loaded again, unless the user works in them. */
function follow(every) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small";
  let paused = sessionStorage.getItem("paused") === "true";
  const show = () => {
    button.textContent = paused ? "Resume" : "Pause";
    button.setAttribute("aria-label", paused ? "Resume updates" : "Pause updates");
    button.title = paused ? "This view stands still" : `This view follows every ${every} s`;
    document.body.classList.toggle("paused", paused);
  };
  button.addEventListener("click", () => {
    paused = !paused;
    sessionStorage.setItem("paused", String(paused));
    show();
  });
  show();
  document.querySelector(".asof").append(button);

  const busy = (part) => part.contains(document.activeElement) || !getSelection().isCollapsed && part.contains(getSelection().anchorNode);
  setInterval(async () => {
    if (paused || document.hidden) return;
    let answer;
    try {
      answer = await fetch(location.href);
    } catch {
      return; // the next time may do better
    }
    if (!answer.ok) return;
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (paused) return;
    for (const part of document.querySelectorAll("[data-live]")) {
      const fresh = next.getElementById(part.id);
      if (!fresh || busy(part)) continue;
      for (const open of part.querySelectorAll("details[open]")) fresh.querySelector(`#${open.id}`)?.setAttribute("open", "");
      part.replaceChildren(...fresh.childNodes);
    }
    const time = next.querySelector(".asof time");
    if (time) {
      asOf.dateTime = time.dateTime;
      asOf.textContent = time.textContent;
      ahead = Date.parse(time.dateTime) - Date.now();
    }
    tick();
  }, every * 1000);
}

const words = {
  delivered: ["good", "delivered"], retrying: ["warn", "failed"], dead_lettered: ["bad", "to the dead letter sink"], kept: ["bad", "given up, kept"],
  dropped: ["bad", "given up, dropped"], expired: ["held", "expired"], superseded: ["idle", "replaced"], aborted: ["idle", "cut off"],
  deleted: ["idle", "cancelled"], scheduled: ["idle", "scheduled"], started: ["busy", "started"],
};

/** Shows characters that have no shape of their own by name, as the server does. */
function shown(key) {
  const parts = [];
  const bdi = document.createElement("bdi");
  for (const part of key.split(/([\p{Cf}\p{Cc}\u2028\u2029])/u)) {
    if (/^[\p{Cf}\p{Cc}\u2028\u2029]$/u.test(part)) {
      const name = document.createElement("span");
      name.className = "escape";
      name.textContent = `U+${part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
      parts.push(name);
    } else parts.push(part);
  }
  bdi.append(...parts);
  return bdi;
}

/** Makes the row of an event, as the server does. */
function row(kind, event, source) {
  const tr = document.createElement("tr");
  tr.className = "arrived";
  const cell = (name, label, ...content) => {
    const td = document.createElement(name);
    if (label) td.dataset.label = label;
    td.append(...content);
    tr.append(td);
    return td;
  };
  const at = document.createElement("time");
  at.dateTime = event.at;
  at.textContent = new Date(event.at).toISOString().slice(11, 23);
  cell("td", "At", at);
  const [color, word] = words[event.result ?? kind] ?? ["idle", event.result ?? kind];
  const badge = document.createElement("span");
  badge.className = `badge ${color}`;
  badge.textContent = word;
  cell("td", "What", badge);
  const link = document.createElement("a");
  link.className = "keyname";
  link.href = `key?${new URLSearchParams({ ...source, key: event.key })}`;
  link.append(shown(event.key));
  cell("th", "", link).scope = "row";
  let details = "";
  if (kind === "scheduled") {
    const due = document.createElement("time");
    due.dateTime = event.dueAt;
    due.dataset.relative = "";
    cell("td", "Details", "due ", due);
    return tr;
  }
  if (kind === "started" && event.attempt > 0) details = `after ${event.attempt === 1 ? "1 failure" : `${event.attempt} failures`} in a row`;
  if (kind === "outcome") details = event.status ? String(event.status) : "no answer";
  cell("td", "Details", details);
  return tr;
}

/** Follows the stream of a source. */
function stream(state) {
  const rows = document.getElementById("stream");
  const pause = document.getElementById("pause");
  const address = state.dataset.stream;
  const query = new URLSearchParams(location.search);
  const source = { ns: query.get("ns"), name: query.get("name") };
  let held = null; // the rows that came while it stands still
  let missed = 0;
  const put = (tr) => {
    rows.prepend(tr);
    while (rows.children.length > 200) rows.lastElementChild.remove();
  };
  const say = () => {
    state.textContent = held === null ? "Live: new events appear first." : `Paused. ${held.length + missed} new.`;
  };
  pause.hidden = false;
  pause.addEventListener("click", () => {
    if (held === null) held = [];
    else {
      held.forEach(put);
      held = null;
      missed = 0;
    }
    pause.setAttribute("aria-pressed", String(held !== null));
    pause.textContent = held === null ? "Pause" : "Resume";
    say();
    tick();
  });
  const events = new EventSource(address);
  events.onopen = say;
  events.onerror = () => {
    state.textContent = events.readyState === EventSource.CLOSED ? "The stream has ended. Load the page again." : "The connection is lost; trying again.";
  };
  for (const kind of ["scheduled", "started", "outcome"]) {
    events.addEventListener(kind, (message) => {
      const tr = row(kind, JSON.parse(message.data), source);
      document.getElementById("stream-empty")?.remove();
      if (held === null) put(tr);
      else {
        held.push(tr);
        if (held.length > 200) {
          held.shift();
          missed++;
        }
        say();
      }
      tick();
    });
  }
}

const every = Number(document.body.dataset.refresh);
if (every) follow(every);
const state = document.querySelector("[data-stream]");
if (state) stream(state);
setInterval(tick, 1000);
