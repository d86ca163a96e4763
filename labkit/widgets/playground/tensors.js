// Products of matrices with the accumulators of labkit.gemm.ACCUMULATORS that add one term after
// another.
//
// Each product of two elements is added to its sum by a fused multiply-add, in the order of the
// index, and rounded once to the accumulator's format: FP32 ("sequential FP32"), or the format of
// the result. The sum is then rounded to the format of the result.

import { addOdd, fusedFp32, PLAYGROUND_FORMATS, roundAll, toNearest } from "./rounding.js";

/** @import { RoundingFormat } from "./rounding.js" */

const FP32_PRECISION = 24;

/**
 * A matrix: element (i, j) is values[i * down + j * along].
 *
 * @typedef {object} Matrix
 * @property {Float32Array} values
 * @property {number} rows
 * @property {number} columns
 * @property {number} down
 * @property {number} along
 * @property {RoundingFormat} format That holds all its values.
 */

/**
 * @param {Float32Array} values row by row
 * @param {number} rows
 * @param {number} columns
 * @param {RoundingFormat} format
 * @returns {Matrix}
 */
export function matrix(values, rows, columns, format) {
  return { values, rows, columns, down: columns, along: 1, format };
}

/**
 * @param {Matrix} of
 * @returns {Matrix} the same numbers, rows for columns
 */
export function transposed({ values, rows, columns, down, along, format }) {
  return { values, rows: columns, columns: rows, down: along, along: down, format };
}

/**
 * @param {Matrix} a
 * @returns {Float32Array} its values row by row
 */
function rowByRow({ values, rows, columns, down, along }) {
  if (along === 1 && down === columns) return values;
  const found = new Float32Array(rows * columns);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) found[i * columns + j] = values[i * down + j * along];
  }
  return found;
}

/**
 * How a sum is rounded, and what sees it before its last rounding.
 *
 * @typedef {object} Sum
 * @property {RoundingFormat} result
 * @property {boolean} narrow Whether the accumulator has the result's format; else FP32.
 * @property {(sums: Float32Array) => void} [look]
 */

/**
 * A @ B + C, as a new array [rows of A, columns of B], row by row.
 *
 * @param {Matrix} a
 * @param {Matrix} b
 * @param {Float32Array | null} c one row, added to each; null for zeros
 * @param {Sum} sum
 */
export function product(a, b, c, sum) {
  const found = new Float32Array(a.rows * b.columns);
  if (c) for (let i = 0; i < a.rows; i++) found.set(c, i * b.columns);
  const right = rowByRow(b);
  const bits = a.format.significandBits + b.format.significandBits + 2;
  if (sum.narrow && sum.result !== PLAYGROUND_FORMATS.FP32) {
    addInFormat(a, right, b.columns, found, sum.result);
  } else if (bits <= FP32_PRECISION) addExact(a, right, b.columns, found);
  else addFused(a, right, b.columns, found);
  sum.look?.(found);
  return roundAll(found, sum.result);
}

/**
 * Add products of at most 24 bits: float64 may round their sum with an FP32 number, but a second
 * rounding does no harm then (labkit.gemm.accumulators, `_sequential`).
 *
 * @param {Matrix} a
 * @param {Float32Array} right
 * @param {number} columns
 * @param {Float32Array} sums which rounds what is stored in it
 */
function addExact({ values, rows, columns: terms, down, along }, right, columns, sums) {
  for (let i = 0; i < rows; i++) {
    const from = i * columns;
    for (let k = 0; k < terms; k++) {
      const left = values[i * down + k * along];
      const row = k * columns;
      for (let j = 0; j < columns; j++) sums[from + j] += left * right[row + j];
    }
  }
}

/**
 * Add products of FP32 numbers.
 *
 * @param {Matrix} a
 * @param {Float32Array} right
 * @param {number} columns
 * @param {Float32Array} sums
 */
function addFused({ values, rows, columns: terms, down, along }, right, columns, sums) {
  for (let i = 0; i < rows; i++) {
    const from = i * columns;
    for (let k = 0; k < terms; k++) {
      const left = values[i * down + k * along];
      const row = k * columns;
      for (let j = 0; j < columns; j++) {
        sums[from + j] = fusedFp32(left, right[row + j], sums[from + j]);
      }
    }
  }
}

/**
 * Add products in a narrow format, which rounds after each.
 *
 * @param {Matrix} a
 * @param {Float32Array} right
 * @param {number} columns
 * @param {Float32Array} sums
 * @param {RoundingFormat} format
 */
function addInFormat({ values, rows, columns: terms, down, along }, right, columns, sums, format) {
  for (let i = 0; i < rows; i++) {
    const from = i * columns;
    for (let k = 0; k < terms; k++) {
      const left = values[i * down + k * along];
      const row = k * columns;
      for (let j = 0; j < columns; j++) {
        sums[from + j] = toNearest(addOdd(left * right[row + j], sums[from + j]), format);
      }
    }
  }
}

/**
 * The sums of a matrix' columns.
 *
 * @param {Matrix} of
 * @param {Sum} sum
 */
export function columnSums(of, sum) {
  const ones = matrix(new Float32Array(of.rows).fill(1), 1, of.rows, PLAYGROUND_FORMATS.E4M3);
  return product(ones, of, null, sum);
}
