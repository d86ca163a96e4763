// Numbers as a person reads them. That Python writes the same is in
// tests/widgets/test_both_languages.py.

import assert from "node:assert/strict";
import test from "node:test";
import { decimal, percent, power, superscript } from "../../labkit/widgets/base/number_words.js";

test("only nothing is 0%, and only all is 100%", () => {
  assert.equal(percent(0), "0%");
  assert.equal(percent(1e-9), "<0.01%");
  assert.equal(percent(1 - 1e-9), ">99.9%");
  assert.equal(percent(1), "100%");
});

test("a share that is not a number is not 100%", () => {
  assert.equal(percent(Number.NaN), "NaN%");
});

test("a share has more digits near its ends", () => {
  const shares = [0.00123, 0.0123, 0.123, 0.9899, 0.9956, 0.999];
  assert.deepEqual(shares.map(percent), ["0.12%", "1.2%", "12%", "99%", "99.6%", "99.9%"]);
});

test("a number has three digits, or is whole", () => {
  const numbers = [0, 65504, 1 / 3, 1e-8, 3.4028e38, -0.5, 12345678];
  const words = ["0", "65,504", "0.333", "1e-8", "3.4e38", "-0.5", "1.23e7"];
  assert.deepEqual(numbers.map(decimal), words);
});

test("NaN and infinities have names", () => {
  assert.deepEqual([NaN, Infinity, -Infinity].map(decimal), ["NaN", "inf", "-inf"]);
});

test("exponents are raised in text", () => {
  assert.equal(power(-24), "2^-24");
  assert.equal(superscript(-24), "\u207b\u00b2\u2074");
});
