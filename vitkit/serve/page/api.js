// Requests to the server's HTTP API, and their errors.

import { PageError } from "./errors.js";

let key = ""; // in memory only: gone when the page is closed

export const fetchModels = () => request("v1/models");

/** The server's answer for one image, to a query of the model's task. */
export async function fetchPrediction(image, query) {
  const { predictions } = await request(`v1/predict?${new URLSearchParams(query)}`, image);
  return predictions[0];
}

export const fetchAttention = (image, model, signal) =>
  request(`v1/attention?${new URLSearchParams({ model })}`, image, signal);

async function request(path, image, signal) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  let response, body;
  try {
    response = await fetch(path, { headers, signal, ...(image && { method: "POST", body: form(image) }) });
    body = await response.json().catch(error => {
      if (error instanceof SyntaxError) return {}; // HTML of a proxy in between
      throw error;
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    // a file that was changed or deleted since it was chosen fails in the same way as a missing server
    if (image && !await isReadable(image)) {
      throw new PageError(`${image.name} can no longer be read.`, { hint: "Choose it again." });
    }
    throw new PageError("The server does not respond.", { hint: "Is vitkit serve still running?", canRetry: true });
  }
  if (!response.ok) throw errorOf(response, body, image);
  return body;
}

function form(image) {
  const form = new FormData();
  form.append("images", image, image.name || "image");
  return form;
}

const isReadable = image => image.slice(0, 1).arrayBuffer().then(() => true, () => false);

function errorOf(response, body, image) {
  const { status } = response;
  if (status === 401 || status === 429) {
    return new PageError(key ? "The server did not accept this key." : "", { useKey: value => { key = value; } });
  }
  const decodeError = body.predictions?.[0]?.error;
  if (decodeError) return new PageError(`${image.name || "The image"} cannot be used: ${withFullStop(decodeError)}`);
  const message = body.error ?? `The server responded with ${status} ${response.statusText}`.trim();
  const text = capitalise(withFullStop(message));
  if (status === 503) {
    const seconds = Number(response.headers.get("Retry-After"));
    return new PageError(text, { hint: `Try again in ${seconds ? `${seconds} s` : "a moment"}.`, canRetry: true });
  }
  const hint = capitalise(withFullStop(body.try ?? ""));
  return new PageError(text, { hint, canRetry: status >= 500 || status === 408 });
}

const withFullStop = text => text && text.replace(/([^.!?])$/, "$1.");
const capitalise = text => text && text[0].toUpperCase() + text.slice(1);
