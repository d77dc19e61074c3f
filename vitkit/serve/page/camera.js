// Take one photo with the computer's camera, in a dialog.

import { byId } from "./dom.js";
import { PageError } from "./errors.js";

const REASONS = {
  NotAllowedError: ["The camera was not allowed.", "Allow it for this page in the browser’s address bar."],
  NotFoundError: ["This computer has no camera.", "Choose an image instead."],
  NotReadableError: ["The camera cannot be used.", "Another program may be using it."],
};

/** Returns a File, or null if the user cancels. */
export async function takePhoto() {
  if (!navigator.mediaDevices) {
    throw new PageError("The browser does not let this page use the camera.",
      { hint: "Browsers allow it only over https, or if the server runs on this computer (http://localhost)." });
  }
  let stream;
  try {
    const video = { facingMode: "environment", width: { ideal: 1280 } };
    stream = await navigator.mediaDevices.getUserMedia({ video });
  } catch (error) {
    const [message, hint] = REASONS[error.name] ?? ["The camera cannot be used.", `${error.name}: ${error.message}`];
    throw new PageError(message, { hint });
  }
  const dialog = byId("camera-dialog"), video = byId("video"), shutter = byId("shutter");
  try {
    const photo = new Promise(resolve => {
      shutter.onclick = () => resolve(currentFrame(video));
      byId("cancel-camera").onclick = () => resolve(null);
      dialog.onclose = () => resolve(null); // Escape
    });
    shutter.disabled = true;
    dialog.showModal();
    video.srcObject = stream;
    video.play().then(() => {
      shutter.disabled = false; // there is no frame to take before
      shutter.focus();
    }, () => {}); // cancelled before the video began
    return await photo;
  } finally {
    stream.getTracks().forEach(track => track.stop()); // switches the camera's light off
    video.srcObject = null;
    dialog.onclose = null;
    dialog.close();
  }
}

async function currentFrame(video) {
  const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
  canvas.getContext("2d").drawImage(video, 0, 0);
  const type = "image/jpeg";
  return new File([await canvas.convertToBlob({ type, quality: 0.95 })], "camera.jpg", { type });
}
