// The page's one story: a picture comes in, the model answers, then it is shown where the model looks.

import { forgetAnswers, MOST, showAnswers } from "./answers.js";
import { attention, models, predict } from "./ask.js";
import { at } from "./dom.js";
import { megabytes, showFacts } from "./facts.js";
import { awaitLooks, forgetLooks, prepareLooks, showLooks, showSeen } from "./looks.js";
import { quiet, tell, Trouble } from "./trouble.js";
import { listen } from "./ways.js";

const TITLE = document.title;

let server = null; // what it serves, and its limits
let model = null;  // the one that is asked
let shown = null;  // the picture on the page, to be asked about again
let turn = new AbortController(); // ended by a newer picture: a late answer is never shown beside another one

listen(look, tell);
begin();

function begin() {
  meet().catch(error => tell(error, begin));
}

/** Learns what the server serves, once. */
async function meet() {
  if (server) return;
  const told = await models();
  if (server) return; // a picture was given while we waited, and asked, too
  server = told;
  at("model").replaceChildren(...server.models.map(({ name }) => new Option(name)));
  at("model").value = server.default;
  at("chooser").hidden = server.models.length < 2;
  turnTo(server.default);
}

at("model").addEventListener("change", () => {
  turnTo(at("model").value);
  if (shown) look(shown);
});

function turnTo(name) {
  model = server.models.find(one => one.name === name);
  at("model-name").textContent = server.models.length < 2 ? ` · ${name}` : "";
  prepareLooks(model);
  showFacts(model, server.limits);
}

async function look(picture, remark = "") {
  turn.abort();
  turn = new AbortController();
  const { signal } = turn;
  shown = picture;
  present(picture, remark);
  try {
    await meet();
    if (signal.aborted) return;
    checkSize(picture, server.limits.body_bytes);
    const asked = performance.now();
    const blind = !model.views.length; // then nothing else is asked that would show the picture as it sees it
    const { answers, seen } = await predict(picture, model.name, Math.min(MOST, model.classes.length), blind, signal);
    if (signal.aborted) return;
    const answer = showAnswers(answers, model);
    announce(picture, answer, (performance.now() - asked) / 1000, remark);
    awaitLooks(model);
    await (blind ? showSeen(seen, answer, signal) : showLooks(await attention(picture, model.name, signal), answer, signal));
  } catch (error) {
    if (signal.aborted) return;
    forgetLooks();
    if (at("answer").hasAttribute("aria-busy")) withdraw();
    tell(error, () => look(picture, remark));
  }
}

function checkSize(picture, most) {
  if (picture.size <= most) return;
  throw new Trouble(`${picture.name} has ${megabytes(picture.size)}; this server takes up to ${megabytes(most)}.`,
    { hint: "Save it smaller, or as a JPEG." });
}

/** The picture at once, its answer to come. */
function present(picture, remark) {
  quiet();
  forgetAnswers();
  forgetLooks();
  at("give").classList.add("small");
  URL.revokeObjectURL(at("given").src);
  Object.assign(at("given"), { src: URL.createObjectURL(picture), alt: "The picture that was given", hidden: false });
  caption(picture.name, remark);
  at("answer").setAttribute("aria-busy", "true");
  at("answer").hidden = false;
  at("answer").scrollIntoView({ block: "nearest" });
  at("status").textContent = `Looking at ${picture.name || "the picture"} …`;
  document.title = "Looking … · vitkit";
}

function announce(picture, answer, seconds, remark) {
  at("answer").removeAttribute("aria-busy");
  at("given").alt = `The picture that was given. ${answer}`;
  caption(picture.name, `answered in ${seconds.toFixed(seconds < 1 ? 2 : 1)} s`, remark);
  at("status").textContent = answer;
  document.title = `${answer} · vitkit`;
}

const caption = (...words) => { at("given-name").textContent = words.filter(Boolean).join(" · "); };

// HEIC or TIFF: the model reads them, many browsers do not. What the model sees of them is shown all the same.
at("given").addEventListener("error", () => { at("given").hidden = true; });

/** There was no answer: back to the invitation. */
function withdraw() {
  shown = null;
  at("answer").hidden = true;
  at("give").classList.remove("small");
  at("status").textContent = "";
  document.title = TITLE;
}
