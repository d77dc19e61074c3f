// One picture from the computer's camera, in a dialog.

import { at } from "./dom.js";
import { Trouble } from "./trouble.js";

const REASONS = {
  NotAllowedError: ["The camera was not allowed.", "Allow it for this page in the browser’s address bar."],
  NotFoundError: ["There is no camera on this computer.", "Choose a picture instead."],
  NotReadableError: ["The camera cannot be used.", "Another program may be using it."],
};

/** A File, or null where the dialog was left. */
export async function openCamera() {
  if (!navigator.mediaDevices) {
    throw new Trouble("The browser does not lend its camera to this page.",
      { hint: "It does so only over https, or where the server runs on this computer itself (http://localhost)." });
  }
  let stream;
  try {
    const video = { facingMode: "environment", width: { ideal: 1280 } };
    stream = await navigator.mediaDevices.getUserMedia({ video });
  } catch (error) {
    const [message, hint] = REASONS[error.name] ?? ["The camera cannot be used.", `${error.name}: ${error.message}`];
    throw new Trouble(message, { hint });
  }
  const booth = at("booth"), video = at("video"), shoot = at("shoot");
  try {
    const taken = new Promise(resolve => {
      shoot.onclick = () => resolve(frame(video));
      at("leave").onclick = () => resolve(null);
      booth.onclose = () => resolve(null); // Escape
    });
    shoot.disabled = true;
    booth.showModal();
    video.srcObject = stream;
    video.play().then(() => {
      shoot.disabled = false; // only now there is something to take
      shoot.focus();
    }, () => {}); // left before it began
    return await taken;
  } finally {
    stream.getTracks().forEach(track => track.stop()); // the camera's light goes out
    video.srcObject = null;
    booth.onclose = null;
    booth.close();
  }
}

async function frame(video) {
  const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
  canvas.getContext("2d").drawImage(video, 0, 0);
  const type = "image/jpeg";
  return new File([await canvas.convertToBlob({ type, quality: 0.95 })], "camera.jpg", { type });
}
