// Products of matrices with the accumulators of labkit.gemm.ACCUMULATORS that add one term after
// another.
//
// Each product of two elements is added to its sum by a fused multiply-add, in the order of the
// index, and rounded once to the accumulator's format: FP32 ("sequential FP32"), or the format of
// the result. The sum is then rounded to the format of the result.

import { addOdd, fusedFp32, PLAYGROUND_FORMATS, roundAll, toNearest } from "./rounding.js";

/** @import { RoundingFormat } from "./rounding.js" */

// The bits of an FP32 number's significand.
const FP32_PRECISION = 24;

/**
 * A matrix: element (i, j) is values[i * down + j * along].
 *
 * @typedef {object} Matrix
 * @property {Float32Array} values
 * @property {number} rows
 * @property {number} columns
 * @property {number} down The distance in `values` of two rows.
 * @property {number} along The distance in `values` of two columns.
 * @property {RoundingFormat} format A format that has all its values.
 */

/**
 * Return an array as a matrix.
 *
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
 * Return the transposed matrix, which shares its values.
 *
 * @param {Matrix} of
 * @returns {Matrix}
 */
export function transposed({ values, rows, columns, down, along, format }) {
  return { values, rows: columns, columns: rows, down: along, along: down, format };
}

/**
 * Return the values of a matrix row by row.
 *
 * @param {Matrix} a
 * @returns {Float32Array}
 */
function rowByRow({ values, rows, columns, down, along }) {
  if (along === 1 && down === columns) return values;
  const ordered = new Float32Array(rows * columns);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) ordered[i * columns + j] = values[i * down + j * along];
  }
  return ordered;
}

/**
 * The formats of sums.
 *
 * @typedef {object} Sum
 * @property {RoundingFormat} result The format to which a sum is rounded at the end.
 * @property {boolean} narrow Whether the accumulator has the result's format; else it is FP32.
 * @property {(sums: Float32Array) => void} [look] Called with the sums before their last rounding.
 */

/**
 * Return A @ B + C, as a new array [rows of A, columns of B], row by row.
 *
 * @param {Matrix} a
 * @param {Matrix} b
 * @param {Float32Array | null} c one row, added to each; null for zeros
 * @param {Sum} sum
 */
export function product(a, b, c, sum) {
  const sums = new Float32Array(a.rows * b.columns);
  if (c) {
    for (let i = 0; i < a.rows; i++) sums.set(c, i * b.columns);
  }
  const right = rowByRow(b);
  // The bits of a product: those of both factors, each with its leading bit, which is not stored.
  const bits = a.format.significandBits + b.format.significandBits + 2;
  if (sum.narrow && sum.result !== PLAYGROUND_FORMATS.FP32) {
    addInFormat(a, right, b.columns, sums, sum.result);
  } else if (bits <= FP32_PRECISION) {
    addExact(a, right, b.columns, sums);
  } else {
    addFused(a, right, b.columns, sums);
  }
  sum.look?.(sums);
  return roundAll(sums, sum.result);
}

/**
 * Add products of at most 24 bits to FP32 sums. Each sum is rounded to float64 and then, as it is
 * stored, to FP32, which gives the same result as one rounding (labkit.gemm.accumulators,
 * `_sequential`).
 *
 * @param {Matrix} a
 * @param {Float32Array} right B row by row
 * @param {number} columns of B
 * @param {Float32Array} sums changed in place
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
 * Add products of FP32 numbers to FP32 sums.
 *
 * @param {Matrix} a
 * @param {Float32Array} right B row by row
 * @param {number} columns of B
 * @param {Float32Array} sums changed in place
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
 * Add products to sums of a narrow format, which are rounded after each product.
 *
 * @param {Matrix} a
 * @param {Float32Array} right B row by row
 * @param {number} columns of B
 * @param {Float32Array} sums changed in place
 * @param {RoundingFormat} format of the sums
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
 * Return the sums of a matrix's columns.
 *
 * @param {Matrix} of
 * @param {Sum} sum
 */
export function columnSums(of, sum) {
  // Any format has the number 1; the one with the fewest bits allows `addExact`.
  const ones = matrix(new Float32Array(of.rows).fill(1), 1, of.rows, PLAYGROUND_FORMATS.E4M3);
  return product(ones, of, null, sum);
}
