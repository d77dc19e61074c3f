// Image input: chosen as a file, dropped anywhere on the page, pasted, or taken with the camera.

import { takePhoto } from "./camera.js";
import { byId } from "./dom.js";
import { PageError } from "./errors.js";

/** Calls onImages(files) with what was chosen at once, and onError(error) if the input holds none. */
export function listenForImages(onImages, onError) {
  byId("choose").addEventListener("click", () => byId("file").click());
  for (const input of [byId("file"), byId("camera-file")]) {
    input.addEventListener("change", () => {
      if (input.files.length) onImages([...input.files]);
      input.value = ""; // so that choosing the same file again is a change
    });
  }

  byId("camera").addEventListener("click", async () => {
    // The camera app of a phone focuses and exposes better than a video frame, and needs no https.
    if (matchMedia("(pointer: coarse)").matches) return byId("camera-file").click();
    try {
      const image = await takePhoto();
      if (image) onImages([image]);
    } catch (error) {
      onError(error);
    }
  });

  let fromThisPage = false; // an element dragged within the page is not input
  addEventListener("dragstart", () => { fromThisPage = true; });
  addEventListener("dragend", () => { fromThisPage = false; });
  const isInput = event => !fromThisPage && event.dataTransfer?.types.length > 0;
  const showDropTarget = on => document.body.classList.toggle("dropping", on);
  addEventListener("dragover", event => {
    if (!isInput(event)) return;
    event.preventDefault(); // otherwise the browser would navigate to the file
    event.dataTransfer.dropEffect = "copy";
    showDropTarget(true);
  });
  addEventListener("dragleave", event => { if (!event.relatedTarget) showDropTarget(false); });
  addEventListener("drop", event => {
    if (!isInput(event)) return;
    event.preventDefault();
    showDropTarget(false);
    const folder = [...event.dataTransfer.items].some(item => item.webkitGetAsEntry?.()?.isDirectory);
    if (folder) return onError(new PageError("That is a folder.", { hint: "Drop the images in it." }));
    acceptFiles(event.dataTransfer.files, "That is not a file.", "Save the image first, or copy it and paste it here.");
  });

  addEventListener("paste", event => {
    if (event.target.closest?.("input, select")) return; // for example an API key
    acceptFiles(event.clipboardData.files, "There is no image on the clipboard.", "Copy an image, not its address.");
  });

  function acceptFiles(files, message, hint) {
    if (!files.length) return onError(new PageError(message, { hint }));
    onImages([...files]);
  }
}
