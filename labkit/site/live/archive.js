// A zip archive of texts, uncompressed. Source: APPNOTE 6.3.10, sections 4.3.7, 4.3.12 and 4.3.16.

const UTF8 = 0x800; // general purpose bit 11: names are UTF-8
const VERSION = 20;
const FIRST_DAY = 0x21; // 1 January 1980, as a date of MS-DOS

/**
 * The CRC-32 of ISO 3309, bit by bit.
 *
 * @param {Uint8Array} bytes
 */
function checksum(bytes) {
  let sum = ~0;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit++) sum = (sum >>> 1) ^ (0xedb88320 & -(sum & 1));
  }
  return ~sum >>> 0;
}

/**
 * Numbers as little-endian bytes; each pair is a number and its count of bytes.
 *
 * @param {[number, number][]} numbers
 */
function bytesOf(numbers) {
  const bytes = [];
  for (const [number, count] of numbers) {
    for (let i = 0; i < count; i++) bytes.push((number >>> (8 * i)) & 0xff);
  }
  return new Uint8Array(bytes);
}

/**
 * An archive of these texts, by file name.
 *
 * @param {Record<string, string>} texts
 */
export function archiveOf(texts) {
  const encoder = new TextEncoder();
  /** @type {Uint8Array<ArrayBuffer>[]} */
  const parts = [];
  /** @type {Uint8Array<ArrayBuffer>[]} */
  const directory = [];
  let place = 0;
  let length = 0;
  for (const [name, text] of Object.entries(texts)) {
    const title = encoder.encode(name);
    const content = encoder.encode(text);
    /** @type {[number, number][]} */
    const common = [
      [VERSION, 2],
      [UTF8, 2],
      [0, 2], // stored
      [0, 2], // midnight
      [FIRST_DAY, 2],
      [checksum(content), 4],
      [content.length, 4],
      [content.length, 4],
      [title.length, 2],
      [0, 2],
    ];
    const entry = bytesOf([
      [0x02014b50, 4],
      [VERSION, 2],
      ...common,
      [0, 2],
      [0, 2],
      [0, 2],
      [0, 4],
      [place, 4],
    ]);
    directory.push(entry, title);
    length += entry.length + title.length;
    const head = bytesOf([[0x04034b50, 4], ...common]);
    parts.push(head, title, content);
    place += head.length + title.length + content.length;
  }
  const count = Object.keys(texts).length;
  const end = bytesOf([
    [0x06054b50, 4],
    [0, 2],
    [0, 2],
    [count, 2],
    [count, 2],
    [length, 4],
    [place, 4],
    [0, 2],
  ]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}
