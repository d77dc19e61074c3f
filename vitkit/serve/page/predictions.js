// What the model answers: a headline and bars.

import { at, make } from "./dom.js";

export const MOST = 10; // answers asked for at once
const FEW = 5;          // and shown at first

let more = false;
let last = null; // drawn again when more or fewer are wanted

at("more").addEventListener("click", () => {
  more = !more;
  drawBars();
});

/** 0.9091 → "90.9 %"; what only rounds to all or nothing says so. */
export function percent(share) {
  if (share === 0 || share === 1) return `${100 * share} %`;
  if (share >= 0.9995) return "> 99.9 %";
  return share < 0.0005 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`;
}

/** Draws them, and returns the answer in one line. */
export function showAnswers(answers, model) {
  last = { answers, model };
  const { words, note } = model.multilabel ? several(answers, model) : one(answers, model);
  at("headline").replaceChildren(make("bdi", { textContent: words }),
    make("span", { className: "unseen", textContent: ": " }), make("span", { className: "result", textContent: note }));
  drawBars();
  return `${words}: ${note}`;
}

export function forgetAnswers() {
  at("headline").textContent = "Looking …";
  at("bars").replaceChildren();
  at("bars-note").hidden = at("more").hidden = true;
}

const count = model => model.classes.length.toLocaleString("en");

const one = ([best], model) =>
  ({ words: nameOf(best), note: `${percent(best.probability)}, the likeliest of ${count(model)} classes` });

function several(answers, model) {
  const likely = answers.filter(answer => answer.probability >= 0.5);
  const many = likely.length === MOST ? `${MOST} or more` : likely.length;
  return {
    words: likely.map(nameOf).join(", ") || "Nothing it knows",
    note: `${many} of ${count(model)} classes at 50 % or above`,
  };
}

/** Weights of others may carry no names: the bare number needs a word. */
const nameOf = ({ label, index }) => label === String(index) ? `class ${label}` : label;

function drawBars() {
  const { answers, model } = last;
  at("bars").replaceChildren(...answers.slice(0, more ? MOST : FEW).map((answer, place) =>
    bar(answer, model.multilabel ? answer.probability >= 0.5 : place === 0)));
  at("bars-note").hidden = !model.multilabel;
  at("more").hidden = answers.length <= FEW;
  at("more").textContent = more ? `Show only ${FEW}` : `Show ${answers.length}`;
  at("more").setAttribute("aria-expanded", more);
}

function bar(answer, meant) {
  const row = make("li", { className: meant ? "meant" : "" });
  const track = make("span", { className: "track", ariaHidden: "true" });
  const fill = make("span");
  fill.style.width = `${100 * answer.probability}%`;
  track.append(fill);
  row.append(make("bdi", { textContent: nameOf(answer) }), " ",
    make("span", { className: "number", textContent: percent(answer.probability) }), track);
  return row;
}
