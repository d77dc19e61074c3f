// The prediction: a headline and one bar per class.

import { byId, create } from "./dom.js";

export const MAX_CLASSES = 10; // requested from the server
const FEW_CLASSES = 5;         // shown at first

let showAll = false;
let current = null; // drawn again when the user wants more or fewer bars

byId("more").addEventListener("click", () => {
  showAll = !showAll;
  drawBars();
});

/** 0.9091 → "90.9 %"; a share that rounds to 0 or 100 % without being it gets "<" or ">". */
export function percent(share) {
  if (share === 0 || share === 1) return `${100 * share} %`;
  if (share >= 0.9995) return "> 99.9 %";
  return share < 0.0005 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`;
}

/** The prediction in words: the class, or several, and how probable. */
export const describePrediction = (answers, model) =>
  model.multilabel ? likelyClasses(answers, model) : bestClass(answers, model);

/** Draws the prediction and returns it as one line of text. */
export function showPrediction(answers, model) {
  current = { answers, model };
  drawBars();
  return showHeadline(describePrediction(answers, model));
}

/** Writes what was predicted, and how sure or large it is; returns it as one line of text. */
export function showHeadline({ title, note }) {
  byId("headline").replaceChildren(create("bdi", { textContent: title }),
    create("span", { className: "screen-reader", textContent: ": " }),
    create("span", { className: "result", textContent: note }));
  return `${title}: ${note}`;
}

export function clearPrediction() {
  byId("bars").replaceChildren();
  byId("multilabel-note").hidden = byId("more").hidden = true;
}

const classCount = model => model.classes.length.toLocaleString("en");

const bestClass = ([best], model) => ({
  title: className(best),
  short: percent(best.probability),
  note: `${percent(best.probability)}, the most probable of ${classCount(model)} classes`,
});

function likelyClasses(answers, model) {
  const likely = answers.filter(answer => answer.predicted);
  const count = likely.length === MAX_CLASSES ? `${MAX_CLASSES} or more` : likely.length;
  return {
    title: likely.map(className).join(", ") || "None of its classes",
    short: `${count} of ${classCount(model)}`,
    note: `${count} of ${classCount(model)} classes at ${threshold(model)} or above`,
  };
}

/** One threshold for all classes, or one for each. */
const threshold = ({ thresholds }) =>
  thresholds.every(value => value === thresholds[0]) ? percent(thresholds[0]) : "their thresholds";

/** Weights without class names have numbers as labels, which need a word in front. */
export const className = ({ label, index }) => label === String(index) ? `class ${label}` : label;

function drawBars() {
  const { answers, model } = current;
  byId("bars").replaceChildren(...answers.slice(0, showAll ? MAX_CLASSES : FEW_CLASSES).map(answer =>
    bar(answer, answer.predicted)));
  byId("multilabel-note").hidden = !model.multilabel;
  byId("more").hidden = answers.length <= FEW_CLASSES;
  byId("more").textContent = showAll ? `Show only ${FEW_CLASSES}` : `Show ${answers.length}`;
  byId("more").setAttribute("aria-expanded", showAll);
}

function bar(answer, predicted) {
  const row = create("li", { className: predicted ? "predicted" : "" });
  const track = create("span", { className: "track", ariaHidden: "true" });
  const fill = create("span");
  fill.style.width = `${100 * answer.probability}%`;
  track.append(fill);
  row.append(create("bdi", { textContent: className(answer) }), " ",
    create("span", { className: "number", textContent: percent(answer.probability) }), track);
  return row;
}
