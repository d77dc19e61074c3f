// Where the model looks: the maps of all layers and heads are at hand, so every control answers at once.

import { percent } from "./answers.js";
import { at, make } from "./dom.js";
import { brightestField, dimmed, isTiny, light } from "./overlay.js";

const ROLLOUT = "What glows is what the answer is mixed from, traced back through all layers; half of every step is "
  + "the residual connection.";
const LAYER = "What glows is what this layer looks at, seen from where the answer is read.";
const EITHER = "Each map has its own scale. It shows what is looked at, not why; spots on plain background are often "
  + "attention that has no use.";

let found = null; // maps, rollout, views and heads of the picture shown
let photo = null; // its dimmed light

const ways = [...document.querySelectorAll("input[name=way]")];
const [rollout, layer] = ways;
const head = () => document.querySelector("input[name=head]:checked").value;

for (const input of ways) input.addEventListener("input", draw);
for (const control of [at("layer"), at("heads")]) {
  control.addEventListener("input", () => {
    layer.checked = true; // whoever moves the layer or picks a head wants to see just that
    draw();
  });
}

/** Sets the controls for another model: rollout, and in wait the last layer and all heads. */
export function prepareLooks({ views, heads }) {
  at("blind").hidden = views.length > 0;
  at("sights").classList.toggle("blind", !views.length);
  at("looks-title").textContent = views.length ? "Where it looks" : "What it sees";
  if (!views.length) return;
  at("layer").max = views.length - 1; // before the value, which it bounds
  at("layer").value = views.length - 1;
  at("first").textContent = views[0];
  at("last").textContent = views.at(-1);
  const each = Array.from({ length: heads }, (_, head) => chip(head, head));
  at("heads").replaceChildren(chip("mean", "mean of all"), ...each);
  at("heads").querySelector("input").checked = rollout.checked = true;
}

function chip(value, words) {
  const label = make("label");
  label.append(make("input", { type: "radio", name: "head", value }), make("span", { textContent: words }));
  return label;
}

/** There is an answer; where the model looks takes longer. */
export function awaitLooks({ views }) {
  at("looks").hidden = false;
  at("tracing").hidden = !views.length;
}

/** Draws what the server found; `answer` goes into the words for those who do not see it. */
export async function showLooks(attention, answer, signal) {
  const picture = await showSeen(attention.seen, answer, signal);
  if (!picture) return;
  found = attention;
  photo = dimmed(picture);
  at("tracing").hidden = true;
  draw();
}

/** The picture as the model sees it: all there is to see of a model without attention. */
export async function showSeen(seen, answer, signal) {
  const picture = new Image();
  picture.src = seen;
  await picture.decode();
  if (signal.aborted) return null;
  const { naturalWidth: width, naturalHeight: height } = picture;
  Object.assign(at("seen"), { src: seen, width, height,
    alt: `The picture as the model sees it, ${width} x ${height} pixels. ${answer}` });
  at("seen").classList.toggle("tiny", isTiny(picture));
  at("sights").hidden = false;
  return picture;
}

export function forgetLooks() {
  found = photo = null;
  at("looks").hidden = at("sights").hidden = true;
}

function draw() {
  if (!found) return;
  const rolled = rollout.checked, view = Number(at("layer").value), name = found.views[view];
  const map = rolled ? found.rollout : head() === "mean" ? mean(found.maps[view]) : found.maps[view][head()];
  light(at("overlay"), photo, map);
  const heads = head() === "mean" ? `mean of ${found.heads.length} heads` : `head ${head()}`;
  const words = rolled ? "All layers: rollout" : `Layer ${name}, ${heads}`;
  at("shown").textContent = words;
  at("layer-name").textContent = name;
  at("layer").setAttribute("aria-valuetext", name);
  at("controls").classList.toggle("rolled", rolled);
  at("reading").textContent = `${rolled ? ROLLOUT : LAYER} ${EITHER}`;
  const { field, share } = brightestField(map);
  at("overlay").setAttribute("aria-label",
    `${words}. Of nine equal fields of the picture, the ${field} gets most attention: ${percent(share)}.`);
}

/** (heads, rows, columns) → (rows, columns). */
const mean = maps => maps[0].map((row, y) =>
  row.map((_, x) => maps.reduce((sum, map) => sum + map[y][x], 0) / maps.length));
