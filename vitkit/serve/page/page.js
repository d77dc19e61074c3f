// The page: images come in, the server answers each, and one is shown in full, as the model's task has it.

import { fetchModels } from "./api.js";
import { classification } from "./classification.js";
import { byId } from "./dom.js";
import { clearError, PageError, showError } from "./errors.js";
import { listenForImages } from "./image_input.js";
import { megabytes, showModelInfo } from "./model_info.js";
import { addResults, createResult, drawList, drawResult } from "./results.js";
import { segmentation } from "./segmentation.js";

const TITLE = document.title;
const TASKS = { classify: classification, segment: segmentation };
const AT_A_TIME = 3; // images in requests at a time, so that a hundred of them leave the server free for others

let server = null;    // its models and limits
let model = null;     // the selected one
let task = classification; // what it does
const results = [];   // of all images on the page, the newest first
let selected = null;  // the one that is shown in full
let waiting = [];     // those to ask about
let active = 0;       // requests under way
let generation = 0;   // counts changes of the model: a late response of another model is dropped
let controller = new AbortController(); // of the details: another selection aborts them

listenForImages(addImages, showError);
start();

function start() {
  loadModels().catch(error => showError(error, start));
}

/** Fetches the list of models, once. */
async function loadModels() {
  if (server) return;
  const response = await fetchModels();
  if (server) return; // an image came in meanwhile, and fetched the list, too
  server = response;
  byId("model").replaceChildren(...server.models.map(({ name }) => new Option(name)));
  byId("model").value = server.default;
  byId("model-chooser").hidden = server.models.length < 2;
  selectModel(server.default);
}

byId("model").addEventListener("change", () => {
  selectModel(byId("model").value);
  generation += 1;
  for (const result of results) Object.assign(result, { answer: null, error: null, caption: "" });
  results.forEach(draw);
  waiting = results.filter(result => result !== selected);
  if (selected) {
    waiting.unshift(selected);
    select(selected);
  }
  askWaiting();
});

function selectModel(name) {
  model = server.models.find(candidate => candidate.name === name);
  byId("model-name").textContent = server.models.length < 2 ? ` · ${name}` : "";
  task.clear();
  task.clearDetails();
  task = TASKS[model.task];
  task.setUp(model);
  byId("drop-here").textContent = `Drop images to ${task.verb} them`;
  byId("prediction").classList.toggle("segmented", task === segmentation);
  showModelInfo(model, server.limits);
}

/** Adds images, chosen at once, and shows the first of them in full. */
function addImages(images) {
  const added = images.map(image => createResult(image, select));
  const removed = new Set(addResults(results, added));
  waiting = [...added, ...waiting].filter(result => !removed.has(result));
  added.forEach(draw);
  select(added[0]);
  askWaiting();
}

function askWaiting() {
  while (active < AT_A_TIME && waiting.length) {
    active += 1;
    ask(waiting.shift()).finally(() => {
      active -= 1;
      askWaiting();
    });
  }
}

/** Asks the server about one image, and writes the answer into the list and, if it is selected, into the page. */
async function ask(result) {
  let asked = generation;
  const { image } = result;
  try {
    await loadModels();
    asked = generation;
    checkSize(image, server.limits.body_bytes);
    const started = performance.now();
    const answer = await task.fetch(image, model);
    if (asked !== generation) return;
    const seconds = (performance.now() - started) / 1000;
    const caption = [`answered in ${seconds.toFixed(seconds < 1 ? 2 : 1)} s`, task.caption(answer)];
    Object.assign(result, { answer, caption: caption.filter(Boolean).join(" · ") });
  } catch (error) {
    if (asked !== generation) return;
    result.error = error;
  }
  draw(result);
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
  if (result.answer || result.error) showSelected();
}

async function showSelected() {
  const result = selected, { signal } = controller;
  if (result.error) return showFailure(result, result.error);
  const text = task.show(result.answer, model);
  announce(result, text);
  try {
    await task.showDetails(result, text, model, signal);
  } catch (error) {
    if (signal.aborted) return;
    task.clearDetails();
    showError(error, () => select(result));
  }
}

const draw = result => drawResult(result, result.answer && task.describe(result.answer, model));

function showFailure(result, error) {
  task.clearDetails();
  hidePreview();
  showError(error, () => {
    // a missing key or a busy server concerns all images, not only this one
    const failed = results.filter(other => other === result || other.error?.canRetry || other.error?.useKey);
    for (const other of failed) {
      other.error = null;
      draw(other);
    }
    waiting = [result, ...failed.filter(other => other !== result), ...waiting];
    select(result);
    askWaiting();
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
  task.clear();
  task.clearDetails();
  byId("headline").textContent = `${task.doing} …`;
  byId("upload").classList.add("small");
  Object.assign(byId("preview"), { src: url, alt: "Your image", hidden: false });
  setCaption(image.name);
  byId("prediction").setAttribute("aria-busy", "true");
  byId("prediction").hidden = false;
  byId("prediction").scrollIntoView({ block: "nearest" });
  byId("status").textContent = `${task.doing} ${image.name || "the image"} …`;
  document.title = `${task.doing} … · vitkit`;
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
