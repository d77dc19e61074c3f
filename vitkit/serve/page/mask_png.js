// Masks are PNGs of class numbers with a palette, and browsers decode a PNG to colours, which two classes may share.
// With a palette in which entry i is the grey i, the colours are the class numbers.

const SIGNATURE = 8, LENGTH = 4, TYPE = 4, CRC = 4; // bytes of a PNG's signature, and of each part of a chunk
const LARGEST = 2048; // pixels of a side, to which a larger mask is drawn: more than a screen shows

/** Returns { numbers, width, height }: a class for each pixel of the mask, or of every nth of a large one. */
export async function decodeMask(png) {
  const blob = new Blob([withClassNumbers(png)], { type: "image/png" });
  const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  const scale = Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
  const width = Math.max(Math.round(bitmap.width * scale), 1), height = Math.max(Math.round(bitmap.height * scale), 1);
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.imageSmoothingEnabled = false;
  context.drawImage(bitmap, 0, 0, width, height);
  bitmap.close();
  const { data } = context.getImageData(0, 0, width, height);
  return { numbers: Uint8Array.from({ length: width * height }, (_, i) => data[4 * i]), width, height };
}

function withClassNumbers(png) {
  const copy = png.slice(), view = new DataView(copy.buffer);
  for (let start = SIGNATURE; start < copy.length;) {
    const length = view.getUint32(start), data = start + LENGTH + TYPE;
    if (String.fromCharCode(...copy.subarray(start + LENGTH, data)) === "PLTE") {
      for (let i = 0; i < length; i++) copy[data + i] = Math.floor(i / 3);
      view.setUint32(data + length, crc32(copy.subarray(start + LENGTH, data + length)));
      return copy;
    }
    start = data + length + CRC;
  }
  return copy;
}

function crc32(bytes) {
  let crc = -1;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  return ~crc >>> 0;
}
