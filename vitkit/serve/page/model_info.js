// What a model expects of a picture, and how it computes.

import { at, make } from "./dom.js";

export const megabytes = bytes =>
  bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1).replace(/\.0$/, "")} MB`;

export function showFacts(model, limits) {
  const [height, width] = model.image, count = model.classes.length.toLocaleString("en");
  const facts = {
    model: [model.name, model.variant].filter(Boolean).join(", "),
    answers: model.multilabel ? `each of ${count} classes on its own, yes or no` : `one of ${count} classes`,
    sees: `${width} x ${height} pixels${model.grid ? `, cut into ${model.grid[1]} x ${model.grid[0]} patches` : ""}`,
    "prepares by": model.preprocessing.join("\n"),
    computes: model.computes,
    takes: `files up to ${megabytes(limits.body_bytes)}, pictures up to ${(limits.pixels / 1e6).toLocaleString("en")} `
      + "million pixels",
  };
  at("facts").replaceChildren(...Object.entries(facts).map(([term, words]) => {
    const row = make("div");
    row.append(make("dt", { textContent: term }), make("dd", { textContent: words }));
    return row;
  }));
  at("expects").hidden = false;
}
