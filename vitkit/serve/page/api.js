// The server's HTTP API, and what can go wrong with it.

import { Trouble } from "./trouble.js";

let key = ""; // in memory only: gone with the page

export const models = () => ask("v1/models");

/** Its answers; with `seen`, the picture as the model sees it, too. */
export async function predict(picture, model, top, seen, signal) {
  const { predictions } = await ask(`v1/predict?${new URLSearchParams({ model, top, seen })}`, picture, signal);
  return predictions[0];
}

export const attention = (picture, model, signal) =>
  ask(`v1/attention?${new URLSearchParams({ model })}`, picture, signal);

async function ask(path, picture, signal) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  let answer, body;
  try {
    answer = await fetch(path, { headers, signal, ...(picture && { method: "POST", body: form(picture) }) });
    body = await answer.json().catch(error => {
      if (error instanceof SyntaxError) return {}; // a proxy in between speaks HTML
      throw error;
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    // a file that was changed or deleted since it was chosen fails in the same way as a server that is gone
    if (picture && !await readable(picture)) {
      throw new Trouble(`${picture.name} can no longer be read.`, { hint: "Choose it again." });
    }
    throw new Trouble("The server does not answer.", { hint: "Is vitkit serve still running?", again: true });
  }
  if (!answer.ok) throw told(answer, body, picture);
  return body;
}

function form(picture) {
  const form = new FormData();
  form.append("pictures", picture, picture.name || "picture");
  return form;
}

const readable = picture => picture.slice(0, 1).arrayBuffer().then(() => true, () => false);

function told(answer, body, picture) {
  const { status } = answer;
  if (status === 401) {
    return new Trouble(key ? "The server did not accept this key." : "", { useKey: value => { key = value; } });
  }
  const unread = body.predictions?.[0]?.error;
  if (unread) return new Trouble(`${picture.name || "The picture"} cannot be used: ${stopped(unread)}`);
  const message = capital(stopped(body.error ?? `The server answered with ${status} ${answer.statusText}`.trim()));
  if (status === 503) {
    const seconds = Number(answer.headers.get("Retry-After"));
    return new Trouble(message, { hint: `Try again in ${seconds ? `${seconds} s` : "a moment"}.`, again: true });
  }
  return new Trouble(message, { hint: capital(stopped(body.try ?? "")), again: status >= 500 || status === 408 });
}

const stopped = words => words && words.replace(/([^.!?])$/, "$1.");
const capital = words => words && words[0].toUpperCase() + words.slice(1);
