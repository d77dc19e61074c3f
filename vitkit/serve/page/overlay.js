// Attention heatmap over an image that is grey and dimmed. It computes the same as `overlay` in
// vitkit/inspect/heatmaps.py; tests/serve/test_page.py compares the two.

import { INFERNO } from "./inferno.js";

const BRIGHTEST = 0.98;                    // quantile of the patches from which on all are drawn equally bright
const DARK = 18, DIM = 0.6, OPACITY = 0.8; // the image's least brightness, its contrast, the heatmap's largest opacity
const SIDE = 512;                          // drawn at about this size: a smooth map needs room on a small image
const TINY = 64;                           // up to this side, pixels are shown as squares

export const isTiny = image => Math.max(image.naturalWidth, image.naturalHeight) <= TINY;

/** Returns the grey, dimmed pixels, computed once and drawn under every map. */
export function dimImage(image) {
  const scale = Math.max(Math.floor(SIDE / Math.max(image.naturalWidth, image.naturalHeight)), 1);
  const width = image.naturalWidth * scale, height = image.naturalHeight * scale;
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.imageSmoothingEnabled = !isTiny(image);
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  const grey = new Float32Array(width * height);
  for (let i = 0; i < grey.length; i++) grey[i] = DARK + DIM * (data[4 * i] + data[4 * i + 1] + data[4 * i + 2]) / 3;
  return { grey, width, height };
}

/** Draws the map, rows of weights, over the dimmed image. */
export function drawHeatmap(canvas, { grey, width, height }, map) {
  const heatmap = upsample(scaleToUnit(map), width, height);
  const pixels = new ImageData(width, height), { data } = pixels;
  for (let i = 0; i < grey.length; i++) {
    const weight = Math.min(Math.max(heatmap[i], 0), 1);
    const opacity = OPACITY * weight, colour = 3 * Math.min(Math.floor(weight * 256), 255);
    for (let c = 0; c < 3; c++) { // the array rounds
      data[4 * i + c] = (1 - opacity) * grey[i] + opacity * INFERNO[colour + c];
    }
    data[4 * i + 3] = 255;
  }
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

/** Scales to 0 to 1; the brightest few patches are equal, or one outlier would darken the rest. A flat map is 0. */
function scaleToUnit(map) {
  const sorted = map.flat().sort((a, b) => a - b);
  const low = sorted[0], max = sorted.at(-1);
  const position = BRIGHTEST * (sorted.length - 1), below = Math.floor(position);
  let high = sorted[below] + (position - below) * ((sorted[below + 1] ?? max) - sorted[below]);
  if (high <= low) high = max;
  return map.map(row => row.map(value => high > low ? Math.min((value - low) / (high - low), 1) : 0));
}

/** Bicubic interpolation, rows then columns: a patch has no hard edge in the image. */
function upsample(map, width, height) {
  const horizontal = taps(map[0].length, width), vertical = taps(map.length, height);
  const wide = map.map(row =>
    Float32Array.from(horizontal, ({ from, weights }) => weightedSum(weights, k => row[from + k])));
  const large = new Float32Array(width * height);
  vertical.forEach(({ from, weights }, y) => {
    weights.forEach((weight, k) => {
      const row = wide[from + k];
      for (let x = 0; x < width; x++) large[y * width + x] += weight * row[x];
    });
  });
  return large;
}

const weightedSum = (weights, value) => weights.reduce((sum, weight, k) => sum + weight * value(k), 0);

/** For each output position, the input positions and weights that it is interpolated from, as in Pillow's bicubic. */
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

const ROWS = ["upper", "", "lower"], COLUMNS = ["left", "middle", "right"];

/** Returns the region with most attention, of nine equal ones, and its share: a description for screen readers. */
export function brightestRegion(map) {
  const sums = new Float64Array(9);
  let total = 0;
  map.forEach((row, y) => row.forEach((value, x) => {
    sums[3 * Math.floor(3 * y / map.length) + Math.floor(3 * x / row.length)] += value;
    total += value;
  }));
  const best = sums.indexOf(Math.max(...sums));
  const region = best === 4 ? "centre" : `${ROWS[Math.floor(best / 3)]} ${COLUMNS[best % 3]}`.trim();
  return { region, share: total > 0 ? sums[best] / total : 0 };
}
