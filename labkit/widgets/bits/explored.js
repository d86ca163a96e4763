import {
  brief,
  classOf,
  compare,
  decode,
  encode,
  exactDecimal,
  exactText,
  exactly,
  fieldBits,
  fraction,
  hexCode,
  hexFloat,
  leading,
  minus,
  nameOf,
  neighbour,
  over,
  parse,
  plus,
  sizeOf,
  spaced,
  times,
  twoTo,
  ulpOf,
  withMinus,
} from "../exact/numbers.js";

const FIELD_NAMES = { S: "sign", E: "exponent", F: "significand" };
const EMPTY = "Nothing is typed. Give a number, such as 0.1, or a code, such as 0x1.";

export function explore(text, format) {
  const reading = parse(text, format);
  return {
    format,
    code: reading.code,
    number: reading.kind === "code" ? exactText(reading.value) : text,
    text,
    problem: "",
  };
}

function attempt(state, step) {
  try {
    return step();
  } catch (error) {
    return { ...state, problem: error.message };
  }
}

export const afterTyping = (state, text) =>
  text.trim()
    ? attempt({ ...state, text }, () => explore(text, state.format))
    : { ...state, text, problem: EMPTY };
export const inFormat = (state, format) => attempt(state, () => explore(state.number, format));

export function withCode(format, code) {
  const number = exactText(decode(code, format));
  return { format, code, number, text: number, problem: "" };
}

export function stepped(state, direction) {
  const { format, code } = state;
  const next = neighbour(decode(code, format), format, direction);
  if (next !== null) return withCode(format, encode(next, format));
  return {
    ...state,
    problem: `${format.name} has no ${direction > 0 ? "larger" : "smaller"} value than ${nameOf(decode(code, format))}.`,
  };
}

// --- the sentence ---------------------------------------------------------------------------------------------------------

const ulpsText = (error, value, format) =>
  `${brief(over(sizeOf(error), exactly(ulpOf(value, format))), 2)} ulp`;

// The number meant: as it was typed, if that is short.
function meantText({ number, exact }) {
  return /^-?0x/i.test(number.trim()) || number.length > 40 ? spaced(exact) : number.trim();
}

function whyNan(format, exact) {
  if (exact && exact.n < 0n && !format.signed) return `${format.name} has no sign`;
  if (exact && !exact.n) return `${format.name} has no zero`;
  return `${format.name} ends at ${nameOf(format.max)} and has no infinity`;
}

function specialSentence({ format, code, number, value }) {
  const [name, kind, hex] = [format.name, classOf(code, format), hexCode(code, format)];
  if (kind === "nan") {
    const meant = number.trim().toLowerCase();
    if (/inf|∞/.test(meant))
      return `${/^[-−]/.test(meant) ? "Minus infinity" : "Infinity"} becomes NaN, ${hex}: ${whyNan(format, null)}.`;
    return `${hex} is NaN in ${name}, not a number: the result of 0/0, and equal to nothing, not even to itself.`;
  }
  if (kind === "infinity")
    return `${hex} is ${nameOf(value)} in ${name}: the result of rounding beyond ${nameOf(format.max)}.`;
  return `An infinity becomes ${nameOf(value)}, the largest ${name} number: ${name} has no infinity and no NaN.`;
}

function exploredSentence(state) {
  const { format, code, exact, value } = state;
  const { name } = format;
  if (!exact) return specialSentence(state);
  const meant = meantText(state);
  if (Number.isNaN(value)) return `${meant} becomes NaN: ${whyNan(format, exact)}.`;
  if (
    !Number.isFinite(value) ||
    (Math.abs(value) === format.max && compare(sizeOf(exact), exactly(format.max)) > 0)
  ) {
    const end = Number.isFinite(value) ? "becomes that" : "becomes infinity";
    return `${meant} is beyond the largest ${name} number, ${nameOf(format.max)}, and ${end}.`;
  }
  const error = minus(exactly(value), exact);
  if (!error.n) {
    if (value === 0)
      return `${meant} is exact in ${name}: zero has a code for each sign, and +0 equals -0.`;
    return `${meant} is exact in ${name}: a ${classOf(code, format)} number, whose ulp is ${spaced(exactly(ulpOf(value, format)))}.`;
  }
  if (value === 0)
    return `${meant} underflows in ${name}: it becomes 0, since the smallest number above 0 is ${spaced(exactly(format.least))}.`;
  const far = `${brief(sizeOf(error))} ${error.n > 0n ? "above" : "below"} it (${ulpsText(error, value, format)})`;
  const lost = classOf(code, format) === "subnormal" ? ", subnormal," : ",";
  return `${meant} is no ${name} number: the nearest one is ${nameOf(value)}${lost} which is ${far}.`;
}

// --- bits, formula, facts, comparison ---------------------------------------------------------------------------------------

// The fields from the high bit to the low: letter, name, bits (bit, on, weight), and what they mean.
export function fieldsOf(code, format) {
  const kind = classOf(code, format);
  const texts = fieldBits(code, format);
  const [, exponent, stored] = texts.map((bits) => Number(`0b${bits || 0}`));
  const part = `${stored}/${format.p <= 12 ? 2 ** format.p : `2^${format.p}`}`;
  const last = kind === "infinity" || kind === "nan";
  const zero = kind === "zero" || kind === "subnormal";
  const meanings = {
    S: texts[0] === "1" ? "minus" : "plus",
    E: last
      ? `${exponent}: the last exponent`
      : zero
        ? `0: exponent stays ${withMinus(String(format.emin))}`
        : `${exponent} − ${format.bias} = ${withMinus(String(exponent - format.bias))}`,
    F: last
      ? kind === "infinity"
        ? "0: infinity"
        : "NaN"
      : `hidden bit ${zero ? 0 : 1}, plus ${part}`,
  };
  const weights = {
    S: () => "±",
    E: (i) => (i < 10 ? String(2 ** i) : `2^${i}`),
    F: (i, width) => `2^${i - width}`,
  };
  let bit = format.bits;
  return ["S", "E", "F"].flatMap((letter, f) => {
    const bits = [...texts[f]].map((digit, i) => ({
      bit: (bit -= 1),
      on: digit === "1",
      weight: weights[letter](texts[f].length - 1 - i, texts[f].length),
    }));
    return bits.length ? [{ letter, name: FIELD_NAMES[letter], bits, says: meanings[letter] }] : [];
  });
}

// (-1)^sign * 2^(exponent - bias) * 1.significand, as pieces [text, field, raised]; of a subnormal, 2^emin * 0.significand.
function productPieces(sign, exponent, significand, format, subnormal) {
  const signed = format.signed ? [["(−1)"], [sign, "S", true], [" × "]] : [];
  const power = subnormal
    ? [["2"], [withMinus(String(format.emin)), "E", true]]
    : [["2"], [exponent, "E", true], [` − ${format.bias}`, "", true]];
  return [
    ...signed,
    ...power,
    ...(format.p ? [[` × ${subnormal ? 0 : 1}.`], [significand, "F"]] : []),
  ];
}

// The formula of the class of a code: with letters, with the bits, and with what they amount to.
function formulaOf(code, format) {
  const kind = classOf(code, format);
  const [sign, field, bits] = fieldBits(code, format);
  const minusPiece = [sign === "1" ? "−" : "", "S"];
  const all = `all bits of ${format.infinityCode === null && format.p ? "E and F" : "E"} are 1`;
  const texts = {
    infinity: "infinity: all bits of E are 1 and all bits of F are 0",
    nan: `NaN, not a number: ${all}${format.infinityCode === null ? ` (${format.name} has no infinity)` : " and F is not 0"}`,
    zero: "0: all bits of E and F are 0, and the formula would give 0 too",
  };
  if (texts[kind]) return [[minusPiece, [texts[kind]]]];
  const subnormal = kind === "subnormal";
  const exponent = Number(`0b${field}`);
  const whole = leading(
    plus(
      fraction(subnormal ? 0n : 1n),
      times(fraction(BigInt(`0b${bits || 0}`)), twoTo(-format.p)),
    ),
    20,
  );
  const power = withMinus(String(subnormal ? format.emin : exponent - format.bias));
  return [
    productPieces("S", "E", "F", format, subnormal),
    [
      ...productPieces(String(Number(sign || 0)), String(exponent), bits, format, subnormal),
      ...(bits ? [[" (binary)"]] : []),
    ],
    [minusPiece, ["2"], [power, "E", true], [" × "], [whole, "F"]],
  ].map((line) => line.filter(([text]) => text));
}

// What a format makes of the number: its bits by field, its value, the error in three units.
function comparisonRow(state, format) {
  const row = {
    format: format.name,
    bits: [],
    value: "",
    full: "",
    error: "",
    relative: "",
    ulps: "",
  };
  const other = format === state.format ? state : inFormat(state, format);
  if (other.format !== format) return { ...row, error: "no NaN" };
  const value = decode(other.code, format);
  const { exact } = state;
  Object.assign(row, {
    bits: fieldBits(other.code, format).flatMap((bits, i) => (bits ? [["SEF"[i], bits]] : [])),
    value: withMinus(Number.isFinite(value) && value ? leading(exactly(value)) : nameOf(value)),
    full: exactText(value),
  });
  if (!exact || !Number.isFinite(value))
    return { ...row, error: exact ? (Number.isNaN(value) ? "no number" : "overflows") : "" };
  const error = minus(exactly(value), exact);
  if (!error.n) return { ...row, error: "exact" };
  const share = over(sizeOf(error), sizeOf(exact));
  return {
    ...row,
    error: `${error.n > 0n ? "+" : "−"}${withMinus(brief(sizeOf(error)))}`,
    relative:
      compare(share, fraction(10n)) > 0
        ? ">1000%"
        : `${withMinus(brief(times(share, fraction(100n)), 2))}%`,
    ulps: Math.abs(value) > 0 && Math.abs(value) < format.max ? ulpsText(error, value, format) : "",
  };
}

// Everything that is shown of a state, and of the same number in other formats.
export function exploredView(bare, others) {
  const { format, code } = bare;
  const value = decode(code, format);
  const state = { ...bare, value, exact: parse(bare.number, format).exact };
  const finite = Number.isFinite(value);
  const text = finite ? exactDecimal(value) : nameOf(value);
  const kind = classOf(code, format);
  const side = (direction) => {
    const next = neighbour(value, format, direction);
    return next === null ? null : nameOf(next);
  };
  return {
    ...state,
    fields: fieldsOf(code, format),
    valueText: withMinus(text),
    about: finite && text.length > 18 ? withMinus(`≈ ${brief(exactly(value))}`) : "",
    formula: formulaOf(code, format),
    facts: [
      ["class", kind === "nan" ? "NaN" : kind],
      ["code", hexCode(code, format)],
      ["binary", fieldBits(code, format).filter(Boolean).join(" ")],
      ["hex-float", hexFloat(value)],
      ["ulp", finite ? spaced(exactly(ulpOf(value, format))) : "none"],
    ],
    before: side(-1),
    after: side(1),
    sentence: exploredSentence(state),
    rows: [format, ...others.filter(({ name }) => name !== format.name)].map((one) =>
      comparisonRow(state, one),
    ),
  };
}
