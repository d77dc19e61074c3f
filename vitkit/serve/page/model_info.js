// The table of facts about a model: its input, classes, preprocessing and limits.

import { byId, create } from "./dom.js";

export const megabytes = bytes =>
  bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1).replace(/\.0$/, "")} MB`;

export function showModelInfo(model, limits) {
  const [height, width] = model.image, count = model.classes.length.toLocaleString("en");
  const predicted = model.task === "segment" ? "of which each pixel has one"
    : model.multilabel ? "each predicted on its own (multi-label)" : "of which one is predicted";
  const facts = {
    model: [model.name, model.variant].filter(Boolean).join(", "),
    classes: `${count}, ${predicted}`,
    input: `${width} x ${height} pixels${model.grid ? `, cut into ${model.grid[1]} x ${model.grid[0]} patches` : ""}`,
    preprocessing: model.preprocessing.join("\n"),
    ...(model.window && { "large images": `of more than four times ${model.window[1]} x ${model.window[0]} pixels: cut `
      + "into overlapping windows of that size" }),
    engine: model.computes,
    limits: `files up to ${megabytes(limits.body_bytes)}, images up to ${(limits.pixels / 1e6).toLocaleString("en")} `
      + "megapixels",
  };
  byId("facts").replaceChildren(...Object.entries(facts).map(([term, description]) => {
    const row = create("div");
    row.append(create("dt", { textContent: term }), create("dd", { textContent: description }));
    return row;
  }));
  byId("model-info").hidden = false;
}
