// What went wrong, in words, and what to do about it.

import { at, make } from "./dom.js";

/** `again`: the same may work in a moment; `useKey`: the server wants a key, and this takes it. */
export class Trouble extends Error {
  constructor(message, { hint = "", again = false, useKey = null } = {}) {
    super(message);
    Object.assign(this, { hint, again, useKey });
  }
}

export function quiet() {
  // what had the focus goes away: the keyboard is not to start again from the top of the page
  if (document.activeElement.closest("#trouble, #key")) at("choose").focus({ preventScroll: true });
  at("trouble").replaceChildren();
  at("key").hidden = true;
}

/** Says it; `retry` is what to do once it is mended. */
export function tell(error, retry = () => {}) {
  quiet();
  if (!(error instanceof Trouble)) {
    console.error(error); // our own mistake: its trace belongs to whoever can mend it
    return tell(new Trouble(`This page has failed: ${error.message}.`, { hint: "Load it again." }));
  }
  if (error.message) {
    const box = make("p", { className: "warning" });
    box.append(make("b", { textContent: error.message }), ` ${error.hint}`);
    if (error.again) box.append(" ", againButton(retry));
    at("trouble").append(box);
  }
  if (error.useKey) askForKey(error.useKey, retry);
}

function againButton(retry) {
  const button = make("button", { type: "button", className: "quiet", textContent: "Try again" });
  button.addEventListener("click", () => {
    quiet();
    retry();
  });
  return button;
}

function askForKey(useKey, retry) {
  at("key").hidden = false;
  at("key-value").focus();
  at("key").onsubmit = event => {
    event.preventDefault();
    useKey(at("key-value").value.trim());
    at("key-value").value = "";
    quiet();
    retry();
  };
}
