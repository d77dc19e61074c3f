// Show errors on the page, with what to do about them.

import { byId, create } from "./dom.js";

/** `canRetry`: the same may work in a moment; `useKey`: the server requires a key, and this function takes it. */
export class PageError extends Error {
  constructor(message, { hint = "", canRetry = false, useKey = null } = {}) {
    super(message);
    Object.assign(this, { hint, canRetry, useKey });
  }
}

export function clearError() {
  // the focused element goes away: keep the keyboard from starting again at the top of the page
  if (document.activeElement.closest("#error, #key")) byId("choose").focus({ preventScroll: true });
  byId("error").replaceChildren();
  byId("key").hidden = true;
}

/** Shows the error; `retry` runs when the user asks for it, or has entered a key. */
export function showError(error, retry = () => {}) {
  clearError();
  if (!(error instanceof PageError)) {
    console.error(error); // a bug of this page: keep its stack trace
    return showError(new PageError(`This page has failed: ${error.message}.`, { hint: "Reload it." }));
  }
  if (error.message) {
    const box = create("p", { className: "warning" });
    box.append(create("b", { textContent: error.message }), ` ${error.hint}`);
    if (error.canRetry) box.append(" ", retryButton(retry));
    byId("error").append(box);
  }
  if (error.useKey) askForKey(error.useKey, retry);
}

function retryButton(retry) {
  const button = create("button", { type: "button", className: "quiet", textContent: "Try again" });
  button.addEventListener("click", () => {
    clearError();
    retry();
  });
  return button;
}

function askForKey(useKey, retry) {
  byId("key").hidden = false;
  byId("key-value").focus();
  byId("key").onsubmit = event => {
    event.preventDefault();
    useKey(byId("key-value").value.trim());
    byId("key-value").value = "";
    clearError();
    retry();
  };
}
