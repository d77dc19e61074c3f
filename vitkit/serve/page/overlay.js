// Attention over a photo: a grey, dim picture on which the map glows. The twin of vitkit/inspect/rasters.py (`lit`),
// number by number; tests/serve/test_page.py compares the two.

import { INFERNO } from "./inferno.js";

const BRIGHTEST = 0.98;                   // share of the patches, from which on all are drawn alike
const DARK = 18, DIM = 0.6, GLOW = 0.8;   // a photo's least light, what is left of its own, what a map can cover
const SIDE = 512;                         // drawn about this large: a smooth map needs room on a small picture
const TINY = 64;                          // up to this side, pixels are shown as pixels

export const isTiny = picture => Math.max(picture.naturalWidth, picture.naturalHeight) <= TINY;

/** The picture's light, read once and drawn under every map. */
export function dimmed(picture) {
  const times = Math.max(Math.floor(SIDE / Math.max(picture.naturalWidth, picture.naturalHeight)), 1);
  const width = picture.naturalWidth * times, height = picture.naturalHeight * times;
  const paint = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  paint.imageSmoothingEnabled = !isTiny(picture);
  paint.imageSmoothingQuality = "high";
  paint.drawImage(picture, 0, 0, width, height);
  const { data } = paint.getImageData(0, 0, width, height);
  const grey = new Float32Array(width * height);
  for (let i = 0; i < grey.length; i++) grey[i] = DARK + DIM * (data[4 * i] + data[4 * i + 1] + data[4 * i + 2]) / 3;
  return { grey, width, height };
}

/** Draws the map, rows of numbers, over the dimmed picture. */
export function light(canvas, { grey, width, height }, map) {
  const glow = enlarge(unit(map), width, height);
  const drawn = new ImageData(width, height), { data } = drawn;
  for (let i = 0; i < grey.length; i++) {
    const bright = Math.min(Math.max(glow[i], 0), 1);
    const cover = GLOW * bright, colour = 3 * Math.min(Math.floor(bright * 256), 255);
    for (let c = 0; c < 3; c++) data[4 * i + c] = (1 - cover) * grey[i] + cover * INFERNO[colour + c]; // rounds itself
    data[4 * i + 3] = 255;
  }
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  canvas.getContext("2d").putImageData(drawn, 0, 0);
}

/** Onto 0 to 1; the brightest few patches alike, or one odd patch would take all the light. A flat map is 0. */
function unit(map) {
  const sorted = map.flat().sort((a, b) => a - b);
  const low = sorted[0], most = sorted.at(-1);
  const place = BRIGHTEST * (sorted.length - 1), below = Math.floor(place);
  let high = sorted[below] + (place - below) * ((sorted[below + 1] ?? most) - sorted[below]);
  if (high <= low) high = most;
  return map.map(row => row.map(value => high > low ? Math.min((value - low) / (high - low), 1) : 0));
}

/** Smoothly, rows then columns: a patch is not a hard edge in the picture. */
function enlarge(map, width, height) {
  const across = taps(map[0].length, width), down = taps(map.length, height);
  const wide = map.map(row => Float32Array.from(across, ({ from, weights }) => mix(weights, k => row[from + k])));
  const large = new Float32Array(width * height);
  down.forEach(({ from, weights }, y) => {
    weights.forEach((weight, k) => {
      const row = wide[from + k];
      for (let x = 0; x < width; x++) large[y * width + x] += weight * row[x];
    });
  });
  return large;
}

const mix = (weights, value) => weights.reduce((sum, weight, k) => sum + weight * value(k), 0);

/** For each place along a longer line, which places of the shorter one it is mixed from: Pillow's bicubic. */
function taps(count, length) {
  return Array.from({ length }, (_, x) => {
    const centre = (x + 0.5) * count / length;
    const from = Math.max(Math.floor(centre - 1.5), 0), to = Math.min(Math.floor(centre + 2.5), count);
    const weights = Array.from({ length: to - from }, (_, k) => cubic(from + k + 0.5 - centre));
    const sum = weights.reduce((a, b) => a + b);
    return { from, weights: weights.map(weight => weight / sum) };
  });
}

function cubic(x) {
  const d = Math.abs(x);
  if (d < 1) return (1.5 * d - 2.5) * d * d + 1;
  return d < 2 ? ((-0.5 * d + 2.5) * d - 4) * d + 2 : 0;
}

const DOWN = ["upper", "", "lower"], ALONG = ["left", "middle", "right"];

/** Where most of the light is, in words, for those who do not see it: the fullest of nine fields and its share. */
export function brightestField(map) {
  const fields = new Float64Array(9);
  let sum = 0;
  map.forEach((row, y) => row.forEach((value, x) => {
    fields[3 * Math.floor(3 * y / map.length) + Math.floor(3 * x / row.length)] += value;
    sum += value;
  }));
  const best = fields.indexOf(Math.max(...fields));
  const field = best === 4 ? "centre" : `${DOWN[Math.floor(best / 3)]} ${ALONG[best % 3]}`.trim();
  return { field, share: sum > 0 ? fields[best] / sum : 0 };
}
