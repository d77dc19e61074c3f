// The mask over the image: its opacity, one class alone, and the class of the pixel under the pointer.

import { byId } from "./dom.js";

const TINY = 64;                 // up to this side, pixels are shown as squares
const STEPS = 50;                // of an arrow key, from one side of the mask to the other
const HINT = matchMedia("(pointer: coarse)").matches ? "Touch the image to see the class of a pixel."
  : "Point at the image, or move over it with arrow keys, to see the class of a pixel.";
const canvas = byId("mask"), point = byId("point");

let mask = null;                 // { numbers, width, height, classes }
let at = null;                   // the pixel that is named, as [x, y] from 0 to 1
let chosen = null, hinted = null; // class numbers: shown alone until it is chosen again, or while it is pointed at

byId("opacity").addEventListener("input", setOpacity);
canvas.addEventListener("pointermove", event => {
  if (event.pointerType === "mouse") name(placeOf(event), false); // a finger that moves scrolls the page
});
canvas.addEventListener("pointerdown", event => name(placeOf(event), event.pointerType !== "mouse"));
canvas.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") name(null, false); });
canvas.addEventListener("keydown", event => {
  const [x, y] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
  if (!x && !y) return;
  event.preventDefault(); // would scroll the page
  const [column, row] = at ?? [0.5, 0.5], step = 1 / STEPS;
  const within = value => Math.min(Math.max(value, 0), 1 - 1e-6);
  name([within(column + x * step), within(row + y * step)], true);
});

/** Shows a decoded mask; `classes` are { label, colour } by their numbers. */
export function showMask(decoded, classes, { width, height }) {
  mask = { ...decoded, classes };
  byId("stack").style.setProperty("--ratio", width / height);
  canvas.classList.toggle("tiny", Math.max(width, height) <= TINY);
  canvas.setAttribute("aria-label", "The mask over the image. Arrow keys move a point, whose class is named.");
  canvas.hidden = byId("mask-controls").hidden = byId("pixel").hidden = false;
  name(null, false);
  setOpacity();
  draw();
}

export function hideMask() {
  mask = chosen = hinted = null;
  canvas.hidden = point.hidden = byId("mask-controls").hidden = byId("pixel").hidden = true;
}

/** Shows one class alone, or with null all of them; a hint lasts while something points at the class. */
export function showAlone(number, hint) {
  if (hint) hinted = number;
  else chosen = number;
  draw();
}

function draw() {
  if (!mask) return;
  const { numbers, width, height, classes } = mask, alone = hinted ?? chosen;
  const pixels = new ImageData(width, height), colours = new Uint32Array(pixels.data.buffer);
  const palette = new Uint32Array(256);
  const bytes = new Uint8Array(palette.buffer);
  classes.forEach(({ colour }, number) => {
    bytes.set([...colour, alone === null || alone === number ? 255 : 0], 4 * number);
  });
  for (let i = 0; i < numbers.length; i++) colours[i] = palette[numbers[i]];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

function setOpacity() {
  const percent = Number(byId("opacity").value), text = `${percent} %`;
  canvas.style.opacity = percent / 100;
  byId("opacity-name").textContent = text;
  byId("opacity").setAttribute("aria-valuetext", text);
}

function placeOf(event) {
  const { left, top, width, height } = canvas.getBoundingClientRect();
  const share = (value, side) => Math.min(Math.max(value / side, 0), 1 - 1e-6);
  return [share(event.clientX - left, width), share(event.clientY - top, height)];
}

/** Writes the class of a pixel, and marks the pixel if nothing else does: no pointer is there. */
function name(pixel, marked) {
  if (!mask) return;
  at = pixel;
  point.hidden = !pixel || !marked;
  const swatch = byId("pixel").querySelector(".swatch");
  if (!pixel) {
    byId("pixel-class").textContent = HINT;
    swatch.hidden = true;
    return;
  }
  const [x, y] = pixel;
  point.style.left = `${100 * x}%`;
  point.style.top = `${100 * y}%`;
  const { label, colour } = mask.classes[mask.numbers[Math.floor(y * mask.height) * mask.width + Math.floor(x * mask.width)]];
  byId("pixel-class").textContent = label;
  swatch.hidden = false;
  swatch.style.background = `rgb(${colour})`;
}
