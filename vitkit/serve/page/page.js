// The page: images come in, the server classifies each, and one is shown in full, with its attention maps.

import { fetchAttention, fetchModels, fetchPrediction } from "./api.js";
import { clearAttention, setUpAttention, showAttention, showAttentionLoading, showModelInput } from "./attention.js";
import { byId } from "./dom.js";
import { clearError, PageError, showError } from "./errors.js";
import { listenForImages } from "./image_input.js";
import { megabytes, showModelInfo } from "./model_info.js";
import { clearPrediction, MAX_CLASSES, showPrediction } from "./predictions.js";
import { addResults, createResult, drawList, drawResult } from "./results.js";

const TITLE = document.title;
const AT_A_TIME = 3; // images in requests at a time, so that a hundred of them leave the server free for others

let server = null;    // its models and limits
let model = null;     // the selected one
const results = [];   // of all images on the page, the newest first
let selected = null;  // the one that is shown in full
let waiting = [];     // those to classify
let active = 0;       // requests under way
let generation = 0;   // counts changes of the model: a late response of another model is dropped
let controller = new AbortController(); // of the attention maps: another selection aborts them

listenForImages(addImages, showError);
start();

function start() {
  loadModels().catch(error => showError(error, start));
}

/** Fetches the list of models, once. */
async function loadModels() {
  if (server) return;
  const response = await fetchModels();
  if (server) return; // an image came in meanwhile, and its classification fetched the list, too
  server = response;
  byId("model").replaceChildren(...server.models.map(({ name }) => new Option(name)));
  byId("model").value = server.default;
  byId("model-chooser").hidden = server.models.length < 2;
  selectModel(server.default);
}

byId("model").addEventListener("change", () => {
  selectModel(byId("model").value);
  generation += 1;
  for (const result of results) Object.assign(result, { answers: null, error: null, caption: "" });
  results.forEach(result => drawResult(result, model));
  waiting = results.filter(result => result !== selected);
  if (selected) {
    waiting.unshift(selected);
    select(selected);
  }
  classifyWaiting();
});

function selectModel(name) {
  model = server.models.find(candidate => candidate.name === name);
  byId("model-name").textContent = server.models.length < 2 ? ` · ${name}` : "";
  setUpAttention(model);
  showModelInfo(model, server.limits);
}

/** Adds images, chosen at once, and shows the first of them in full. */
function addImages(images) {
  const added = images.map(image => createResult(image, select));
  const removed = new Set(addResults(results, added));
  waiting = [...added, ...waiting].filter(result => !removed.has(result));
  added.forEach(result => drawResult(result, model));
  select(added[0]);
  classifyWaiting();
}

function classifyWaiting() {
  while (active < AT_A_TIME && waiting.length) {
    active += 1;
    classify(waiting.shift()).finally(() => {
      active -= 1;
      classifyWaiting();
    });
  }
}

/** Asks the server about one image, and writes the answer into the list and, if it is selected, into the page. */
async function classify(result) {
  let asked = generation;
  const { image } = result;
  try {
    await loadModels();
    asked = generation;
    checkSize(image, server.limits.body_bytes);
    const started = performance.now();
    const hasAttention = model.views.length > 0; // without it, the prediction has to bring the model's input along
    const top = Math.min(MAX_CLASSES, model.classes.length);
    const { answers, seen } = await fetchPrediction(image, model.name, top, !hasAttention);
    if (asked !== generation) return;
    const seconds = (performance.now() - started) / 1000;
    Object.assign(result, { answers, seen, caption: `answered in ${seconds.toFixed(seconds < 1 ? 2 : 1)} s` });
  } catch (error) {
    if (asked !== generation) return;
    result.error = error;
  }
  drawResult(result, model);
  drawList(results, selected);
  if (result === selected) await showSelected();
}

/** Shows one image in full: at once, and its prediction as soon as it is there. */
function select(result) {
  selected = result;
  controller.abort();
  controller = new AbortController();
  drawList(results, selected);
  showPreview(result);
  if (result.answers || result.error) showSelected();
}

async function showSelected() {
  const result = selected, { signal } = controller;
  if (result.error) return showFailure(result, result.error);
  const prediction = showPrediction(result.answers, model);
  announce(result, prediction);
  showAttentionLoading(model);
  try {
    await (model.views.length
      ? showAttention(await fetchAttention(result.image, model.name, signal), prediction, signal)
      : showModelInput(result.seen, prediction, signal));
  } catch (error) {
    if (signal.aborted) return;
    clearAttention();
    showError(error, () => select(result));
  }
}

function showFailure(result, error) {
  clearAttention();
  hidePreview();
  showError(error, () => {
    // a missing key or a busy server concerns all images, not only this one
    const failed = results.filter(other => other === result || other.error?.canRetry || other.error?.useKey);
    for (const other of failed) {
      other.error = null;
      drawResult(other, model);
    }
    waiting = [result, ...failed.filter(other => other !== result), ...waiting];
    select(result);
    classifyWaiting();
  });
}

function checkSize(image, limit) {
  if (image.size <= limit) return;
  throw new PageError(`${image.name} has ${megabytes(image.size)}; this server accepts up to ${megabytes(limit)}.`,
    { hint: "Save it smaller, or as a JPEG." });
}

/** Shows the image at once, before its prediction is there. */
function showPreview({ image, url }) {
  clearError();
  clearPrediction();
  clearAttention();
  byId("upload").classList.add("small");
  Object.assign(byId("preview"), { src: url, alt: "Your image", hidden: false });
  setCaption(image.name);
  byId("prediction").setAttribute("aria-busy", "true");
  byId("prediction").hidden = false;
  byId("prediction").scrollIntoView({ block: "nearest" });
  byId("status").textContent = `Classifying ${image.name || "the image"} …`;
  document.title = "Classifying … · vitkit";
}

function announce({ image, caption }, prediction) {
  byId("prediction").removeAttribute("aria-busy");
  byId("preview").alt = `Your image. ${prediction}`;
  setCaption(image.name, caption);
  byId("status").textContent = prediction;
  document.title = `${prediction} · vitkit`;
}

const setCaption = (...texts) => { byId("caption").textContent = texts.filter(Boolean).join(" · "); };

// HEIC or TIFF: the server decodes them, many browsers do not. The preprocessed image is shown all the same.
byId("preview").addEventListener("error", () => { byId("preview").hidden = true; });

/** Shows no image in full, because there was no prediction; without others, returns to the invitation. */
function hidePreview() {
  byId("prediction").hidden = true;
  byId("upload").classList.toggle("small", results.length > 1);
  byId("status").textContent = "";
  document.title = TITLE;
}
