// Attention maps: those of all layers and heads are in memory, so that every control responds at once.

import { byId, create } from "./dom.js";
import { brightestRegion, dimImage, drawHeatmap, isTiny } from "./overlay.js";
import { percent } from "./predictions.js";

const ROLLOUT = "Attention rollout: bright patches contribute most to the prediction, traced back through all layers; "
  + "half of every step is the residual connection.";
const LAYER = "Bright patches get most attention in this layer from the token that the classification head reads.";
const BOTH = "Each map has its own scale. Attention shows where a model looks, not why; bright spots on plain "
  + "background are often attention without a use.";

let attention = null; // maps, rollout, views and heads of the current image
let background = null; // its dimmed pixels

const modes = [...document.querySelectorAll("input[name=mode]")];
const [rollout, layer] = modes;
const head = () => document.querySelector("input[name=head]:checked").value;

for (const input of modes) input.addEventListener("input", draw);
for (const control of [byId("layer"), byId("heads")]) {
  control.addEventListener("input", () => {
    layer.checked = true; // a choice of layer or head asks for the map of one layer
    draw();
  });
}

/** Resets the controls for another model: rollout, and preselected the last layer and the mean of all heads. */
export function setUpAttention({ views, heads }) {
  byId("no-attention").hidden = views.length > 0;
  byId("attention-view").classList.toggle("input-only", !views.length);
  byId("attention-title").textContent = views.length ? "Where the model looks" : "What the model sees";
  if (!views.length) return;
  byId("layer").max = views.length - 1; // before the value, which it bounds
  byId("layer").value = views.length - 1;
  byId("first-layer").textContent = views[0];
  byId("last-layer").textContent = views.at(-1);
  const choices = Array.from({ length: heads }, (_, head) => headChoice(head, head));
  byId("heads").replaceChildren(headChoice("mean", "mean of all"), ...choices);
  byId("heads").querySelector("input").checked = rollout.checked = true;
}

function headChoice(value, text) {
  const label = create("label");
  label.append(create("input", { type: "radio", name: "head", value }), create("span", { textContent: text }));
  return label;
}

/** Shows that the attention maps, which take longer than the prediction, are on their way. */
export function showAttentionLoading({ views }) {
  byId("attention").hidden = false;
  byId("attention-loading").hidden = !views.length;
}

/** Draws the server's response; `prediction` goes into the texts for screen readers. */
export async function showAttention(response, prediction, signal) {
  const image = await showModelInput(response.seen, prediction, signal);
  if (!image) return;
  attention = response;
  background = dimImage(image);
  byId("attention-loading").hidden = true;
  draw();
}

/** Shows the preprocessed image; a model without attention has nothing else to show. */
export async function showModelInput(url, prediction, signal) {
  const image = new Image();
  image.src = url;
  await image.decode();
  if (signal.aborted) return null;
  const { naturalWidth: width, naturalHeight: height } = image;
  Object.assign(byId("model-input"), { src: url, width, height,
    alt: `The image as the model sees it, ${width} x ${height} pixels. ${prediction}` });
  byId("model-input").classList.toggle("tiny", isTiny(image));
  byId("attention-view").hidden = false;
  return image;
}

export function clearAttention() {
  attention = background = null;
  byId("attention").hidden = byId("attention-view").hidden = true;
}

function draw() {
  if (!attention) return;
  const isRollout = rollout.checked, view = Number(byId("layer").value), name = attention.views[view];
  const maps = attention.maps[view];
  const map = isRollout ? attention.rollout : head() === "mean" ? mean(maps) : maps[head()];
  drawHeatmap(byId("overlay"), background, map);
  const heads = head() === "mean" ? `mean of ${attention.heads.length} heads` : `head ${head()}`;
  const title = isRollout ? "All layers: rollout" : `Layer ${name}, ${heads}`;
  byId("map-title").textContent = title;
  byId("layer-name").textContent = name;
  byId("layer").setAttribute("aria-valuetext", name);
  byId("controls").classList.toggle("rollout", isRollout);
  byId("explanation").textContent = `${isRollout ? ROLLOUT : LAYER} ${BOTH}`;
  const { region, share } = brightestRegion(map);
  byId("overlay").setAttribute("aria-label",
    `${title}. Of nine equal regions of the image, the ${region} gets most attention: ${percent(share)}.`);
}

/** (heads, rows, columns) → (rows, columns). */
const mean = maps => maps[0].map((row, y) =>
  row.map((_, x) => maps.reduce((sum, map) => sum + map[y][x], 0) / maps.length));
