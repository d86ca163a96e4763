// The reply to a choice on a page without a kernel: the twin of `reply` and `Ruler.distance` in widget.py; a test holds them
// together.

import { decimal } from "../base/number_words.js";

export function replied({ choices, answer, near, truth }, { unit }, choice) {
  if (!near) return { answered: choices[choice], right: choice === answer };
  if (!truth) return { answered: choices.lost, right: false };
  const guess = Number(choice);
  const factor = Math.max(guess / truth, truth / guess);
  const side = factor <= near ? "near" : guess < truth ? "less" : "more";
  const compared = `you said ${decimal(guess)}${unit}, it was ${decimal(Number(truth.toPrecision(3)))}${unit}`;
  const times =
    factor >= 10
      ? Math.round(factor).toLocaleString("en-US")
      : String(Number(factor.toPrecision(2)));
  const distance =
    factor < 1.05
      ? `${compared}.`
      : `${compared}: ${times} times ${truth > guess ? "more" : "less"}.`;
  const right = side === "near";
  return { answered: `${right ? "Yes" : "Not quite"}: ${distance} ${choices[side]}`, right, truth };
}
