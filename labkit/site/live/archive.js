// A zip archive of texts, uncompressed. Source: APPNOTE 6.3.10, sections 4.3.7, 4.3.12 and 4.3.16.

const ENTRY = 0x04034b50; // signatures of records: "PK" and two bytes
const DIRECTORY_ENTRY = 0x02014b50;
const END = 0x06054b50;
const UTF8 = 0x800; // general purpose bit 11: names are UTF-8
const VERSION = 20; // 2.0, the first with folders and compression
const FIRST_DAY = 0x21; // 1 January 1980, as a date of MS-DOS
const POLYNOMIAL = 0xedb88320; // of CRC-32, bits reversed

/**
 * The CRC-32 of ISO 3309, bit by bit.
 *
 * @param {Uint8Array} bytes
 */
function checksum(bytes) {
  let sum = ~0;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit++) {
      const isOdd = sum & 1;
      sum >>>= 1;
      if (isOdd) sum ^= POLYNOMIAL;
    }
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
  let place = 0; // of the next entry
  let length = 0; // of the directory
  for (const [name, text] of Object.entries(texts)) {
    const title = encoder.encode(name);
    const content = encoder.encode(text);
    // the fields that an entry and its line in the directory share
    /** @type {[number, number][]} */
    const common = [
      [VERSION, 2], // needed to extract
      [UTF8, 2],
      [0, 2], // stored
      [0, 2], // midnight
      [FIRST_DAY, 2],
      [checksum(content), 4],
      [content.length, 4], // compressed
      [content.length, 4], // uncompressed
      [title.length, 2],
      [0, 2], // length of the extra field
    ];
    const entry = bytesOf([
      [DIRECTORY_ENTRY, 4],
      [VERSION, 2], // made by
      ...common,
      [0, 2], // length of the comment
      [0, 2], // disk
      [0, 2], // internal attributes
      [0, 4], // external attributes
      [place, 4],
    ]);
    directory.push(entry, title);
    length += entry.length + title.length;
    const head = bytesOf([[ENTRY, 4], ...common]);
    parts.push(head, title, content);
    place += head.length + title.length + content.length;
  }
  const count = Object.keys(texts).length;
  const end = bytesOf([
    [END, 4],
    [0, 2], // disk
    [0, 2], // disk of the directory
    [count, 2], // entries on this disk
    [count, 2], // entries
    [length, 4], // of the directory
    [place, 4], // of the directory
    [0, 2], // length of the comment
  ]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}
