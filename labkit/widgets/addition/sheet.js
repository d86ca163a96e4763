import {
  binadeOf,
  bitLength,
  brief,
  compare,
  counted,
  encode,
  exactly,
  fieldBits,
  firstDigits,
  fraction,
  hexCode,
  leading,
  minus,
  numberText,
  over,
  parse,
  plus,
  roundValue,
  roundsAway,
  sizeOf,
  times,
  twoTo,
} from "../exact/numbers.js";

const OPERATIONS = { add: ["+", "sum"], multiply: ["×", "product"] };
const MOST_COLUMNS = 58; // more would be too small to read on a narrow page
const STICKY = 3; // guard, round and the first sticky place lie 1 to 3 places behind the last one kept

// --- stations -------------------------------------------------------------------------------------------------------------

const shifted = (significand, places) =>
  places >= 0 ? significand << BigInt(places) : significand >> BigInt(-places);
const topOf = ({ significand, exponent }) =>
  significand ? exponent + bitLength(significand) : -Infinity;

function termOf(x, format) {
  const finite = Number.isFinite(x) ? x : 0;
  const size = sizeOf(exactly(finite));
  const exponent = Math.max(size.n ? binadeOf(size) : format.emin, format.emin) - format.p;
  const { n, d } = times(size, twoTo(-exponent));
  return { negative: finite < 0 || Object.is(finite, -0), significand: n / d, exponent };
}

// Written with another exponent; ones that fall off are remembered in the last bit.
function withExponent({ negative, significand, exponent }, to) {
  const moved = shifted(significand, exponent - to);
  const cut = shifted(moved, to - exponent) !== significand;
  return { negative, significand: cut ? moved | 1n : moved, exponent: to };
}

function totalOf(a, b) {
  const [x, y] = [a, b].map(({ negative, significand }) => (negative ? -significand : significand));
  const sum = x + y;
  const negative = sum ? sum < 0n : a.negative === b.negative && a.negative;
  return { negative, significand: sum < 0n ? -sum : sum, exponent: a.exponent };
}

function normalised(term, format) {
  const exponent = Math.max(topOf(term) - format.p - 1, format.emin - format.p);
  const dropped = exponent - term.exponent;
  const kept = shifted(term.significand, -dropped);
  const rest = term.significand - shifted(kept, dropped);
  const bitAt = (place) => (shifted(rest, place - dropped) & 1n) === 1n;
  const sticky = shifted(shifted(rest, 2 - dropped), dropped - 2) !== rest;
  return {
    kept: { ...term, significand: kept, exponent },
    dropped,
    guard: bitAt(1),
    round: bitAt(2),
    sticky,
  };
}

function rounded(cut, format) {
  const { significand } = cut.kept;
  const up = cut.guard && (cut.round || cut.sticky || (significand & 1n) === 1n);
  const raised = up ? significand + 1n : significand;
  return {
    up,
    carried: up && raised === 1n << BigInt(format.p + 1),
    term: { ...cut.kept, significand: raised },
  };
}

// What was typed as a and b, and every station on the way to the result.
function sheetOf(readings, format, operation) {
  const values = readings.map(({ value }) => value);
  const [a, b] = values.map((value) => termOf(value, format));
  const finite = values.every(Number.isFinite);
  const exponent = Math.max(
    Math.min(a.exponent, b.exponent),
    Math.max(topOf(a), topOf(b)) - format.p - 4,
  );
  const aligned = { a: withExponent(a, exponent), b: withExponent(b, exponent) };
  const product = {
    negative: a.negative !== b.negative,
    significand: a.significand * b.significand,
    exponent: a.exponent + b.exponent,
  };
  const total = operation === "add" ? totalOf(aligned.a, aligned.b) : product;
  const cut = normalised(total, format);
  const final = rounded(cut, format);
  const size = Number(final.term.significand) * 2 ** final.term.exponent;
  const special = operation === "add" ? values[0] + values[1] : values[0] * values[1];
  const result = size > format.max ? Math.abs(roundValue(Infinity, format)) : size;
  const value = finite ? (final.term.negative ? -result : result) : roundValue(special, format);
  const exponents = [a.exponent, b.exponent].map((e) => e + format.p);
  let home = operation === "multiply" ? exponents[0] + exponents[1] : Math.max(...exponents);
  if (operation === "add" && values.includes(0)) home = exponents[values[0] === 0 ? 1 : 0];
  const exact = finite ? (operation === "add" ? plus : times)(...values.map(exactly)) : null;
  return {
    operation,
    format,
    readings,
    values,
    finite,
    terms: { a, b },
    aligned,
    total,
    cut,
    final,
    value,
    exponents,
    home,
    exact,
    shift: Math.abs(a.exponent - b.exponent),
    window: total.significand ? cut.kept.exponent + format.p : home, // exponent of the first place that the format keeps
    error:
      finite && Number.isFinite(value)
        ? over(minus(exactly(value), exact), twoTo(cut.kept.exponent))
        : null, // in ulps
  };
}

// --- sentences ------------------------------------------------------------------------------------------------------------

const MINUS = "\u2212";
const signOf = ({ negative, significand }) => (negative && significand ? MINUS : "");
const exactNumber = (x, digits = 24) => (x.n < 0n ? MINUS : "") + leading(sizeOf(x), digits, -5);

function bitAt({ significand, exponent }, place) {
  return place < exponent ? "0" : String((significand >> BigInt(place - exponent)) & 1n);
}

function bitsDown(term, top, last) {
  return Array.from({ length: Math.max(0, top - last + 1) }, (_, i) => bitAt(term, top - i)).join(
    "",
  );
}

// The significand of a term with the point behind a place, down to another.
function significandText(term, point, last = term.exponent) {
  const bits = bitsDown(
    term,
    Math.max(point, term.exponent + bitLength(term.significand) - 1),
    last,
  );
  const whole = bits.length - (point - last);
  return bits.slice(0, whole) + (bits.length > whole ? `.${bits.slice(whole)}` : "");
}

function ulpsSigned(error) {
  if (!error.n) return "0 ulp";
  const size = sizeOf(error);
  const sign = error.n < 0n ? MINUS : "+";
  if (compare(size, fraction(1n, 1000n)) < 0) {
    const [[first, second], power] = firstDigits(size, 2);
    return `${sign}${first}.${second}e${power} ulp`;
  }
  const { n, d } = times(size, fraction(1000n));
  const thousandths =
    n / d + BigInt(roundsAway({ n: n % d, d }, (n / d) & 1n, false, "NEAREST_EVEN"));
  return (
    `${sign}${thousandths / 1000n}.${String(thousandths % 1000n).padStart(3, "0")}`.replace(
      /0+$/,
      "",
    ) + " ulp"
  );
}

// The words for the operand that a sum swallowed, if it did.
function lostText({ operation, error, values: [a, b], value }, words, otherwise) {
  if (operation !== "add" || !error?.n) return otherwise;
  return value === a && b !== 0 ? words("b") : value === b && a !== 0 ? words("a") : otherwise;
}

function writeText({ readings, terms, format, exponents }) {
  const said = ["a", "b"].map((name, i) => {
    const { value, exact } = readings[i];
    if (!Number.isFinite(value)) return `${name} is ${numberText(value)}`;
    const becomes = exact && compare(exact, exactly(value)) ? `, rounded to ${format.name},` : "";
    return `${name}${becomes} is ${terms[name].negative ? MINUS : ""}${significandText(terms[name], exponents[i])} × 2^${exponents[i]}`;
  });
  return `${said.join(" and ")}.`;
}

function alignText({ values, terms, shift, home, format }) {
  const precision = format.p + 1;
  if (values.includes(0)) return "One of them is 0: there is nothing to align.";
  if (!shift) return `Both are written with 2^${home} already: nothing moves.`;
  const name = terms.a.exponent < terms.b.exponent ? "a" : "b";
  const said = `${name} has the smaller exponent. To be written with 2^${home} it moves ${counted(shift, "place")} to the right`;
  const beyond = `beyond the ${precision} places that ${format.name} keeps`;
  if (shift >= precision) return `${said}, and all its ${precision} bits now lie ${beyond}.`;
  if (!(terms[name].significand & ((1n << BigInt(shift)) - 1n)))
    return `${said}; only zeros pass ${beyond}.`;
  return `${said}, and ${shift} of its ${precision} bits now ${shift > 1 ? "lie" : "lies"} ${beyond}.`;
}

function addText({ terms, total, home, format }) {
  const low = home - format.p;
  const kept = significandText(total, home, Math.max(low, total.exponent));
  const beyond = bitsDown(total, low - 1, total.exponent).replace(/0+$/, "");
  const what =
    terms.a.negative !== terms.b.negative
      ? "The signs differ, so one is subtracted: the result"
      : "The sum";
  return `${what} is ${signOf(total)}${kept}, and ${beyond ? `beyond the places kept ${beyond}` : "nothing beyond the places kept"}.`;
}

function multiplyText({ total, home, exponents: [first, second], format }) {
  const digits = significandText(total, home).replace(/\.?0+$/, "") || "0";
  const precision = format.p + 1;
  return (
    `The significands are multiplied, ${total.negative ? MINUS : ""}${digits}, and the exponents added, ${first} + ${second < 0 ? `(${second})` : second} = ${home}. ` +
    `${precision} bits times ${precision} bits give up to ${2 * precision}: nothing is lost yet.`
  );
}

function normaliseText({ operation, total, window, home, cut, format }) {
  const [what, places] = [OPERATIONS[operation][1], format.p + 1];
  if (!total.significand) return `The ${what} is exactly 0: there is nothing to normalise.`;
  const top = topOf(total) - 1;
  const moved = window - home;
  if (top < window) {
    return (
      `The ${what} begins at 2^${top}, but ${format.name} has no exponent below ${format.emin}: the ${places} places stay at ` +
      `2^${window} and begin with zeros, a subnormal number.`
    );
  }
  if (moved === 0)
    return `The ${what} begins at 2^${top}: the ${places} places that ${format.name} keeps are already there.`;
  if (moved > 0)
    return `The ${what} begins one place further left, so the ${places} places move there and the point with them.`;
  const gone = moved < -1 ? `${-moved} leading bits` : "The leading bit";
  return `${gone} cancelled: the ${places} places move to 2^${window}${cut.dropped < 0 ? ", and zeros fill up from the right" : ""}.`;
}

function decideText(sheet) {
  const { guard, round, sticky, kept } = sheet.cut;
  const said = `Guard ${Number(guard)}, round ${Number(round)}, sticky ${Number(sticky)}: `;
  if (!guard && !round && !sticky)
    return `${said}nothing lies beyond the places kept, so the result is exact.`;
  const odd = kept.significand & 1n;
  let reason = `exactly half. The last bit kept is ${odd} (${odd ? "odd" : "even"}), so to be even round ${sheet.final.up ? "up" : "down"}`;
  if (!guard) reason = "less than half of the last place, so round down";
  else if (round || sticky) reason = "more than half of the last place, so round up";
  return `${said}${reason}${lostText(sheet, (name) => `; ${name} is lost.`, ".")}`;
}

function roundText(sheet) {
  const {
    values: [a, b],
    value,
    format,
    exact,
    error,
  } = sheet;
  const [sign, what] = OPERATIONS[sheet.operation];
  const right = b < 0 || Object.is(b, -0) ? `(${numberText(b)})` : numberText(b);
  const said = `${numberText(a)} ${sign} ${right} = ${numberText(value)} in ${format.name}`;
  if (!error)
    return `${said}: the ${what}, ${exactNumber(exact, 8)}, is beyond the largest value, ${brief(exactly(format.max), 6)}.`;
  if (!error.n) return `${said}, exactly.`;
  const trace = lostText(sheet, (name) => `; ${name} left no trace.`, ".");
  return `${said}. The exact ${what} is ${exactNumber(exact, 12)}, so the error is ${ulpsSigned(error)}${trace}`;
}

// What a format holds of what was typed.
function hintOf({ value, exact, code }, format) {
  const [shown, hex] = [numberText(value), hexCode(code, format).toUpperCase().replace("0X", "0x")];
  if (!exact) return `${shown}, ${hex}`;
  return Number.isFinite(value) && compare(exact, exactly(value)) === 0
    ? `${shown} exactly, ${hex}`
    : `rounded to ${shown}, ${hex}`;
}

function factsOf({ value, format, finite, exact, error, operation }) {
  const code = encode(value, format);
  return [
    ["bits", fieldBits(code, format).join(" ")],
    ["code", hexCode(code, format).toUpperCase().replace("0X", "0x")],
    ["value", Number.isFinite(value) ? exactNumber(exactly(value)) : numberText(value)],
    ...(finite ? [[`exact ${OPERATIONS[operation][1]}`, exactNumber(exact)]] : []),
    ...(error ? [["error", ulpsSigned(error)]] : []),
  ];
}

// --- the paper --------------------------------------------------------------------------------------------------------------

const range = (from, to) => Array.from({ length: Math.max(0, from - to + 1) }, (_, i) => from - i);
const windowAt = (first, format) => [first, first - format.p];

// a or b with its own exponent, its bits from a column on.
function operandRow({ terms, exponents, format, operation }, name, first) {
  const own = exponents[name === "a" ? 0 : 1];
  const cells = range(own, own - format.p).map((place, i) => [
    `${name}${i}`,
    bitAt(terms[name], place),
    first - i,
    "kept",
  ]);
  return {
    name,
    before: name === "b" ? OPERATIONS[operation][0] : "",
    sign: terms[name].negative ? MINUS : "",
    cells,
    point: first,
    exponent: own,
  };
}

// a or b with the exponent of the larger one: zeros in front, and behind the sticky bit what fell off.
function alignedRow(sheet, name) {
  const { home, format } = sheet;
  const row = operandRow(sheet, name, home);
  if (!sheet.terms[name].significand) return { ...row, exponent: home };
  const aligned = sheet.aligned[name];
  const [, low] = windowAt(home, format);
  const own = new Map(row.cells.map((cell) => [cell[2] + row.exponent - home, cell]));
  const cells = range(home, Math.min(aligned.exponent, ...own.keys())).flatMap((place) => {
    const cell = own.get(place);
    const bit = bitAt(aligned, place);
    if (place < aligned.exponent) return cell ? [[cell[0], cell[1], place, "fallen"]] : [];
    if (!cell && place <= Math.max(...own.keys()) && bit === "0") return [];
    const kind = !cell && bit === "0" ? "zero" : place >= low ? "kept" : "rest";
    return [[cell ? cell[0] : `${name}@${place}`, bit, place, kind]];
  });
  return { ...row, cells, exponent: home };
}

// The exact result with its point; the window keeps some of its bits.
function totalRow({ total, operation }, point, [, last]) {
  const top = topOf(total) - 1;
  const cells = range(Math.max(point, top), Math.min(total.exponent, last - STICKY)).map(
    (place) => {
      const filled = place < total.exponent || place > Math.max(top, point);
      return [
        `t@${place}`,
        bitAt(total, place),
        place,
        filled ? "zero" : place >= last ? "kept" : "rest",
      ];
    },
  );
  return {
    name: OPERATIONS[operation][1],
    before: "=",
    sign: signOf(total),
    cells,
    point,
    exponent: point,
  };
}

// The paper at every station, with its sentence.
function scenesOf(sheet) {
  const { home, format, operation, finite, values, value, window, final } = sheet;
  const scene = (title, said, rows, kept, sticky = null, named = true) => ({
    title,
    sentence: said,
    rows,
    window: kept,
    sticky,
    named,
  });
  const homeWindow = windowAt(home, format);
  if (!finite) {
    const word = (name, one) => ({
      name,
      before: name === "result" ? "=" : "",
      sign: "",
      cells: [[name, numberText(one), 0, "word"]],
      point: null,
      exponent: null,
    });
    const rows = [word("a", values[0]), word("b", values[1])];
    const said = `${numberText(values[0])} ${OPERATIONS[operation][0]} ${numberText(values[1])} = ${numberText(value)}: with an infinity or a NaN a rule decides, and no bits are added.`;
    return [
      scene("Write", writeText(sheet), rows, homeWindow, null, false),
      scene("Result", said, [...rows, word("result", value)], homeWindow, null, false),
    ];
  }
  const stickyAt = ([, last]) =>
    Math.min(operation === "add" ? sheet.aligned.a.exponent : sheet.total.exponent, last - STICKY);
  const written = ["a", "b"].map((name) => operandRow(sheet, name, home));
  const total = totalRow(sheet, home, homeWindow);
  const kept = windowAt(window, format);
  const cut = totalRow(sheet, window, kept);
  const sticky = stickyAt(kept);
  const scenes = [scene("Write", writeText(sheet), written, homeWindow, null, false)];
  let aligned = ["a", "b"].map((name) => operandRow(sheet, name, window)); // factors need no place of their own
  if (operation === "multiply")
    scenes.push(scene("Multiply", multiplyText(sheet), [...written, total], homeWindow));
  else {
    aligned = ["a", "b"].map((name) => alignedRow(sheet, name));
    scenes.push(scene("Align", alignText(sheet), aligned, homeWindow, stickyAt(homeWindow)));
    scenes.push(
      scene("Add", addText(sheet), [...aligned, total], homeWindow, stickyAt(homeWindow)),
    );
  }
  scenes.push(scene("Normalise", normaliseText(sheet), [...aligned, cut], kept, sticky));
  scenes.push(scene("Guard, round, sticky", decideText(sheet), [...aligned, cut], kept, sticky));
  const one = {
    name: "",
    before: "+",
    sign: "",
    cells: [["one", "1", sheet.cut.kept.exponent, "kept"]],
    point: null,
    exponent: null,
  };
  const point = window + Number(final.carried);
  const last = windowAt(point, format);
  const cells = range(...last).map((place) => [
    `r@${place}`,
    bitAt(final.term, place),
    place,
    "kept",
  ]);
  const result = {
    name: "result",
    before: "=",
    sign: signOf(final.term),
    cells,
    point,
    exponent: point,
  };
  scenes.push(
    scene(
      "Round",
      roundText(sheet),
      [...aligned, cut, ...(final.up ? [one] : []), result],
      last,
      sticky,
    ),
  );
  return scenes;
}

// The places from left to right that the paper needs; null is a gap, where many only hold filled-in zeros. The last column is
// cut off where the paper would become too wide to read.
function columnsOf(scenes) {
  const cells = scenes.flatMap(({ rows }) => rows.flatMap((row) => row.cells));
  if (!cells.length) return [];
  const edges = scenes.flatMap(({ window: [first, last] }) => [first, last - STICKY]);
  const places = cells.map(([, , place]) => place);
  const all = range(Math.max(...edges, ...places), Math.min(...edges, ...places));
  if (all.length <= MOST_COLUMNS) return all;
  const needed = new Set(
    cells.filter(([, , , kind]) => kind !== "zero").map(([, , place]) => place),
  );
  for (const {
    window: [first, last],
  } of scenes)
    for (const place of range(first, last - STICKY)) needed.add(place);
  const kept = [];
  for (const place of all) {
    if (!kept.length || [-1, 0, 1].some((step) => needed.has(place + step))) kept.push(place);
    else if (kept.at(-1) !== null) kept.push(null);
  }
  return kept.length <= MOST_COLUMNS ? kept : [...kept.slice(0, MOST_COLUMNS - 1), null];
}

// Everything that the paper shows of two texts; throws where one of them is no number.
export function paperOf(a, b, format, operation) {
  const readings = [a, b].map((text) => parse(text, format));
  const sheet = sheetOf(readings, format, operation);
  const scenes = scenesOf(sheet);
  const hints = { a: hintOf(readings[0], format), b: hintOf(readings[1], format) };
  return {
    scenes,
    columns: columnsOf(scenes),
    facts: factsOf(sheet),
    hints,
    places: format.p + 1,
    format: format.name,
  };
}
