// A zip archive of texts, uncompressed. Source: APPNOTE 6.3.10, sections 4.3.7, 4.3.12 and 4.3.16.

// The signatures of records: "PK" and two bytes.
const ENTRY = 0x04034b50;
const DIRECTORY_ENTRY = 0x02014b50;
const END = 0x06054b50;
// General purpose bit 11: names are UTF-8.
const UTF8 = 0x800;
// Version 2.0 of the format, the first one with folders and compression.
const VERSION = 20;
// The date 1 January 1980 in the encoding of MS-DOS.
const FIRST_DAY = 0x21;
// The polynomial of CRC-32, with reversed bits.
const POLYNOMIAL = 0xedb88320;

/**
 * Return the CRC-32 of bytes (ISO 3309).
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
 * Return numbers as little-endian bytes.
 *
 * @param {[number, number][]} numbers each number with its count of bytes
 */
function bytesOf(numbers) {
  const bytes = [];
  for (const [number, count] of numbers) {
    for (let i = 0; i < count; i++) bytes.push((number >>> (8 * i)) & 0xff);
  }
  return new Uint8Array(bytes);
}

/**
 * Return an archive of texts.
 *
 * @param {Record<string, string>} texts file name -> content
 */
export function archiveOf(texts) {
  const encoder = new TextEncoder();
  /** @type {Uint8Array<ArrayBuffer>[]} */
  const parts = [];
  /** @type {Uint8Array<ArrayBuffer>[]} */
  const directory = [];
  // The offset of the next entry, and the length of the directory so far, in bytes.
  let place = 0;
  let length = 0;
  for (const [name, text] of Object.entries(texts)) {
    const title = encoder.encode(name);
    const content = encoder.encode(text);
    // The fields that an entry and its record in the directory share.
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
