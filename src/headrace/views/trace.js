
"use strict";
// The page of a trace. Reads the records of the element #records and shows them; texts become text nodes, never markup.
// What is shown lies in the address (#episode, status, tag, text, sort, view), so that a link leads to it.
(() => {
  const app = document.getElementById("app");
  const data = JSON.parse(document.getElementById("records").textContent);
  const episodes = data.episodes;
  const byId = new Map(episodes.map((one) => [one.id, one]));
  const statuses = ["completed", "truncated", "late", "failed"];
  const state = { episode: "", status: "", tag: "", text: "", sort: "number", view: "conversation" };
  let visible = [];

  const el = (name, classes = "", text = null, ...children) => {
    const node = document.createElement(name);
    if (classes) node.className = classes;
    if (text !== null) node.textContent = text;
    node.append(...children);
    return node;
  };
  const on = (node, event, call) => (node.addEventListener(event, call), node);
  const number = (value, digits = 2) =>
    typeof value !== "number" ? String(value) : Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(digits);
  const signed = (value) => (typeof value === "number" && value > 0 ? "+" : "") + number(value);
  const tone = (value) => (value > 0 ? "positive" : value < 0 ? "negative" : "");
  const seconds = (value) => (value < 1 ? `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(2)} s`);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const mean = (values) => (values.length ? sum(values) / values.length : NaN);
  const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

  for (const one of episodes) {
    const runs = one.rows.flat();
    one.sampled = sum(runs.map((run) => (run.pieces ? run.pieces.length : 0)));
    one.tokens = one.sampled + sum(runs.map((run) => run.count || 0));
    one.versions = [...new Set(runs.flatMap((run) => (run.pieces ? run.versions : [])))].sort((a, b) => a - b);
  }
  const searched = (one) =>
    (one.words ??= [one.id, one.tag, one.status, one.system, ...(one.failure || []),
      ...one.turns.flatMap((turn) => [turn.prompt, turn.answer, ...turn.actions])].join("\n").toLowerCase());

  // ------------------------------------------------------------------------------------------------ frame and filters
  const fact = (name, value, classes = "") => el("div", "", null, el("dt", "", name), el("dd", classes, value));
  const rewards = episodes.filter((one) => one.status !== "failed").map((one) => one.reward);
  const successes = episodes.map((one) => one.metrics.success).filter((value) => typeof value === "number");
  const failed = episodes.filter((one) => one.status === "failed").length;
  const title = app.dataset.title;
  const facts = el("dl", "facts", null,
    fact("episodes", episodes.length < data.total ? `${number(episodes.length)} of ${number(data.total)}` : number(episodes.length)),
    fact("groups", number(data.groups.length)),
    fact("mean reward", rewards.length ? mean(rewards).toFixed(3) : "–"),
    fact("success", successes.length ? `${(100 * mean(successes)).toFixed(1)} %` : "–"),
    fact("failed", number(failed), failed ? "negative" : ""));
  const header = el("header", "", null, el("div", "", null, el("div", "brand", "headrace · conversations"), el("h1", "", title)), facts);

  const search = el("input");
  Object.assign(search, { type: "search", placeholder: "Search prompts, answers, failures", ariaLabel: "Search texts" });
  const chips = el("div", "chips");
  const chip = (status) => {
    const count = status ? episodes.filter((one) => one.status === status).length : episodes.length;
    const node = on(el("button", "chip", `${status || "all"} ${number(count)}`), "click", () => set({ status }));
    node.dataset.status = status;
    return node;
  };
  chips.append(...["", ...statuses].filter((status) => !status || episodes.some((one) => one.status === status)).map(chip));
  const choice = (label, options) => {
    const node = el("select");
    node.ariaLabel = label;
    for (const [value, text] of options) {
      const option = el("option", "", text);
      option.value = value;
      node.append(option);
    }
    return node;
  };
  const tags = [...new Set(episodes.map((one) => one.tag))].sort();
  const tag = choice("Environment", [["", "all environments"], ...tags.map((one) => [one, one])]);
  const sort = choice("Order", [["number", "by number"], ["best", "best reward first"], ["worst", "worst reward first"], ["longest", "most tokens first"], ["slowest", "slowest first"]]);
  const amount = el("div", "amount");
  const list = el("ul", "list");
  const aside = el("aside", "", null, el("div", "filters", null, search, chips, el("div", "pair", null, tag, sort)), amount, list);
  const page = el("main");
  app.append(header, aside, page);

  on(search, "input", () => { clearTimeout(search.timer); search.timer = setTimeout(() => set({ text: search.value }), 120); });
  on(tag, "change", () => set({ tag: tag.value }));
  on(sort, "change", () => set({ sort: sort.value }));

  const duration = (one) => sum(one.turns.map((turn) => turn.engine + turn.env));
  const orders = {
    best: (a, b) => b.reward - a.reward, worst: (a, b) => a.reward - b.reward,
    longest: (a, b) => b.tokens - a.tokens, slowest: (a, b) => duration(b) - duration(a),
  };

  function showList() {
    const wanted = state.text.trim().toLowerCase();
    visible = episodes.filter((one) => (!state.status || one.status === state.status)
      && (!state.tag || one.tag === state.tag) && (!wanted || searched(one).includes(wanted)));
    if (orders[state.sort]) visible.sort(orders[state.sort]);
    for (const node of chips.children) node.ariaPressed = String(node.dataset.status === state.status);
    if (search.value !== state.text) search.value = state.text;
    tag.value = state.tag;
    sort.value = state.sort;
    amount.textContent = visible.length === episodes.length ? plural(episodes.length, "episode")
      : `${number(visible.length)} of ${plural(episodes.length, "episode")}`;
    list.replaceChildren(...visible.map((one) => {
      const button = on(el("button", "item", null,
        el("i", `dot ${one.status}`),
        el("span", "what", null, el("b", "", one.id), one.tag),
        el("span", `score ${one.status === "failed" ? "" : tone(one.reward)}`, one.status === "failed" ? "–" : number(one.reward)),
        el("span", "more", one.failure ? `${one.failure[0]}: ${one.failure[1]}` : `${plural(one.turns.length, "turn")} · ${plural(one.sampled, "sampled token")}`),
      ), "click", () => set({ episode: one.id }));
      button.dataset.episode = one.id;
      return el("li", "", null, button);
    }));
    if (!visible.length) list.append(el("li", "none", "No episode fits these filters."));
  }

  // ------------------------------------------------------------------------------------------------------- one episode
  const tip = el("div", "tip");
  function token(run, at) {
    const log_prob = run.log_probs[at];
    const node = el("span", "token", run.pieces[at]);
    node.style.backgroundColor = `rgba(var(--sampled), ${(0.1 + 0.42 * (1 - Math.exp(log_prob))).toFixed(2)})`;
    const version = Array.isArray(run.versions) ? run.versions[at] : run.versions;
    on(node, "mouseenter", () => {
      tip.textContent = `token ${run.ids[at]} · probability ${(100 * Math.exp(log_prob)).toPrecision(3)} % · log ${log_prob} · version ${version}`;
      document.body.append(tip);
      const box = node.getClientRects()[0] || node.getBoundingClientRect();
      tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${box.bottom + 6 + tip.offsetHeight > innerHeight ? box.top - tip.offsetHeight - 6 : box.bottom + 6}px`;
    });
    on(node, "mouseleave", () => tip.remove());
    return [node, version];
  }
  function tokens(run, from, to, into, last) {
    for (let at = from; at < to; at += 1) {
      const [node, version] = token(run, at);
      if (last.version !== undefined && last.version !== version) into.append(el("span", "version", `v${version}`));
      last.version = version;
      if (!(last.seen ??= []).includes(version)) last.seen.push(version);
      into.append(node);
    }
  }
  function sampledOf(one, turn) {
    const into = el("p", "said sampled", null, el("span", "who", "sampled by the policy"));
    const last = {};
    let at = 0, found = 0;
    for (const run of one.rows[turn.row] || []) {
      const length = run.pieces ? run.pieces.length : run.count;
      if (run.pieces) {
        const from = Math.max(0, turn.start - at), to = Math.min(length, turn.stop - at);
        if (to > from) { tokens(run, from, to, into, last); found += to - from; }
      }
      at += length;
    }
    if (!found) into.append(turn.answer);
    return [into, last.seen || []];
  }
  function turnOf(one, turn, index) {
    const [sampled, versions] = sampledOf(one, turn);
    const top = el("div", "top", null, el("b", "", `turn ${index + 1}`), el("span", "", `engine ${seconds(turn.engine)}`),
      el("span", "", `environment ${seconds(turn.env)}`), el("span", "", plural(Math.max(0, turn.stop - turn.start), "token")),
      ...versions.map((version) => el("span", "version", `v${version}`)),
      el("span", `score ${tone(turn.reward)}`, signed(turn.reward)));
    const done = el("div", "done");
    if (turn.valid) done.append("actions", ...turn.actions.map((action) => el("span", "action", action)));
    else done.append(el("span", "invalid", "not valid: the environment did not move"));
    return el("section", "turn", null, top,
      el("p", "said given", null, el("span", "who", "given"), turn.prompt), sampled, done);
  }
  // Tokens after the last turn: an answer that was sampled, and then its environment or its engine failed.
  function restOf(one) {
    const last = one.turns.at(-1) || { row: 0, stop: 0 };
    const text = el("p", "said", null, el("span", "who", "after the last turn: sampled, and no turn came of it"));
    const seen = {};
    let at = 0, found = 0;
    for (const run of one.rows[last.row] || []) {
      const length = run.pieces ? run.pieces.length : run.count;
      if (at + length > last.stop) {
        if (run.pieces) { tokens(run, Math.max(0, last.stop - at), length, text, seen); found += 1; }
        else text.append(el("span", "given-text", run.given));
      }
      at += length;
    }
    return found ? [el("section", "row", null, text)] : [];
  }
  function rowOf(runs, index, all) {
    const text = el("p", "said");
    if (all > 1) text.append(el("span", "who", `row ${index + 1} of ${all}: the chat template rewrote earlier turns`));
    const last = {};
    for (const run of runs) {
      if (run.pieces) tokens(run, 0, run.pieces.length, text, last);
      else text.append(el("span", "given-text", run.given));
    }
    return el("section", "row", null, text);
  }
  function timesOf(one) {
    const bar = el("div", "times"), total = duration(one) || 1;
    for (const turn of one.turns) {
      for (const [kind, value] of [["engine", turn.engine], ["environment", turn.env]]) {
        const part = el("i", kind);
        part.style.width = `${(100 * value) / total}%`;
        bar.append(part);
      }
    }
    return bar;
  }
  const swatch = (classes, text) => el("span", "", null, el("i", classes), text);

  function showEpisode() {
    tip.remove();
    for (const node of list.querySelectorAll('[aria-current="true"]')) node.ariaCurrent = null;
    const one = byId.get(state.episode);
    if (!one) { page.replaceChildren(el("p", "none", episodes.length ? "Choose an episode." : "No episodes.")); return; }
    const current = [...list.querySelectorAll(".item")].find((node) => node.dataset.episode === one.id);
    if (current) { current.ariaCurrent = "true"; current.scrollIntoView({ block: "nearest" }); }
    const group = data.groups[one.group];
    const head = el("div", "head", null, el("h2", "", `${one.id} ${one.tag}`), el("span", `pill ${one.status}`, one.status));
    if (!one.trainable) head.append(el("span", "pill plain", "text only, not trainable"));
    head.append(el("span", `total ${one.status === "failed" ? "" : tone(one.reward)}`, null, el("small", "", "reward"), one.status === "failed" ? "–" : number(one.reward)));
    const engine = sum(one.turns.map((turn) => turn.engine)), env = sum(one.turns.map((turn) => turn.env));
    const details = el("dl", "details", null,
      fact("seed", String(one.seed)), fact("turns", number(one.turns.length)),
      fact("tokens sampled / all", `${number(one.sampled)} / ${number(one.tokens)}`),
      fact("weights", one.versions.length ? one.versions.map((version) => `v${version}`).join(", ") : "–"),
      fact("engine", seconds(engine)), fact("environment", seconds(env)),
      fact("attempts", number(one.attempts)), fact("lag", number(group.lag)), fact("worker", number(group.worker)),
      ...Object.entries(one.metrics).filter(([name]) => !["reward", "num_turns"].includes(name)).map(([name, value]) => fact(name, number(value))));
    const mates = episodes.filter((other) => other.group === one.group);
    const played = mates.filter((other) => other.status !== "failed").map((other) => other.reward);
    const strip = el("div", "group", null, `group ${group.number}, mean ${played.length ? mean(played).toFixed(2) : "–"}`,
      ...mates.map((other) => {
        const node = on(el("button", `member ${other.status}`, other.status === "failed" ? "failed" : number(other.reward)), "click", () => set({ episode: other.id }));
        node.title = `episode ${other.id}`;
        if (other === one) node.ariaCurrent = "true";
        return node;
      }));
    const article = el("article", "", null, head, details, strip);
    if (one.failure) article.append(el("div", "failure", null, el("b", "", `failed: ${one.failure[0]}`), one.failure[1]));
    article.append(timesOf(one), el("div", "legend", null, swatch("engine", `engine ${seconds(engine)}`), swatch("environment", `environment ${seconds(env)}`)));
    const tabs = ["conversation", "tokens"].map((view) => {
      const node = on(el("button", "tab", view), "click", () => set({ view }));
      node.setAttribute("role", "tab");
      node.ariaSelected = String(state.view === view);
      return node;
    });
    article.append(el("div", "bar", null, ...tabs, el("div", "legend", null,
      swatch("swatch given", "given, loss mask 0"), swatch("swatch", "sampled, loss mask 1; stronger is less likely"))));
    if (state.view === "tokens") {
      article.append(...(one.rows.length ? one.rows.map((runs, at) => rowOf(runs, at, one.rows.length)) : [el("p", "none", "No token ids: the engine gave text only, or the episode failed.")]));
    } else {
      if (one.system) article.append(el("section", "turn", null, el("p", "said given", null, el("span", "who", "system"), one.system)));
      article.append(...one.turns.map((turn, at) => turnOf(one, turn, at)));
      const rest = restOf(one);
      article.append(...rest);
      if (!one.turns.length && !rest.length) article.append(el("p", "none", "No turn was completed."));
    }
    page.replaceChildren(article);
    page.scrollTop = 0;
  }

  // ------------------------------------------------------------------------------------------------ address and keyboard
  function set(changes, isFromAddress = false) {
    const isOther = ["status", "tag", "text", "sort"].some((name) => name in changes && changes[name] !== state[name]);
    Object.assign(state, changes);
    if (isOther || !list.childElementCount) showList();
    if ((isOther || !byId.has(state.episode)) && !visible.some((one) => one.id === state.episode)) state.episode = visible.length ? visible[0].id : "";
    showEpisode();
    if (!isFromAddress) {
      const said = new URLSearchParams(Object.entries(state).filter(([name, value]) => value && !(name === "sort" && value === "number") && !(name === "view" && value === "conversation")));
      history.replaceState(null, "", `#${said}`);
    }
  }
  function readAddress() {
    const said = new URLSearchParams(location.hash.slice(1));
    const wanted = Object.fromEntries(Object.keys(state).map((name) => [name, said.get(name) || ""]));
    set({ ...wanted, sort: orders[wanted.sort] ? wanted.sort : "number", view: wanted.view === "tokens" ? "tokens" : "conversation" }, true);
  }
  on(window, "hashchange", readAddress);
  on(document, "keydown", (event) => {
    const isTyping = ["INPUT", "SELECT"].includes(document.activeElement.tagName);
    if (event.key === "Escape" && isTyping) document.activeElement.blur();
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (event.key === "/") { event.preventDefault(); search.focus(); }
    if (step && visible.length) {
      event.preventDefault();
      const at = visible.findIndex((one) => one.id === state.episode) + step;
      set({ episode: visible[Math.max(0, Math.min(visible.length - 1, at))].id });
    }
    if (event.key === "t") set({ view: state.view === "tokens" ? "conversation" : "tokens" });
  });
  readAddress();
})();
