// The page: an image comes in, the server classifies it, and the attention maps follow.

import { fetchAttention, fetchModels, fetchPrediction } from "./api.js";
import { clearAttention, setUpAttention, showAttention, showAttentionLoading, showModelInput } from "./attention.js";
import { byId } from "./dom.js";
import { clearError, PageError, showError } from "./errors.js";
import { listenForImages } from "./image_input.js";
import { megabytes, showModelInfo } from "./model_info.js";
import { clearPrediction, MAX_CLASSES, showPrediction } from "./predictions.js";

const TITLE = document.title;

let server = null;       // its models and limits
let model = null;        // the selected one
let currentImage = null; // for another model to classify
let controller = new AbortController(); // aborted by a newer image: a late response never appears next to another image

listenForImages(classify, showError);
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
  if (currentImage) classify(currentImage);
});

function selectModel(name) {
  model = server.models.find(candidate => candidate.name === name);
  byId("model-name").textContent = server.models.length < 2 ? ` · ${name}` : "";
  setUpAttention(model);
  showModelInfo(model, server.limits);
}

async function classify(image, note = "") {
  controller.abort();
  controller = new AbortController();
  const { signal } = controller;
  currentImage = image;
  showPreview(image, note);
  try {
    await loadModels();
    if (signal.aborted) return;
    checkSize(image, server.limits.body_bytes);
    const started = performance.now();
    const hasAttention = model.views.length > 0; // without it, the prediction has to bring the model's input along
    const top = Math.min(MAX_CLASSES, model.classes.length);
    const { answers, seen } = await fetchPrediction(image, model.name, top, !hasAttention, signal);
    if (signal.aborted) return;
    const prediction = showPrediction(answers, model);
    announce(image, prediction, (performance.now() - started) / 1000, note);
    showAttentionLoading(model);
    await (hasAttention
      ? showAttention(await fetchAttention(image, model.name, signal), prediction, signal)
      : showModelInput(seen, prediction, signal));
  } catch (error) {
    if (signal.aborted) return;
    clearAttention();
    if (byId("prediction").hasAttribute("aria-busy")) hidePreview();
    showError(error, () => classify(image, note));
  }
}

function checkSize(image, limit) {
  if (image.size <= limit) return;
  throw new PageError(`${image.name} has ${megabytes(image.size)}; this server accepts up to ${megabytes(limit)}.`,
    { hint: "Save it smaller, or as a JPEG." });
}

/** Shows the image at once, before its prediction is there. */
function showPreview(image, note) {
  clearError();
  clearPrediction();
  clearAttention();
  byId("upload").classList.add("small");
  URL.revokeObjectURL(byId("preview").src);
  Object.assign(byId("preview"), { src: URL.createObjectURL(image), alt: "Your image", hidden: false });
  setCaption(image.name, note);
  byId("prediction").setAttribute("aria-busy", "true");
  byId("prediction").hidden = false;
  byId("prediction").scrollIntoView({ block: "nearest" });
  byId("status").textContent = `Classifying ${image.name || "the image"} …`;
  document.title = "Classifying … · vitkit";
}

function announce(image, prediction, seconds, note) {
  byId("prediction").removeAttribute("aria-busy");
  byId("preview").alt = `Your image. ${prediction}`;
  setCaption(image.name, `answered in ${seconds.toFixed(seconds < 1 ? 2 : 1)} s`, note);
  byId("status").textContent = prediction;
  document.title = `${prediction} · vitkit`;
}

const setCaption = (...texts) => { byId("caption").textContent = texts.filter(Boolean).join(" · "); };

// HEIC or TIFF: the server decodes them, many browsers do not. The preprocessed image is shown all the same.
byId("preview").addEventListener("error", () => { byId("preview").hidden = true; });

/** Returns to the invitation, because there was no prediction. */
function hidePreview() {
  currentImage = null;
  byId("prediction").hidden = true;
  byId("upload").classList.remove("small");
  byId("status").textContent = "";
  document.title = TITLE;
}
