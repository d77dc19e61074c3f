// The ways a picture comes in: chosen, dropped anywhere, pasted, or taken with the camera.

import { openCamera } from "./camera.js";
import { at } from "./dom.js";
import { Trouble } from "./trouble.js";

/** Calls take(file) for each picture, tell(trouble) where there is none. */
export function listen(take, tell) {
  at("choose").addEventListener("click", () => at("file").click());
  for (const input of [at("file"), at("snap")]) {
    input.addEventListener("change", () => {
      if (input.files.length) take(input.files[0]);
      input.value = ""; // the same file again is a change, too
    });
  }

  at("camera").addEventListener("click", async () => {
    // A phone's own camera program focuses and exposes better than a video frame, and needs no https.
    if (matchMedia("(pointer: coarse)").matches) return at("snap").click();
    try {
      const picture = await openCamera();
      if (picture) take(picture);
    } catch (error) {
      tell(error);
    }
  });

  let own = false; // what is dragged from this page itself is not meant for it
  addEventListener("dragstart", () => { own = true; });
  addEventListener("dragend", () => { own = false; });
  const carries = event => !own && event.dataTransfer?.types.length > 0;
  const dropping = on => document.body.classList.toggle("dropping", on);
  addEventListener("dragover", event => {
    if (!carries(event)) return;
    event.preventDefault(); // otherwise the browser would leave the page for the file
    event.dataTransfer.dropEffect = "copy";
    dropping(true);
  });
  addEventListener("dragleave", event => { if (!event.relatedTarget) dropping(false); });
  addEventListener("drop", event => {
    if (!carries(event)) return;
    event.preventDefault();
    dropping(false);
    const folder = [...event.dataTransfer.items].some(item => item.webkitGetAsEntry?.()?.isDirectory);
    if (folder) return tell(new Trouble("That is a folder.", { hint: "Drop one picture out of it." }));
    given(event.dataTransfer.files, "That is not a file.", "Save the picture first, or copy it and paste it here.");
  });

  addEventListener("paste", event => {
    if (event.target.closest?.("input, select")) return; // a key, say
    given(event.clipboardData.files, "There is no picture on the clipboard.", "Copy a picture, not its address.");
  });

  function given(files, trouble, hint) {
    if (!files.length) return tell(new Trouble(trouble, { hint }));
    take(files[0], files.length > 1 ? `One at a time: this is the first of ${files.length} files.` : "");
  }
}
