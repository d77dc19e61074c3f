// A segmentation model's answer: the mask over the image, and a legend of the classes with their shares of its pixels.

import { fetchPrediction } from "./api.js";
import { byId, create } from "./dom.js";
import { decodeMask } from "./mask_png.js";
import { hideMask, showAlone, showMask } from "./mask_view.js";
import { className, percent, showHeadline } from "./predictions.js";

const BLACK = [0, 0, 0];

let address = ""; // of the mask's file

export const segmentation = {
  verb: "segment",
  doing: "Segmenting",
  setUp: () => {},
  fetch: (image, model) => fetchPrediction(image, { model: model.name }),
  caption: ({ windows }) => windows > 1 ? `computed in ${windows} windows` : "",

  describe({ classes: [largest, ...others] }, model) {
    const share = percent(largest.share), all = model.classes.length.toLocaleString("en");
    const note = others.length ? `${share} of the image, which has ${others.length + 1} of the model’s ${all} classes`
      : `the whole image; the model knows ${all} classes`;
    return { title: className(largest), short: share, note };
  },

  show(answer, model) {
    drawLegend(answer.classes, model);
    return showHeadline(this.describe(answer, model));
  },

  async showDetails({ image, answer }, text, model, signal) {
    const png = Uint8Array.from(atob(answer.mask), letter => letter.charCodeAt(0));
    const decoded = await decodeMask(png);
    if (signal.aborted) return;
    address = URL.createObjectURL(new Blob([png], { type: "image/png" }));
    const download = `${(image.name || "image").replace(/\.[^.]*$/, "")}_mask.png`;
    Object.assign(byId("download"), { href: address, download });
    showMask(decoded, model.classes.map((label, index) =>
      ({ label: className({ label, index }), colour: colourOf(index, model) })), answer);
  },

  clear() {
    byId("bars").replaceChildren();
    byId("legend-note").hidden = true;
  },

  clearDetails() {
    hideMask();
    URL.revokeObjectURL(address);
  },
};

const colourOf = (index, model) => model.palette?.[index] ?? BLACK;

function drawLegend(classes, model) {
  byId("bars").replaceChildren(...classes.map(area => row(area, colourOf(area.index, model))));
  byId("legend-note").hidden = false;
}

/** A class of the legend: pressed, it is shown alone, and so it is while it is pointed at. */
function row(area, colour) {
  const button = create("button", { type: "button", className: "class", ariaPressed: "false" });
  const swatch = create("i", { className: "swatch" }), track = create("span", { className: "track", ariaHidden: "true" });
  const fill = create("span");
  swatch.style.background = `rgb(${colour})`;
  fill.style.width = `${100 * area.share}%`;
  track.append(fill);
  button.append(swatch, create("bdi", { textContent: className(area) }), " ",
    create("span", { className: "number", textContent: percent(area.share) }), track);
  button.addEventListener("click", () => {
    const alone = button.ariaPressed !== "true";
    for (const other of byId("bars").querySelectorAll("button")) other.ariaPressed = "false";
    button.ariaPressed = String(alone);
    showAlone(alone ? area.index : null, false);
  });
  button.addEventListener("pointerenter", event => { if (event.pointerType === "mouse") showAlone(area.index, true); });
  button.addEventListener("pointerleave", () => showAlone(null, true));
  const item = create("li", { className: "predicted" });
  item.append(button);
  return item;
}
