// The list of all images on the page, each with its answer; one of them is shown in full.

import { byId, create } from "./dom.js";

const MOST = 200; // images on the page; the oldest leave it

/** One image: `answer` once there is one, `error` if it cannot be, neither while it waits. */
export function createResult(image, onSelect) {
  const result = { image, url: URL.createObjectURL(image), answer: null, error: null, caption: "" };
  const thumbnail = create("img", { src: result.url, alt: "", decoding: "async" });
  // HEIC or TIFF: the server decodes them, many browsers do not
  thumbnail.addEventListener("error", () => thumbnail.classList.add("missing"));
  result.title = create("span", { className: "answer" });
  result.share = create("span", { className: "share" });
  result.button = create("button", { type: "button" });
  result.button.append(thumbnail, create("bdi", { className: "name", textContent: image.name || "image" }),
    result.title, result.share);
  result.button.addEventListener("click", () => onSelect(result));
  result.item = create("li");
  result.item.append(result.button);
  return result;
}

/** Adds the newest in front of the others, in their own order, and returns those that had to leave. */
export function addResults(results, added) {
  results.unshift(...added);
  const removed = results.splice(MOST);
  for (const result of removed) URL.revokeObjectURL(result.url);
  byId("result-list").replaceChildren(...results.map(({ item }) => item));
  byId("result-list").scrollLeft = 0;
  return removed;
}

/** Writes the state of one result into the list, with the description of its answer if there is one. */
export function drawResult(result, description) {
  const { title, short } = description ? description
    : result.error ? { title: "cannot be used", short: "" } : { title: "waiting …", short: "" };
  result.title.textContent = title;
  result.share.textContent = short;
  result.item.classList.toggle("failed", Boolean(result.error));
}

/** Shows how many there are, and which one is shown in full; a single image needs no list. */
export function drawList(results, selected) {
  const answered = results.filter(result => result.answer).length;
  const failed = results.filter(result => result.error).length;
  byId("results").hidden = results.length < 2;
  byId("results-title").textContent = `${results.length} images`
    + (answered + failed < results.length ? `, ${answered + failed} answered` : "")
    + (failed ? `, ${failed} cannot be used` : "");
  for (const result of results) result.button.setAttribute("aria-pressed", result === selected);
}
